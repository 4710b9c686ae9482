-- plot/line.lua: lines and points over two axes.
local axis = require 'kvlab.plot.axis'
local figures = require 'kvlab.plot.figures'
local gnuplot = require 'kvlab.plot.gnuplot'
local opts = require 'kvlab.options'
local screen = require 'kvlab.plot.screen'

local problem, finite = screen.problem, screen.finite

local OPTIONS = { 'title', 'x', 'y', 'scale', 'xscale', 'series', 'from', 'upto', 'width', 'height', 'ascii', 'note',
  'file' }
local FIELDS = { 'x', 'error', 'style', 'mark' }
local STYLES = { 'line', 'points', 'path' } -- a path is a line without marks

-- A shape for each series; letters when there are more.
local MARKS = { utf8 = { '●', '○', '▲', '△', '■', '□', '◆', '◇' }, ascii = { '*', 'o', '+', 'x', '#', '@', '%', '=' } }

-- --- the data ---------------------------------------------------------------------------------------------------

local function number(value, where)
  if type(value) ~= 'number' then problem(where, 'expected a number, got %s', tostring(value)) end
  return value + 0.0
end

-- The ends of the error bar of point i at y.
local function bar_of(errors, i, y, where)
  local e = errors and errors[i]
  if e == nil then return nil end
  if type(e) == 'table' then
    local low, high = number(e[1], where), number(e[2], where)
    if low > high then problem(where, '{ %g, %g }: expected { low, high }', low, high) end
    return low, high
  end
  e = number(e, where)
  if e < 0 then problem(where, '%g: expected 0 or more, or { low, high }', e) end
  return y - e, y + e
end

local function points_of(one, where)
  local data, rank = screen.list(one[2])
  if type(data) ~= 'table' then
    problem(where, 'expected a list of { x, y }, a list of y or a tensor, got %s', tostring(data))
  end
  if rank and (rank > 2 or rank == 2 and #data > 0 and #data[1] ~= 2) then
    problem(where, 'expected a tensor {n} of y or {n, 2} of x and y')
  end
  local xs, errors = screen.list(one.x), screen.list(one.error)
  for what, list in pairs { x = xs, error = errors } do
    if type(list) ~= 'table' then problem(where .. ': ' .. what, 'expected a list, got %s', tostring(list)) end
    if #list ~= #data then problem(where .. ': ' .. what, '%d values for %d points', #list, #data) end
  end
  local points = {}
  for i, given in ipairs(data) do
    local at = ('%s, point %d'):format(where, i)
    local x, y
    if type(given) == 'table' then
      x, y = number(given[1], at), number(given[2], at)
    else
      x, y = number(xs and xs[i] or i, at), number(given, at)
    end
    local low, high = bar_of(errors, i, y, at .. ': error')
    points[i] = { x, y, low, high }
  end
  return points
end

-- The series with their points, and notes about what cannot be drawn.
local function read(o)
  if type(o.series) ~= 'table' or #o.series == 0 then
    problem('plot.line', "series is empty; expected { { 'name', { { x, y }, ... } }, ... }")
  end
  local list, lost = {}, { log = 0, other = 0 }
  for i, one in ipairs(o.series) do
    local where = ('plot.line: series %d'):format(i)
    if type(one) ~= 'table' or one[2] == nil then problem(where, "expected { 'name', points }") end
    local fields = {}
    for key, value in pairs(one) do
      if math.type(key) ~= 'integer' then fields[key] = value end
    end
    opts.check(fields, FIELDS, where, 'field')
    local name = screen.clean(one[1] or i)
    local series = { name = name, style = opts.word(one.style or 'line', STYLES, where .. ': style'), points = {},
      mark = one.mark and screen.clean(one.mark) }
    for _, p in ipairs(points_of(one, ('%s (%s)'):format(where, name))) do
      if not finite(p[1]) or not finite(p[2]) then
        lost.other = lost.other + 1
        p = false -- a gap
      elseif o.scale == 'log' and p[2] <= 0 or o.xscale == 'log' and p[1] <= 0 then
        lost.log = lost.log + 1
        p = false
      elseif p[3] and not (finite(p[3]) and finite(p[4])) then
        p[3], p[4] = nil, nil
      end
      series.points[#series.points + 1] = p
    end
    list[i] = series
  end
  local notes = {}
  local function note(n, why)
    if n > 0 then notes[#notes + 1] = ('%d %s not drawn: %s'):format(n, n == 1 and 'point is' or 'points are', why) end
  end
  note(lost.other, 'nan or infinite')
  note(lost.log, 'at 0 or below, which a log scale does not have')
  return list, notes
end

local function each_point(list, f)
  for _, series in ipairs(list) do
    for _, p in ipairs(series.points) do
      if p then f(p, series) end
    end
  end
end

-- The axes that hold all points and error bars.
local function axes(list, o)
  local low, high = { math.huge, math.huge }, { -math.huge, -math.huge }
  local function add(k, value)
    if value and finite(value) and (value > 0 or (k == 1 and o.xscale or k == 2 and o.scale) ~= 'log') then
      low[k], high[k] = math.min(low[k], value), math.max(high[k], value)
    end
  end
  local whole = true
  each_point(list, function(p)
    add(1, p[1])
    whole = whole and p[1] == math.floor(p[1])
    for k = 2, 4 do add(2, p[k]) end
  end)
  if low[1] > high[1] then problem('plot.line', 'no series has a point that can be drawn') end
  add(2, o.from)
  add(2, o.upto)
  return axis.new { low = low[1], high = high[1], scale = o.xscale, label = o.x and screen.clean(o.x), whole = whole,
    ends = 'exact' },
    axis.new { low = low[2], high = high[2], scale = o.scale, label = o.y and screen.clean(o.y) }
end

-- --- text --------------------------------------------------------------------------------------------------------

-- A grid of characters; what has the higher rank stays.
local function new_grid(width, height)
  local grid = { width = width, height = height, rank = {}, owner = {} }
  function grid:put(column, row, char, rank, owner)
    if column < 0 or column >= width or row < 0 or row >= height then return end
    local at = row * width + column
    if (self.rank[at] or 0) > rank then return end
    if rank == 3 and self.rank[at] == 3 and self.owner[at] ~= owner then
      char, self.shared = self.both, true
    end
    self[at], self.rank[at], self.owner[at] = char, rank, owner
  end
  return grid
end

-- The cells between two cells, without these.
local function between(grid, c0, r0, c1, r1, char, owner)
  local steps = math.max(math.abs(c1 - c0), math.abs(r1 - r0))
  for s = 1, steps - 1 do
    grid:put(math.floor(c0 + (c1 - c0) * s / steps + 0.5), math.floor(r0 + (r1 - r0) * s / steps + 0.5), char, 2, owner)
  end
end

local function draw(grid, series, x, y, chars)
  local function place(value, along, cells)
    return math.floor(math.max(0, math.min(1, along:at(value))) * (cells - 1) + 0.5)
  end
  local before
  for _, p in ipairs(series.points) do
    if p then
      local c, r = place(p[1], x, grid.width), place(p[2], y, grid.height)
      if p[3] then
        local low = p[3] > 0 or y.scale ~= 'log'
        for row = low and place(p[3], y, grid.height) or 0, place(p[4], y, grid.height) do
          grid:put(c, row, chars.error, 1, series)
        end
      end
      if before and series.style ~= 'points' then between(grid, before[1], before[2], c, r, chars.line, series) end
      if series.style == 'path' then grid:put(c, r, chars.line, 2, series) end
      if series.style ~= 'path' then grid:put(c, r, series.mark, 3, series) end
      before = { c, r }
    else
      before = nil
    end
  end
end

local function text(o, list, notes, x, y)
  local ascii = screen.ascii(o.ascii)
  local marks = MARKS[ascii and 'ascii' or 'utf8']
  local chars = { line = ascii and '.' or '·', error = ascii and ':' or '┊' }
  for i, series in ipairs(list) do
    local mark = series.mark or marks[i] or string.char(97 + (i - #marks - 1) % 26)
    series.mark = series.style == 'path' and chars.line or screen.cut(mark, 1)
  end
  local total = screen.size(o.width, math.min(screen.columns(), 100), 20, 1000, 'plot.line: width')
  local height = screen.size(o.height, 16, 3, 200, 'plot.line: height')
  local yticks, ypower = y:ticks(math.max(2, height // 4))
  local labels, by_row = 0, {}
  for _, tick in ipairs(yticks) do
    by_row[math.floor(y:at(tick[1]) * (height - 1) + 0.5)] = tick[2]
    labels = math.max(labels, screen.width(tick[2]))
  end
  local width = math.max(8, total - labels - 4)
  local grid = new_grid(width, height)
  grid.both = ascii and '&' or '◉'
  for i = #list, 1, -1 do draw(grid, list[i], x, y, chars) end

  local lines = {}
  if o.title then lines = screen.words(screen.clean(o.title), total) end
  local caption = y:caption(ypower)
  if caption ~= '' then lines[#lines + 1] = screen.cut('  ' .. caption, total) end
  for row = height - 1, 0, -1 do
    local cells = {}
    for column = 0, width - 1 do cells[column + 1] = grid[row * width + column] or ' ' end
    local label = by_row[row]
    lines[#lines + 1] = ('  %s %s%s'):format(screen.pad(label or '', labels, true), label and '+' or '|',
      table.concat(cells):gsub('%s+$', ''))
  end
  local pad = (' '):rep(labels + 3)
  local xticks, xpower = x:ticks(math.max(2, width // 12))
  lines[#lines + 1] = pad .. '+' .. ('-'):rep(width)
  lines[#lines + 1] = pad .. ' ' .. x:tick_line(xticks, width)
  caption = x:caption(xpower)
  if caption ~= '' then lines[#lines + 1] = screen.cut(pad .. ' ' .. caption, total) end
  local legend = {}
  for i, series in ipairs(list) do legend[i] = ('%s %s'):format(series.mark, series.name) end
  if grid.shared then legend[#legend + 1] = grid.both .. ' several' end
  for _, line in ipairs(screen.wrap(legend, total, pad .. ' ')) do lines[#lines + 1] = line end
  for _, note in ipairs(notes) do
    for _, line in ipairs(screen.words(note, total - #pad - 1)) do lines[#lines + 1] = pad .. ' ' .. line end
  end
  return table.concat(lines, '\n')
end

-- line { title =, x =, y =, scale =, xscale =, series = { { name, points, error = }, ... }, file = } -> text, or file
local function line(o)
  opts.check(o or {}, OPTIONS, 'plot.line', 'option')
  o = o or {}
  gnuplot.check_file(o.file, 'plot.line')
  for _, key in ipairs { 'scale', 'xscale' } do
    opts.word(o[key] or 'linear', { 'linear', 'log' }, 'plot.line: ' .. key)
  end
  local list, notes = read(o)
  local x, y = axes(list, o)
  if o.note then notes[#notes + 1] = screen.clean(o.note) end
  if o.file then return figures.line(o, list, notes, x, y) end
  return text(o, list, notes, x, y)
end

return line
