-- plot/heat.lua: a matrix as shades: a row of characters for each row, from light to dark.
local axis = require 'kvlab.plot.axis'
local figures = require 'kvlab.plot.figures'
local gnuplot = require 'kvlab.plot.gnuplot'
local opts = require 'kvlab.options'
local screen = require 'kvlab.plot.screen'

local problem, finite = screen.problem, screen.finite

local OPTIONS = { 'title', 'x', 'y', 'values', 'rows', 'columns', 'unit', 'scale', 'from', 'upto', 'digits', 'marks',
  'legend', 'width', 'height', 'ascii', 'note', 'file' }

-- From light to dark; a blank is no value.
local RAMPS = { utf8 = { '·', '░', '▒', '▓', '█' }, ascii = { '.', ':', '-', '=', '+', '*', '#', '%', '@' } }
local DIGITS = { '0', '1', '2', '3', '4', '5', '6', '7', '8', '9' }

-- --- the data ---------------------------------------------------------------------------------------------------

local function matrix(value)
  local rows, rank = screen.list(value)
  if rank and rank ~= 2 then problem('plot.heat: values', 'expected a tensor {rows, columns}, got rank %d', rank) end
  if type(rows) ~= 'table' or type(rows[1]) ~= 'table' or #rows[1] == 0 then
    problem('plot.heat: values', 'expected a tensor {rows, columns} or a list of lists, got %s',
      type(rows) == 'table' and 'nothing in it' or tostring(rows))
  end
  for i, row in ipairs(rows) do
    if type(row) ~= 'table' or #row ~= #rows[1] then
      problem('plot.heat: values', 'row %d has %s values, the first one %d', i,
        type(row) == 'table' and #row or 'no list of', #rows[1])
    end
    for k = 1, #row do
      if type(row[k]) ~= 'number' then
        problem('plot.heat: values', 'row %d, column %d: expected a number, got %s', i, k, tostring(row[k]))
      end
    end
  end
  return rows
end

local function labels(list, count, what)
  if list == nil then return nil end
  if type(list) ~= 'table' or #list ~= count then
    problem('plot.heat: ' .. what, 'expected a list of %d labels, got %s', count,
      type(list) == 'table' and #list or tostring(list))
  end
  local out = {}
  for i, label in ipairs(list) do out[i] = screen.clean(label) end
  return out
end

-- The range of the shades.
local function range(rows, o)
  local low, high = math.huge, -math.huge
  for _, row in ipairs(rows) do
    for _, x in ipairs(row) do
      if finite(x) and (o.scale ~= 'log' or x > 0) then low, high = math.min(low, x), math.max(high, x) end
    end
  end
  low, high = o.from or low, o.upto or high
  if type(low) ~= 'number' or type(high) ~= 'number' or not finite(low) or not finite(high) then
    if o.from or o.upto then problem('plot.heat', 'from and upto: expected finite numbers') end
    low, high = o.scale == 'log' and 1 or 0, 1 -- nothing to show: all blank
  end
  if low > high then problem('plot.heat', 'from = %g is above upto = %g', low, high) end
  if o.scale == 'log' and low <= 0 then problem('plot.heat', 'from = %g: expected more than 0 on a log scale', low) end
  return axis.new { low = low, high = high, scale = o.scale, label = o.unit and screen.clean(o.unit), ends = 'exact' }
end

-- Every n-th label, those of the first rows or columns of blocks.
local function thinned(list, n)
  local out = {}
  for i = 1, list and #list or 0, n do out[#out + 1] = list[i] end
  return list and out
end

local function marks_of(list, rows)
  local out = {}
  for i, mark in ipairs(list or {}) do
    local r, c = math.tointeger(mark[1]), math.tointeger(mark[2])
    if not r or not c or not rows[r] or c < 1 or c > #rows[1] then
      problem('plot.heat: marks', 'mark %d: expected { row, column, character } inside %d x %d', i, #rows, #rows[1])
    end
    out[i] = { r, c, screen.cut(screen.clean(mark[3] or 'x'), 1) }
  end
  return out
end

local function legend_of(list)
  local out = {}
  for i, one in ipairs(list or {}) do out[i] = ('%s %s'):format(screen.clean(one[1]), screen.clean(one[2])) end
  return out
end

-- --- text --------------------------------------------------------------------------------------------------------

-- binned(rows, down, across) -> the means of blocks of down x across values; a block without a value is nan.
local function binned(rows, down, across)
  if down == 1 and across == 1 then return rows end
  local out = {}
  for i, row in ipairs(rows) do
    local line = out[(i - 1) // down + 1] or {}
    out[(i - 1) // down + 1] = line
    for k, x in ipairs(row) do
      local at = (k - 1) // across + 1
      line[at] = line[at] or { 0.0, 0 }
      if finite(x) then line[at][1], line[at][2] = line[at][1] + x, line[at][2] + 1 end
    end
  end
  for _, line in ipairs(out) do
    for k, sum in ipairs(line) do line[k] = sum[1] / sum[2] end
  end
  return out
end

-- The labels of columns under their cells, as many as fit; of numbered ones a few.
local function column_line(columns, count, across, cell, cells)
  local line, free, step = '', 0, 1
  if not columns then
    while step * cell < #tostring(count) + 1 do step = step == 1 and 5 or step * 2 end
  end
  for at = 1, cells do
    local first = (at - 1) * across + 1
    local round = across == 1 and at % step == 0 or across > 1 and (at - 1) % step == 0
    local label = columns and columns[first] or tostring(first)
    local start = (at - 1) * cell
    if (columns or at == 1 or round) and start >= free then
      line = screen.pad(line, start) .. label
      free = start + screen.width(label) + 1
    end
  end
  return line
end

-- What the shades mean.
local function shade_legend(o, ramp, shades)
  local function value(place) return ('%.3g'):format(shades:value(place)) end
  local unit = (shades.label ~= '' and ' ' .. shades.label or '') .. (shades.scale == 'log' and ', log scale' or '')
  if o.digits then return { ('0 to 9: %s to %s%s, in ten equal steps'):format(value(0), value(1), unit) } end
  local parts = { 'from' }
  for i, char in ipairs(ramp) do parts[i + 1] = ('%s %s'):format(char, value((i - 1) / #ramp)) end
  parts[#parts] = ('%s to %s%s'):format(parts[#parts], value(1), unit)
  return parts
end

-- How many characters a cell is wide: two look square; labels want room.
local function cell_width(columns, cells, room)
  local cell = 2
  for _, label in ipairs(columns or {}) do cell = math.max(cell, screen.width(label) + 1) end
  while cell > 1 and cell * cells > room do cell = cell - 1 end
  return cell
end

local function text(o, rows, shades, row_labels, columns, marks)
  local ascii = screen.ascii(o.ascii)
  local ramp = o.digits and DIGITS or RAMPS[ascii and 'ascii' or 'utf8']
  local total = screen.size(o.width, math.min(screen.columns(), 160), 20, 1000, 'plot.heat: width')
  local height = screen.size(o.height, 40, 1, 1000, 'plot.heat: height')
  local count = #rows[1]
  local pad = #tostring(#rows)
  for _, label in ipairs(row_labels or {}) do pad = math.max(pad, screen.width(label)) end
  pad = math.min(pad, total // 3)
  local room = total - pad - 5
  local down, across = math.ceil(#rows / height), math.ceil(count / room)
  local means = binned(rows, down, across)
  local cells = #means[1]
  local cell = across == 1 and cell_width(columns, cells, room) or 1
  if across > 1 or down > 1 then shades = range(means, o) end
  local on = {}
  for _, mark in ipairs(marks) do
    on[((mark[1] - 1) // down) * cells + (mark[2] - 1) // across + 1] = mark[3]
  end

  local lines, blank, outside = {}, false, false
  if o.title then lines = screen.words(screen.clean(o.title), total) end
  if o.y then lines[#lines + 1] = screen.cut('  ' .. screen.clean(o.y), total) end
  for i, row in ipairs(means) do
    local out = {}
    for k, x in ipairs(row) do
      local char = ' '
      if finite(x) and (shades.scale ~= 'log' or x > 0) then
        local place = shades:at(x)
        outside = outside or place < -1e-9 or place > 1 + 1e-9
        char = ramp[math.max(1, math.min(#ramp, math.floor(place * #ramp) + 1))]
      else
        blank = true
      end
      local mark = on[(i - 1) * cells + k]
      out[k] = mark and mark .. char:rep(cell - 1) or char:rep(cell)
    end
    local first = (i - 1) * down + 1
    local label = row_labels and row_labels[first] or tostring(first)
    lines[#lines + 1] = ('  %s |%s|'):format(screen.pad(screen.cut(label, pad), pad, not row_labels), table.concat(out))
  end
  local indent = (' '):rep(pad + 4)
  lines[#lines + 1] = indent:sub(1, -2) .. '+' .. ('-'):rep(cells * cell) .. '+'
  lines[#lines + 1] = (indent .. column_line(columns, count, across, cell, cells)):gsub('%s+$', '')
  if o.x then lines[#lines + 1] = screen.cut(indent .. screen.clean(o.x), total) end
  local function add(parts)
    for _, line in ipairs(screen.wrap(parts, total, indent)) do lines[#lines + 1] = line end
  end
  add(shade_legend(o, ramp, shades))
  local legend = legend_of(o.legend)
  if blank then legend[#legend + 1] = 'blank: no value' end
  if outside then legend[#legend + 1] = 'values outside are shown as the nearest shade' end
  if #legend > 0 then add(legend) end
  local binned_note = ('a character is the mean of %d x %d values'):format(down, across)
  local notes = { (down > 1 or across > 1) and binned_note or nil }
  if o.note then notes[#notes + 1] = screen.clean(o.note) end
  for _, note in ipairs(notes) do
    for _, line in ipairs(screen.words(note, total - #indent)) do lines[#lines + 1] = indent .. line end
  end
  return table.concat(lines, '\n')
end

-- --- a file -------------------------------------------------------------------------------------------------------

local LARGEST <const> = 160 -- cells of a side

local function file(o, rows, shades, row_labels, columns, marks)
  local down, across = math.ceil(#rows / LARGEST), math.ceil(#rows[1] / LARGEST)
  local notes, legend = {}, legend_of(o.legend)
  for _, row in ipairs(rows) do
    for _, x in ipairs(row) do
      if not finite(x) then legend.blank = 'white: no value' end
    end
  end
  legend[#legend + 1], legend.blank = legend.blank, nil
  if down > 1 or across > 1 then
    notes[1] = ('a cell is the mean of %d x %d values'):format(down, across)
    row_labels, columns = thinned(row_labels, down), thinned(columns, across)
    rows = binned(rows, down, across)
    shades = range(rows, o)
    for _, mark in ipairs(marks) do mark[1], mark[2] = (mark[1] - 1) // down + 1, (mark[2] - 1) // across + 1 end
  end
  if o.note then notes[#notes + 1] = screen.clean(o.note) end
  return figures.heat(o, rows, shades, { down, across }, row_labels, columns, marks, legend, notes)
end

-- heat { title =, x =, y =, values =, rows =, columns =, from =, upto =, digits =, marks =, file = } -> text, or file
local function heat(o)
  opts.check(o or {}, OPTIONS, 'plot.heat', 'option')
  o = o or {}
  gnuplot.check_file(o.file, 'plot.heat')
  opts.word(o.scale or 'linear', { 'linear', 'log' }, 'plot.heat: scale')
  local rows = matrix(o.values)
  local shades = range(rows, o)
  local row_labels, columns = labels(o.rows, #rows, 'rows'), labels(o.columns, #rows[1], 'columns')
  local marks = marks_of(o.marks, rows)
  if o.file then return file(o, rows, shades, row_labels, columns, marks) end
  return text(o, rows, shades, row_labels, columns, marks)
end

return heat
