-- plot/bars.lua: horizontal bars, split into parts.
local format = require 'kvlab.format'
local opts = require 'kvlab.options'
local screen = require 'kvlab.plot.screen'

-- The fill of each part of a bar, told apart by shape.
local FILLS = { utf8 = { '█', '▒', '▚', '·' }, ascii = { '#', '=', '+', '.' } }

local BAR_OPTIONS = { 'title', 'unit', 'rows', 'scale', 'parts', 'width', 'ascii', 'from', 'upto' }

-- bars { title =, unit =, scale = 'linear' | 'log', parts = { 'KV', 'search keys' }, rows = { row, ... } } -> text
-- A row: { label, value or { part values }, text = what stands after the bar, note = a line below, mark = true }.
-- On a log scale the length of a bar is its total; the parts split that length by their true ratio, because
-- logarithms cannot be stacked. from and upto widen the axis, so that several pictures can share one.
local function bars(given)
  local o = opts.check(given, BAR_OPTIONS, 'plot.bars', 'option')
  local scale = o.scale or 'linear'
  if scale ~= 'linear' and scale ~= 'log' then
    error(("plot.bars: scale = %s: expected linear or log"):format(tostring(scale)), 0)
  end
  local rows, width = o.rows or {}, o.width or 50
  if #rows == 0 then error('plot.bars: rows is empty; expected { label, value } for each bar', 0) end
  local fills = FILLS[screen.ascii(o.ascii) and 'ascii' or 'utf8']

  local totals, labels, low, high = {}, 0, math.huge, 0
  for i, row in ipairs(rows) do
    local sum = 0
    for _, part in ipairs(type(row[2]) == 'table' and row[2] or { row[2] }) do
      if type(part) ~= 'number' or part ~= part or part < 0 or part == math.huge then
        error(('plot.bars: row %d (%s): expected values of 0 or more, got %s'):format(i, tostring(row[1]),
          tostring(part)), 0)
      end
      sum = sum + part
    end
    totals[i] = sum
    labels = math.max(labels, utf8.len(row[1]) or #row[1])
    if sum > 0 then low = math.min(low, sum) end
    high = math.max(high, sum)
  end
  if o.from and o.from > 0 then low = math.min(low, o.from) end
  if o.upto then high = math.max(high, o.upto) end

  -- A log axis starts at the power of ten below the smallest bar, so that no bar vanishes.
  local first, last = 0, high
  if scale == 'log' then
    first = low < math.huge and math.floor(math.log(low, 10) + 1e-12) or 0
    last = math.max(first + 1, math.ceil(math.log(math.max(high, 1e-300), 10) - 1e-12))
  end
  local function cells(total)
    if total <= 0 then return 0 end
    local share = scale == 'log' and (math.log(total, 10) - first) / (last - first) or total / last
    return math.max(1, math.floor(share * width + 0.5))
  end

  local lines = {}
  if o.title then lines[1] = o.title end
  local pad = (' '):rep(labels + 3)
  for i, row in ipairs(rows) do
    local length = cells(totals[i])
    local parts = type(row[2]) == 'table' and row[2] or { row[2] }
    local bar, drawn, sum = {}, 0, 0
    for k, part in ipairs(parts) do
      sum = sum + part
      local upto = totals[i] > 0 and math.floor(length * sum / totals[i] + 0.5) or 0
      -- A part that is there is seen, if only as one cell.
      if part > 0 and upto == drawn and upto < length then upto = upto + 1 end
      bar[k] = fills[(k - 1) % #fills + 1]:rep(upto - drawn)
      drawn = upto
    end
    local label = row[1] .. (' '):rep(labels - (utf8.len(row[1]) or #row[1]))
    lines[#lines + 1] = ('%s %s |%s %s'):format(row.mark and '>' or ' ', label, table.concat(bar),
      row.text or format.number(totals[i]))
    for line in (row.note or ''):gmatch('[^\n]+') do lines[#lines + 1] = pad .. '|  ' .. line end
  end

  local axis = { pad, '+', ('-'):rep(width) }
  local ticks = (' '):rep(width + 12)
  local function tick(at, text)
    ticks = ticks:sub(1, at) .. text .. ticks:sub(at + #text + 1)
  end
  if scale == 'log' then
    local step = math.max(1, math.ceil((last - first) * 7 / width))
    for power = first, last, step do
      tick(math.floor((power - first) / (last - first) * width + 0.5), ('10^%d'):format(power))
    end
  else
    tick(0, '0')
    tick(width - 2, format.number(last, 3))
  end
  lines[#lines + 1] = table.concat(axis)
  lines[#lines + 1] = (pad .. ' ' .. ticks):gsub('%s+$', '')
  lines[#lines + 1] = ('%s %s%s'):format(pad, o.unit or '',
    scale == 'log' and ', log scale: equal steps are equal ratios' or '')
  if o.parts then
    local legend = {}
    for k, name in ipairs(o.parts) do legend[k] = ('%s %s'):format(fills[(k - 1) % #fills + 1]:rep(2), name) end
    lines[#lines + 1] = ('%s %s; a bar is split by the true ratio of its parts'):format(pad, table.concat(legend, '  '))
  end
  return table.concat(lines, '\n')
end

return bars
