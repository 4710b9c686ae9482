-- preview.lua: a value as the prompt shows it. preview(value) -> text is bounded whatever it is given;
-- preview.all(value) -> text leaves out no entry and no line; kv.show prints that.
--
-- Tables are shown with what is in them, on one line or one entry a line; a tensor with its type, shape, the elements
-- at its edges, and min, mean and max when there are more; other values say themselves what they are (__tostring).
local terminal = require 'kvlab.terminal'

local preview = {}

-- entries and depth of tables, lines, bytes of the whole, bytes of a text inside, keys that are put into order
local BRIEF <const> = { entries = 20, depth = 3, lines = 40, text = 20000, word = 60, sorted = 10000 }
local ALL <const> = setmetatable({}, { __index = function() return math.huge end })
local MOST_ELEMENTS <const> = 1 << 26 -- of a tensor that is looked through for its min, mean and max: some 0.1 s
local SHORT <const> = 20              -- columns of list items of which several stand in a line

local function kind_of(value)
  local meta = debug.getmetatable(value)
  return meta and rawget(meta, '__name')
end

local function is_plain(value)
  local meta = type(value) == 'table' and debug.getmetatable(value)
  return type(value) == 'table' and not (meta and rawget(meta, '__tostring'))
end

local function quoted(text)
  return "'" .. terminal.visible((text:gsub("[\\']", '\\%0'))):gsub('\n', '\\n'):gsub('\t', '\\t') .. "'"
end

local function shorten(text, limit)
  return #text > limit and text:sub(1, utf8.offset(text, 0, limit - 2) - 1) .. '...' or text
end

-- --- tensors ------------------------------------------------------------------------------------------
local function tensor_text(t)
  local text = tostring(t)
  local ok, size = pcall(function() return t.size end) -- a freed one has none
  if not ok or size == 0 or not text:find('...', 1, true) then return text end
  if size > MOST_ELEMENTS then return text .. '\nmin, mean and max: t:min(), t:mean(), t:max()' end
  local function number(x) return math.type(x) == 'integer' and tostring(x) or ('%.5g'):format(x) end
  return ('%s\nmin %s, mean %s, max %s'):format(text, number(t:min()), number(t:mean()), number(t:max()))
end

-- --- tables -------------------------------------------------------------------------------------------
-- The keys besides 1 .. from, sorted unless they are very many; and how many there are.
local function sorted_keys(t, from, limit)
  local keys, count = {}, 0
  for key in next, t do
    if not (math.type(key) == 'integer' and key >= 1 and key <= from) then
      count = count + 1
      if count <= limit then keys[count] = key end
    end
  end
  table.sort(keys, function(a, b)
    if type(a) == type(b) and (type(a) == 'number' or type(a) == 'string') then return a < b end
    return type(a) < type(b)
  end)
  return keys, count
end

local table_text

-- A value inside a table.
local function inner(value, limits, columns, seen, depth)
  if type(value) == 'string' then return shorten(quoted(value), limits.word) end
  if is_plain(value) then
    if next(value) == nil then return '{}' end
    if seen[value] or depth >= limits.depth then return '{...}' end
    return table_text(value, limits, columns, seen, depth)
  end
  local text = tostring(value)
  if kind_of(value) == 'kvlab.Tensor' then text = text:match('^%a+%d* {[^}]*}') or text end
  return shorten(terminal.visible(text:gsub('%s*\n%s*', ' ')), limits.word)
end

local function newlines(text) return select(2, text:gsub('\n', '')) end

function table_text(t, limits, columns, seen, depth)
  seen[t] = true
  local count = rawlen(t)
  local keys, others = sorted_keys(t, count, limits.sorted)
  local entries, wide, widest, several = {}, 2, 0, false
  local function add(name, value)
    local text = name .. inner(value, limits, columns - 2 - #name, seen, depth + 1)
    entries[#entries + 1] = text
    several = several or text:find('\n', 1, true) ~= nil
    wide, widest = wide + terminal.width(text) + 2, math.max(widest, terminal.width(text))
  end
  local most = limits.entries // (depth + 1) -- deeper tables have fewer entries, so that the whole stays short
  for i = 1, count do
    if #entries >= most then break end
    add('', rawget(t, i))
  end
  for _, key in ipairs(keys) do
    if #entries >= most then break end
    local word = type(key) == 'string' and key:find('^[%a_][%w_]*$') and key
    add((word or '[' .. inner(key, BRIEF, columns, seen, BRIEF.depth) .. ']') .. ' = ', rawget(t, key))
  end
  seen[t] = nil
  local function with_more(shown)
    if count + others == shown then return entries end
    return table.move({ ('... (%d more)'):format(count + others - shown) }, 1, 1, shown + 1,
      table.move(entries, 1, shown, 1, {}))
  end
  local all = with_more(#entries)
  local rest = #all > #entries and #all[#all] + 2 or 0
  if not several and wide + rest - 2 <= columns then return '{' .. table.concat(all, ', ') .. '}' end
  if not several and others == 0 and widest <= SHORT then -- a list of short ones: several in a line
    local lines = terminal.wrap(table.concat(entries, ', '), columns - 1, '  ')
    return ('{\n%s%s\n}'):format(table.concat(lines, '\n'), rest > 0 and ',\n  ' .. all[#all] or '')
  end
  local allowed, shown, used = limits.lines // (depth == 0 and 1 or 4), 0, 2
  for _, entry in ipairs(entries) do
    used = used + 1 + newlines(entry)
    if used > allowed and shown > 0 then break end
    shown = shown + 1
  end
  for i = 1, #entries do entries[i] = '  ' .. entries[i]:gsub('\n', '\n  ') end
  return '{\n' .. table.concat(with_more(shown), ',\n'):gsub('\n%.%.%.', '\n  ...') .. '\n}'
end

-- --- whole values -------------------------------------------------------------------------------------
-- At most so many lines, and a note about the others.
local function cut_lines(text, most)
  local others = newlines(text) + 1 - most
  if others <= 2 then return text end
  local at = 0
  for _ = 1, most do at = text:find('\n', at + 1, true) end
  return ('%s\n... %d more lines; show(_) prints all'):format(text:sub(1, at - 1), others)
end

local function text_of(value, limits)
  if type(value) == 'string' then return terminal.visible(value) end
  if kind_of(value) == 'kvlab.Tensor' then return tensor_text(value) end
  if not is_plain(value) then return terminal.visible(tostring(value)) end
  return next(value) == nil and '{}' or table_text(value, limits, terminal.columns() - 1, {}, 0)
end

-- all(value) -> text; show(...): prints it.
function preview.all(value) return text_of(value, ALL) end

function preview.show(...)
  local values = table.pack(...)
  for i = 1, values.n do io.stdout:write(terminal.fit(preview.all(values[i])), '\n') end
end

function preview.brief(value)
  local raw = type(value) == 'string' and value or nil
  if raw and #raw > BRIEF.text then -- before anything looks at all of a text of gigabytes
    return ('%s\n... (%d bytes in all); show(_) prints all'):format(cut_lines(
      terminal.visible(raw:sub(1, utf8.offset(raw, 0, BRIEF.text) - 1)), BRIEF.lines), #raw)
  end
  local text = cut_lines(text_of(value, BRIEF), BRIEF.lines)
  if #text <= 2 * BRIEF.text then return text end
  return ('%s\n... (%d bytes in all); show(_) prints all'):format(text:sub(1, BRIEF.text), #text)
end

return setmetatable(preview, { __call = function(_, value) return preview.brief(value) end })
