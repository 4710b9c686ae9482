-- plot/strip.lua: a row of characters for each layer, a column for each position; characters carry the meaning.
local figures = require 'kvlab.plot.figures'
local gnuplot = require 'kvlab.plot.gnuplot'
local opts = require 'kvlab.options'
local screen = require 'kvlab.plot.screen'

local problem = screen.problem

local OPTIONS = { 'title', 'x', 'rows', 'legend', 'from', 'width', 'ascii', 'note', 'file' }

-- --- the data ---------------------------------------------------------------------------------------------------

local function cells_of(value, where)
  local cells = {}
  if type(value) == 'string' then
    for _, code in utf8.codes(screen.clean(value)) do cells[#cells + 1] = utf8.char(code) end
    return cells
  end
  if type(value) ~= 'table' then
    problem(where, 'expected text or a list of characters, got %s', tostring(value))
  end
  for i = 1, #value do
    local cell = screen.clean(value[i])
    if screen.width(cell) ~= 1 then problem(where, "cell %d is '%s'; expected one character", i, cell) end
    cells[i] = cell
  end
  return cells
end

local function read(o)
  if type(o.rows) ~= 'table' or #o.rows == 0 then
    problem('plot.strip', "rows is empty; expected { { 'label', 'characters' }, ... }")
  end
  local rows, length = {}, 0
  for i, row in ipairs(o.rows) do
    local where = ('plot.strip: row %d'):format(i)
    if type(row) ~= 'table' then problem(where, "expected { 'label', 'characters' }, got %s", tostring(row)) end
    local label = screen.clean(row[1] or i)
    rows[i] = { label = label, cells = cells_of(row[2], ('%s (%s)'):format(where, label)) }
    length = math.max(length, #rows[i].cells)
  end
  local legend = {}
  for i, one in ipairs(o.legend or {}) do
    if type(one) ~= 'table' or type(one[1]) ~= 'string' or one[2] == nil then
      problem('plot.strip: legend', "entry %d: expected { 'char', 'meaning' }", i)
    end
    legend[i] = { screen.clean(one[1]), screen.clean(one[2]) }
  end
  local from = o.from or 1
  if math.type(from) ~= 'integer' then
    problem('plot.strip: from', 'expected a whole number, got %s', tostring(from))
  end
  return rows, legend, from, length
end

-- binned(rows, legend, every) -> rows in which a cell stands for `every`, and shows of them what comes first in the
-- legend; what is not in it comes last.
local function binned(rows, legend, every)
  if every == 1 then return rows end
  local order = {}
  for i, one in ipairs(legend) do order[one[1]] = order[one[1]] or i end
  local out = {}
  for i, row in ipairs(rows) do
    local cells = {}
    for k, char in ipairs(row.cells) do
      local at = (k - 1) // every + 1
      local rank = order[char] or (char == ' ' and math.huge or #legend + 1)
      if not cells[at] or rank < cells[at][2] then cells[at] = { char, rank } end
    end
    for k, best in ipairs(cells) do cells[k] = best[1] end
    out[i] = { label = row.label, cells = cells }
  end
  return out
end

-- --- text --------------------------------------------------------------------------------------------------------

-- The first position, and positions that are round.
local function ruler(from, length, every)
  local widest = #tostring(from + length * every)
  local line, free = '', 0
  local step = 10
  while step < widest + 2 do step = step * 2 end
  for at = 0, length - 1 do
    local position = from + at * every
    local round = every == 1 and position % step == 0 or every > 1 and at % step == 0
    if at == 0 or round then
      local label = tostring(position)
      if at >= free and at + #label <= math.max(length, #label) then
        line = screen.pad(line, at) .. label
        free = at + #label + 1
      end
    end
  end
  return line
end

local function bin_note(every)
  return ('a character stands for %d positions and shows which comes first in the legend'):format(every)
end

local function text(o, rows, legend, from, length)
  local total = screen.size(o.width, math.min(screen.columns(), 200), 20, 1000, 'plot.strip: width')
  local labels = 0
  for _, row in ipairs(rows) do labels = math.max(labels, screen.width(row.label)) end
  labels = math.min(labels, total // 3)
  local room = total - labels - 4
  local every = math.max(1, math.ceil(length / room))
  local shown = math.ceil(length / every)
  local lines = {}
  if o.title then lines = screen.words(screen.clean(o.title), total) end
  local indent = (' '):rep(labels + 3)
  lines[#lines + 1] = (indent .. ' ' .. ruler(from, shown, every)):gsub('%s+$', '')
  for _, row in ipairs(binned(rows, legend, every)) do
    lines[#lines + 1] = ('  %s |%s'):format(screen.pad(screen.cut(row.label, labels), labels), table.concat(row.cells))
  end
  if o.x then lines[#lines + 1] = screen.cut(indent .. ' ' .. screen.clean(o.x), total) end
  local parts = {}
  for i, one in ipairs(legend) do parts[i] = ('%s %s'):format(one[1] == ' ' and 'blank' or one[1], one[2]) end
  for _, line in ipairs(screen.wrap(parts, total, indent .. ' ')) do lines[#lines + 1] = line end
  local notes = { every > 1 and bin_note(every) or nil }
  if o.note then notes[#notes + 1] = screen.clean(o.note) end
  for _, note in ipairs(notes) do
    for _, line in ipairs(screen.words(note, total - #indent - 1)) do lines[#lines + 1] = indent .. ' ' .. line end
  end
  return table.concat(lines, '\n')
end

-- strip { title =, x =, rows = { { label, characters }, ... }, legend = { { char, meaning }, ... }, from =, file = }
-- -> text, or the file
local function strip(o)
  opts.check(o or {}, OPTIONS, 'plot.strip', 'option')
  o = o or {}
  gnuplot.check_file(o.file, 'plot.strip')
  local rows, legend, from, length = read(o)
  if o.file then
    local every = math.max(1, math.ceil(length / 120))
    local notes = { every > 1 and bin_note(every) or nil }
    if o.note then notes[#notes + 1] = screen.clean(o.note) end
    return figures.strip(o, binned(rows, legend, every), legend, from, every, notes)
  end
  return text(o, rows, legend, from, length)
end

return strip
