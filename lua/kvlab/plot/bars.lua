-- plot/bars.lua: horizontal bars, split into parts.
local axis = require 'kvlab.plot.axis'
local figures = require 'kvlab.plot.figures'
local format = require 'kvlab.format'
local gnuplot = require 'kvlab.plot.gnuplot'
local opts = require 'kvlab.options'
local screen = require 'kvlab.plot.screen'

local problem, finite = screen.problem, screen.finite

-- The fill of each part of a bar, told apart by shape.
local FILLS = { utf8 = { '█', '▒', '▚', '·' }, ascii = { '#', '=', '+', '.' } }

local OPTIONS = { 'title', 'unit', 'rows', 'scale', 'parts', 'width', 'ascii', 'from', 'upto', 'note', 'file' }

local LARGEST <const> = 1e290

-- --- the data ---------------------------------------------------------------------------------------------------

-- The rows as { label =, parts =, total =, text =, notes =, mark = }.
local function read(o)
  if type(o.rows) ~= 'table' or #o.rows == 0 then
    problem('plot.bars', 'rows is empty; expected { label, value } for each bar')
  end
  local rows = {}
  for i, given in ipairs(o.rows) do
    if type(given) ~= 'table' then problem('plot.bars', 'row %d: expected { label, value }', i) end
    local row = { label = screen.clean(given[1]), parts = {}, total = 0, mark = given.mark, notes = {} }
    local parts = screen.list(given[2])
    for k, part in ipairs(type(parts) == 'table' and parts or { parts == nil and 'nothing' or parts }) do
      if type(part) ~= 'number' or not finite(part) or part < 0 or part > LARGEST then
        problem('plot.bars', 'row %d (%s): expected values of 0 or more (to 1e290), got %s', i, row.label,
          tostring(part))
      end
      row.parts[k], row.total = part, row.total + part
    end
    row.text = given.text and screen.clean(given.text) or format.number(row.total)
    for line in (given.note or ''):gmatch('[^\n]+') do row.notes[#row.notes + 1] = screen.clean(line) end
    rows[i] = row
  end
  return rows
end

-- A log axis starts at the power of ten below the smallest bar, so that no bar vanishes.
local function axis_of(rows, o)
  local low, high = math.huge, 0
  local function add(x)
    if x > 0 then low = math.min(low, x) end
    high = math.max(high, x)
  end
  for _, row in ipairs(rows) do add(row.total) end
  for _, key in ipairs { 'from', 'upto' } do
    if o[key] then
      if type(o[key]) ~= 'number' or not finite(o[key]) then
        problem('plot.bars: ' .. key, 'expected a number, got %s', tostring(o[key]))
      end
      add(o[key])
    end
  end
  local label = o.unit and screen.clean(o.unit)
  if o.scale ~= 'log' then
    return axis.new { low = 0, high = high > 0 and high or 1, label = label, ends = 'exact' }
  end
  local first = low < math.huge and math.max(-290, math.floor(math.log(low, 10) + 1e-12)) or 0
  local last = math.max(first + 1, math.ceil(math.log(math.max(high, 1e-300), 10) - 1e-12))
  return axis.new { low = 10.0 ^ first, high = 10.0 ^ last, scale = 'log', label = label, ends = 'exact' }
end

-- --- text --------------------------------------------------------------------------------------------------------

-- The bar of a row as text: `length` cells, split by the ratio of its parts.
local function bar_text(row, length, fills)
  local bar, drawn, sum = {}, 0, 0
  for k, part in ipairs(row.parts) do
    sum = sum + part
    local upto = row.total > 0 and math.floor(length * sum / row.total + 0.5) or 0
    -- A part that is there is seen, if only as one cell.
    if part > 0 and upto == drawn and upto < length then upto = upto + 1 end
    bar[k] = fills[(k - 1) % #fills + 1]:rep(upto - drawn)
    drawn = upto
  end
  return table.concat(bar)
end

-- How many cells of `width` a bar has.
local function length_of(row, x, width)
  if row.total <= 0 then return 0 end
  return math.max(1, math.floor(x:at(row.total) * width + 0.5))
end

-- 50, or what the terminal has more; less when a line would not fit.
local function default_width(rows, x, labels)
  local columns = screen.columns()
  local width = math.min(100, math.max(50, columns - 30))
  local function fits()
    if labels + 4 + width > columns then return false end
    for _, row in ipairs(rows) do
      if labels + 5 + length_of(row, x, width) + screen.width(row.text) > columns then return false end
    end
    return true
  end
  while width > 10 and not fits() do width = width - 1 end
  return width
end

local function text(o, rows, x)
  local labels = 0
  for _, row in ipairs(rows) do labels = math.max(labels, screen.width(row.label)) end
  local width = screen.size(o.width, nil, 1, 1000, 'plot.bars: width') or default_width(rows, x, labels)
  local fills = FILLS[screen.ascii(o.ascii) and 'ascii' or 'utf8']
  local lines = { o.title and screen.clean(o.title) or nil }
  local pad = (' '):rep(labels + 3)
  for _, row in ipairs(rows) do
    lines[#lines + 1] = ('%s %s |%s %s'):format(row.mark and '>' or ' ', screen.pad(row.label, labels),
      bar_text(row, length_of(row, x, width), fills), row.text)
    for _, note in ipairs(row.notes) do lines[#lines + 1] = pad .. '|  ' .. note end
  end

  local ticks = (' '):rep(width + 12)
  local function tick(at, label) ticks = ticks:sub(1, at) .. label .. ticks:sub(at + #label + 1) end
  if x.scale == 'log' then
    local first, last = math.floor(math.log(x.low, 10) + 0.5), math.floor(math.log(x.high, 10) + 0.5)
    for power = first, last, math.max(1, math.ceil((last - first) * 7 / width)) do
      tick(math.floor((power - first) / (last - first) * width + 0.5), ('10^%d'):format(power))
    end
  else
    tick(0, '0')
    tick(width - 2, format.number(x.high, 3))
  end
  lines[#lines + 1] = pad .. '+' .. ('-'):rep(width)
  lines[#lines + 1] = (pad .. ' ' .. ticks):gsub('%s+$', '')
  lines[#lines + 1] = ('%s %s%s'):format(pad, x.label,
    x.scale == 'log' and ', log scale: equal steps are equal ratios' or '')
  if o.parts then
    local legend = {}
    for k, name in ipairs(o.parts) do
      legend[k] = ('%s %s'):format(fills[(k - 1) % #fills + 1]:rep(2), screen.clean(name))
    end
    lines[#lines + 1] = ('%s %s; a bar is split by the true ratio of its parts'):format(pad, table.concat(legend, '  '))
  end
  if o.note then lines[#lines + 1] = pad .. ' ' .. screen.clean(o.note) end
  return table.concat(lines, '\n')
end

-- --- a file -------------------------------------------------------------------------------------------------------

-- Where the parts of a bar begin and end, as values of the axis: they split its length by their ratio.
local function ends_of(row, x)
  local ends, sum = {}, 0
  local length = row.total > 0 and x:at(row.total) or 0
  for k, part in ipairs(row.parts) do
    local before = row.total > 0 and sum / row.total or 0
    sum = sum + part
    ends[k] = { x:value(length * before), x:value(row.total > 0 and length * sum / row.total or 0) }
  end
  return ends
end

local function file(o, rows, x)
  local list = {}
  for i, row in ipairs(rows) do
    list[i] = { label = (row.mark and '> ' or '') .. row.label, ends = ends_of(row, x), text = row.text,
      notes = row.notes }
  end
  return figures.bars(o, list, x)
end

-- bars { title =, unit =, scale = 'linear' | 'log', parts = { 'KV', 'search keys' }, rows = { row, ... } } -> text
-- A row: { label, value or { part values }, text = what stands after the bar, note = lines below, mark = true }.
-- On a log scale the length of a bar is its total; the parts split that length by their true ratio, because
-- logarithms cannot be stacked. from and upto widen the axis, so that several pictures can share one.
local function bars(o)
  opts.check(o or {}, OPTIONS, 'plot.bars', 'option')
  o = o or {}
  gnuplot.check_file(o.file, 'plot.bars')
  opts.word(o.scale or 'linear', { 'linear', 'log' }, 'plot.bars: scale')
  local rows = read(o)
  local x = axis_of(rows, o)
  if o.file then return file(o, rows, x) end
  return text(o, rows, x)
end

return bars
