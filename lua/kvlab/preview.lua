-- preview.lua: a value as the prompt shows it: preview(value) -> text.
-- Bounded whatever it is given: a table shows at most 20 entries on one line, or 10 lines, tables inside it
-- are {...}; a value with __tostring says itself what it is, up to a length.
local MAX_ENTRIES <const>, MAX_LINES <const>, MAX_TEXT <const> = 20, 10, 20000

local function brief(value)
  if type(value) == 'string' then
    if #value > 60 then value = value:sub(1, 57) .. '...' end
    return "'" .. value:gsub("[%c\\']", function(c)
      return c == '\n' and '\\n' or c:find('%c') and '\\' .. c:byte() or '\\' .. c
    end) .. "'"
  end
  local meta = debug.getmetatable(value)
  if type(value) == 'table' and not (meta and rawget(meta, '__tostring')) then
    return next(value) == nil and '{}' or '{...}'
  end
  local text = tostring(value)
  if #text > 60 then text = text:sub(1, 57) .. '...' end
  return (text:gsub('%c', ' '))
end

local function sorted_keys(t, from)
  local keys = {}
  for key in next, t do
    if not (math.type(key) == 'integer' and key >= 1 and key <= from) then keys[#keys + 1] = key end
    if #keys > 10000 then break end -- a preview need not sort everything
  end
  table.sort(keys, function(a, b)
    if type(a) == type(b) and (type(a) == 'number' or type(a) == 'string') then return a < b end
    return type(a) < type(b)
  end)
  return keys
end

local function preview(value)
  local meta = debug.getmetatable(value)
  if type(value) ~= 'table' or (meta and rawget(meta, '__tostring')) then
    local text = tostring(value)
    if #text <= MAX_TEXT then return text end
    return ('%s\n... (%d bytes in all)'):format(text:sub(1, MAX_TEXT), #text)
  end
  local entries, count = {}, rawlen(value)
  for i = 1, math.min(count, MAX_ENTRIES) do entries[i] = brief(rawget(value, i)) end
  local keys = sorted_keys(value, count)
  for _, key in ipairs(keys) do
    if #entries >= MAX_ENTRIES then break end
    local name = type(key) == 'string' and key:find('^[%a_][%w_]*$') and key or '[' .. brief(key) .. ']'
    entries[#entries + 1] = name .. ' = ' .. brief(rawget(value, key))
  end
  local total = count + #keys
  local function more(shown) return total > shown and ('... (%d more)'):format(total - shown) or nil end
  local line = '{' .. table.concat(entries, ', ') .. (more(#entries) and ', ' .. more(#entries) or '') .. '}'
  if #line <= 79 then return line end
  local shown = math.min(#entries, MAX_LINES - 3)
  if #entries == shown + 1 and total == #entries then shown = shown + 1 end
  local rest = more(shown)
  return '{\n  ' .. table.concat(entries, ',\n  ', 1, shown) .. (rest and ',\n  ' .. rest or '') .. '\n}'
end

return preview
