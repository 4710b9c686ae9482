-- format.lua: numbers and tables as people read them. Plain text, no colour.
local exact = require 'kvlab.exact'

local format = {}

-- 1234567 -> 1,234,567; exact fractions as decimals with up to `places` digits after the point.
function format.number(x, places)
  if exact.is(x) then x = x:is_whole() and tostring(x) or x:tonumber() end
  local text
  if type(x) == 'string' then text = x
  elseif math.type(x) == 'integer' then text = tostring(x)
  elseif x ~= x or x == math.huge or x == -math.huge then return tostring(x)
  else
    text = ('%.' .. (places or 2) .. 'f'):format(x)
    if text:find('%.') then text = text:gsub('0+$', ''):gsub('%.$', '') end
  end
  local sign, whole, rest = text:match('^(%-?)(%d+)(.*)$')
  whole = whole:reverse():gsub('(%d%d%d)', '%1,'):reverse():gsub('^,', '')
  return sign .. whole .. rest
end

local UNITS = { { 1e18, 'EB' }, { 1e15, 'PB' }, { 1e12, 'TB' }, { 1e9, 'GB' }, { 1e6, 'MB' }, { 1e3, 'kB' } }

-- 2703360 -> '2.70 MB' (decimal units, as the article uses); below 1,000 'N B'.
function format.bytes(x)
  local value = exact.is(x) and x:tonumber() or x
  for _, unit in ipairs(UNITS) do
    if value >= unit[1] * 0.9995 then
      local scaled = value / unit[1]
      return ('%.' .. (scaled >= 100 and 0 or scaled >= 10 and 1 or 2) .. 'f %s'):format(scaled, unit[2])
    end
  end
  return format.number(value) .. ' B'
end

-- A ratio as a person says it: 4418 -> '4,418', 1.25 -> '1.25'.
function format.ratio(x)
  local value = exact.is(x) and x:tonumber() or x
  return format.number(value, value >= 100 and 0 or value >= 10 and 1 or 3)
end

function format.percent(part, whole)
  if whole:is_zero() then return '-' end
  return ('%.1f %%'):format((part / whole):tonumber() * 100)
end

-- The display width of a text: characters, not bytes.
local function width(text) return utf8.len(text) or #text end

-- table(rows [, align]) -> lines. A row is a list of texts; align[i] is 'l' or 'r' (default r, first column l).
function format.table(rows, align)
  align = align or {}
  local widths = {}
  for _, row in ipairs(rows) do
    for i, cell in ipairs(row) do widths[i] = math.max(widths[i] or 0, width(cell)) end
  end
  local lines = {}
  for _, row in ipairs(rows) do
    local parts = {}
    for i, cell in ipairs(row) do
      local pad = (' '):rep(widths[i] - width(cell))
      local left = (align[i] or (i == 1 and 'l' or 'r')) == 'l'
      parts[i] = left and cell .. pad or pad .. cell
    end
    lines[#lines + 1] = (table.concat(parts, '  '):gsub('%s+$', ''))
  end
  return lines
end

return format
