-- plot/figures.lua: what the pictures of text show, as scripts for gnuplot. Series differ by shape, hatching or a
-- character, and by colours that the colour-blind can tell apart as well.
local gnuplot = require 'kvlab.plot.gnuplot'
local screen = require 'kvlab.plot.screen'

local quote, number, block = gnuplot.quote, gnuplot.number, gnuplot.block

local figures = {}

local COLOURS = { '#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#000000' }
local TINTS = { '#9ecae1', '#fdd49e', '#a1d99b', '#d4b9da', '#fcbba1', '#ffeda0', '#cccccc' }
local QUIET = { [' '] = 'white', ['.'] = '#eeeeee' } -- characters of a strip that say: nothing here
local SHAPES = { 7, 5, 9, 11, 13, 6, 4, 8, 10, 12 } -- filled, then open
local DENSE <const> = 40 -- points from which error bars become a band
local NAME <const> = 90 -- characters in the key
local PAGE <const> = 900 -- pixels

local function turn(list, i) return list[(i - 1) % #list + 1] end

-- Labels of ticks are formats to gnuplot.
local function ticks_list(ticks, most)
  local out = {}
  for i, tick in ipairs(ticks) do
    local label = screen.cut(tick[2], most or 40)
    out[i] = ('%s %s'):format(quote((label:gsub('%%', '%%%%'))), number(tick[1]))
  end
  return '(' .. table.concat(out, ', ') .. ')'
end

local function add(lines, more) table.move(more, 1, #more, #lines + 1, lines) end

-- add_axis(lines, name, axis, count) -> its caption. `name` is x, y or cb.
local function add_axis(lines, name, a, count)
  local ticks, power = a:ticks(count)
  if a.scale == 'log' then lines[#lines + 1] = 'set logscale ' .. name end
  add(lines, { ('set %srange [%s:%s]'):format(name, number(a.low), number(a.high)),
    ('set %stics nomirror %s'):format(name, ticks_list(ticks)) })
  return a:caption(power)
end

local function begin()
  return { 'set style line 100 lc rgb "#dddddd" lw 0.5', 'set border 3 lc rgb "#444444"', 'set tics out' }
end

-- finish(lines, o) -> width, height: places what is around the plot of o.width x o.height pixels (with its title), of
-- which o.beside are labels: the texts o.title, o.x, o.y and o.cb, o.axis pixels for the x axis, the key with o.names
-- in as many columns as fit, and o.notes. It is as wide as title and x need, up to a page; what does not fit is cut.
local function finish(lines, o)
  local beside = 40 + (o.beside or 0)
  local words = math.max(screen.width(o.title or ''), screen.width(o.x or ''))
  o.width = math.max(o.width, math.min(PAGE, (words * 78 + 9) // 10 + beside))
  local across = o.width - beside
  for name, room in pairs { title = across, x = across, y = o.height, cb = o.height } do
    local text = o[name] and screen.cut(screen.clean(o[name]), math.max(8, room * 10 // 78))
    if text then lines[#lines + 1] = ('set %s %s'):format(name == 'title' and name or name .. 'label', quote(text)) end
  end
  local longest, names, notes = 0, o.names or {}, o.notes
  for _, name in ipairs(names) do longest = math.max(longest, screen.width(name)) end
  local columns = math.max(1, math.min(#names, (o.width - 40) // (longest * 8 + 50)))
  local rows = math.ceil(#names / columns)
  local below = #notes * 17 + (#notes > 0 and 8 or 0)
  local foot = below + rows * 19 + (rows > 0 and 14 or 0)
  local height = math.max(o.height, rows * 19 + 70) + o.axis + foot -- gnuplot wants no key higher than the plot
  for i, note in ipairs(notes) do
    lines[#lines + 1] = ("set label %s at screen 0.015, screen %.5f font ',9' tc rgb '#444444'"):format(quote(note),
      (8 + (#notes - i + 0.5) * 17) / height)
  end
  lines[#lines + 1] = #names == 0 and 'unset key'
    or ('set key at screen 0.01, screen %.5f left bottom vertical Left reverse maxrows %d samplen 2.5'):format(
      (below + 8) / height, rows)
  lines[#lines + 1] = ('set bmargin at screen %.5f'):format((foot + o.axis) / height)
  return o.width, height
end

-- --- lines -------------------------------------------------------------------------------------------------------

function figures.line(o, list, notes, x, y)
  local lines = begin()
  local x_caption, y_caption = add_axis(lines, 'x', x, 8), add_axis(lines, 'y', y, 7)
  lines[#lines + 1] = ('set xrange [%s:%s]'):format(number(x:value(-0.02)), number(x:value(1.02)))
  lines[#lines + 1] = 'set grid ls 100'
  local names, plots, blocks = {}, {}, {}
  for i, series in ipairs(list) do
    local named = screen.cut(series.mark and ('%s  %s'):format(series.mark, series.name) or series.name, NAME)
    local rows, errors, marks = {}, {}, 0
    for k, p in ipairs(series.points) do
      rows[k] = p and { p[1], p[2] } or false
      -- what a log scale does not have ends at its edge
      if p and p[3] then errors[#errors + 1] = { p[1], p[2], math.max(p[3], y.low), p[4] } end
      if p then marks = marks + 1 end
    end
    names[i] = named
    blocks[#blocks + 1] = block('d' .. i, rows)
    local style = ("lc rgb '%s' dt %d pt %d ps 0.9 lw 1.8"):format(turn(COLOURS, i), (i - 1) % 5 + 1, turn(SHAPES, i))
    if #errors > 0 then
      blocks[#blocks + 1] = block('e' .. i, errors)
      if #errors > DENSE and series.style ~= 'points' then
        table.insert(plots, 1, ("$e%d using 1:3:4 with filledcurves fs transparent solid 0.18 noborder lc rgb '%s' "
          .. 'notitle'):format(i, turn(COLOURS, i)))
      else
        plots[#plots + 1] = ("$e%d using 1:2:3:4 with yerrorbars lc rgb '%s' pt 0 lw 1 notitle"):format(i,
          turn(COLOURS, i))
      end
    end
    if series.style == 'path' then
      plots[#plots + 1] = ("$d%d using 1:2 with lines lc rgb '#666666' dt 2 lw 1.2 title %s"):format(i, quote(named))
    elseif series.style == 'line' then
      plots[#plots + 1] = ('$d%d using 1:2 with linespoints %s pi %d title %s'):format(i, style, marks // 15 + 1,
        quote(named))
    else
      plots[#plots + 1] = ('$d%d using 1:2 with points %s title %s'):format(i, style, quote(named))
    end
    if series.mark then
      plots[#plots + 1] = ('$d%d using 1:2:(%s) with labels left offset 0.7,0.5 notitle'):format(i,
        gnuplot.point_label(series.mark))
    end
  end
  local width, height = finish(lines, { width = 800, height = 400, axis = 60, names = names, notes = notes,
    title = o.title, x = x_caption, y = y_caption })
  add(lines, blocks)
  lines[#lines + 1] = 'plot ' .. table.concat(plots, ', \\\n  ')
  return gnuplot.draw(o.file, width, height, lines, 'plot.line')
end

-- --- heat maps ---------------------------------------------------------------------------------------------------

-- Places 1 to count with their labels, about 25 at most; without any their numbers, of which a cell has `each`.
local function places(labels, count, each)
  local out, every = {}, 1
  while count / every > 25 do every = every == 1 and 5 or every * 2 end
  for i = 1, count do
    local round = each == 1 and not labels and i % every == 0 or (i - 1) % every == 0 and (each > 1 or labels)
    if i == 1 or round then out[#out + 1] = { i, labels and labels[i] or tostring((i - 1) * each + 1) } end
  end
  return out
end

-- heat(o, rows, shades, { rows, columns that a cell stands for }, row labels, column labels, marks, legend, notes)
function figures.heat(o, rows, shades, each, row_labels, columns, marks, legend, notes)
  local lines = begin()
  local down, across = #rows, #rows[1]
  local caption = add_axis(lines, 'cb', shades, 6)
  add(lines, { "set palette defined (0 '#f7fbff', 1 '#c6dbef', 2 '#6baed6', 3 '#2171b5', 4 '#08306b')",
    ('set xrange [0.5:%g]'):format(across + 0.5), ('set yrange [%g:0.5]'):format(down + 0.5), 'unset key',
    ('set xtics nomirror %s%s'):format(columns and across > 8 and 'rotate by 45 right ' or '',
      ticks_list(places(columns, across, each[2]), 14)),
    ('set ytics nomirror %s'):format(ticks_list(places(row_labels, down, each[1]))) })
  local cells, dark, light = {}, {}, {}
  for i, row in ipairs(rows) do
    for k, x in ipairs(row) do
      local shown = screen.finite(x) and (shades.scale ~= 'log' or x > 0)
      if shown then
        cells[#cells + 1] = { k, i, math.max(shades.low, math.min(shades.high, x)) }
        local into = shades:at(x) > 0.6 and light or dark
        into[#into + 1] = { k, i, x }
      end
    end
  end
  local plots = {}
  if #cells > 0 then
    lines[#lines + 1] = block('cells', cells)
    plots[1] = '$cells using 1:2:($1-0.5):($1+0.5):($2-0.5):($2+0.5):3 with boxxyerror fs solid noborder lc palette'
  else
    lines[#lines + 1] = block('cells', { { 0, 0 } })
    plots[1] = '$cells using 1:2 with dots notitle'
  end
  local numbers = down * across <= 150 and across <= 16
  if numbers then
    for name, list in pairs { dark = dark, light = light } do
      if #list > 0 then
        lines[#lines + 1] = block(name, list)
        plots[#plots + 1] = ("$%s using 1:2:(sprintf('%%.2g', $3)) with labels font ',9' tc rgb '%s'"):format(name,
          name == 'dark' and 'black' or 'white')
      end
    end
  end
  for _, mark in ipairs(marks) do
    local aside = numbers and 0.32 or 0
    lines[#lines + 1] = ("set label %s at %g,%g center front font ',14' tc rgb '#D55E00'"):format(quote(mark[3]),
      mark[2] - aside, mark[1] - aside)
  end
  local size = math.max(6, math.min(48, 640 // math.max(across, down)))
  table.move(legend, 1, #legend, #notes + 1, notes)
  local label = 0
  for _, text in ipairs(row_labels or {}) do label = math.max(label, math.min(40, screen.width(text))) end
  local width, height = finish(lines, { width = math.max(280, across * size + 100) + 140 + label * 8,
    height = math.max(150, down * size) + 50, axis = columns and 80 or 60, notes = notes, beside = 120 + label * 8,
    title = o.title, x = o.x,
    y = o.y, cb = caption })
  lines[#lines + 1] = 'plot ' .. table.concat(plots, ', \\\n  ')
  return gnuplot.draw(o.file, width, height, lines, 'plot.heat')
end

-- --- strips ------------------------------------------------------------------------------------------------------

-- strip(o, rows, legend, position of the first cell, positions in a cell, notes)
function figures.strip(o, rows, legend, from, every, notes)
  local lines = begin()
  local meaning, by_char, order, longest = {}, {}, {}, 0
  for _, one in ipairs(legend) do
    if not meaning[one[1]] then
      meaning[one[1]], order[#order + 1], by_char[one[1]] = one[2], one[1], {}
    end
  end
  local y_ticks = {}
  for i, row in ipairs(rows) do
    y_ticks[i] = { i, row.label }
    longest = math.max(longest, #row.cells)
    for k, char in ipairs(row.cells) do
      if char ~= ' ' then
        if not by_char[char] then by_char[char], order[#order + 1] = {}, char end
        table.insert(by_char[char], { from + (k - 0.5) * every - 0.5, i })
      end
    end
  end
  local half = every / 2
  local low, high = from - 0.5, from - 0.5 + math.max(1, longest) * every
  local x_ticks, step = {}, every
  while (high - low) / step > 16 do step = step * (tostring(step):find('^2') and 2.5 or 2) // 1 end
  for position = from, math.floor(high), math.max(1, math.tointeger(step) or 1) do
    x_ticks[#x_ticks + 1] = { position, tostring(position) }
  end
  add(lines, { ('set xrange [%s:%s]'):format(number(low), number(high)), ('set yrange [%g:0.4]'):format(#rows + 0.6),
    'set xtics nomirror ' .. ticks_list(x_ticks), 'set ytics nomirror ' .. ticks_list(y_ticks) })
  local size = math.max(10, math.min(22, 900 // math.max(1, longest)))
  local plots, names = {}, {}
  for i, char in ipairs(order) do
    local cells = by_char[char]
    local name = meaning[char] and ('%s %s'):format(char == ' ' and 'blank' or char, meaning[char]) or char
    name = screen.cut(name, NAME)
    if #cells > 0 or meaning[char] then
      if meaning[char] then names[#names + 1] = name end
      lines[#lines + 1] = block('c' .. i, #cells > 0 and cells or { { low - 10 * every, 1 } })
      plots[#plots + 1] = ("$c%d using 1:2:($1-%s):($1+%s):($2-0.42):($2+0.42) with boxxyerror fs solid noborder "
        .. "lc rgb '%s'"):format(i, number(half), number(half), QUIET[char] or turn(TINTS, i))
      if #cells > 0 then
        plots[#plots + 1] = ("$c%d using 1:2:(%s) with labels font ',%d' notitle"):format(i, gnuplot.point_label(char),
          math.min(11, size - 4))
      end
    end
  end
  if #plots == 0 then
    lines[#lines + 1] = block('none', { { low, 1 } })
    plots[1] = '$none using 1:2 with dots notitle'
  end
  local label = 0
  for _, row in ipairs(rows) do label = math.max(label, math.min(40, screen.width(row.label))) end
  local width = math.max(420, math.max(1, longest) * size + label * 9 + 80)
  local legends = screen.wrap(names, width // 7, '')
  table.move(notes, 1, #notes, #legends + 1, legends)
  local height
  width, height = finish(lines, { width = width, height = #rows * 24 + (o.title and 50 or 20), axis = 60,
    notes = legends, beside = label * 9 + 20, title = o.title, x = o.x })
  lines[#lines + 1] = 'plot ' .. table.concat(plots, ', \\\n  ')
  return gnuplot.draw(o.file, width, height, lines, 'plot.strip')
end

-- --- bars --------------------------------------------------------------------------------------------------------

local FILLS = { 'solid 1.0', 'pattern 4', 'pattern 2', 'pattern 5' }

-- bars(o, rows = { label, ends = { { from, upto } of each part }, text, notes }, axis)
function figures.bars(o, rows, x)
  local lines = begin()
  local caption = add_axis(lines, 'x', x, 8)
  local parts, labels, label, texts, at, y_ticks = {}, {}, 0, 0, 0, {}
  for i, row in ipairs(rows) do
    y_ticks[i] = { at, row.label }
    label = math.max(label, math.min(40, screen.width(row.label)))
    local text = screen.cut(row.text, 45)
    texts = math.max(texts, screen.width(text))
    for k, part in ipairs(row.ends) do
      parts[k] = parts[k] or {}
      if part[2] > part[1] then table.insert(parts[k], { part[1], at, part[1], part[2], at - 0.35, at + 0.35 }) end
    end
    local last = row.ends[#row.ends]
    labels[#labels + 1] = ('set label %s at %s,%s left offset 0.8,0 front'):format(quote(text),
      number(last and last[2] or x.low), number(at))
    for n, note in ipairs(row.notes) do
      labels[#labels + 1] = ("set label %s at graph 0.01, first %s left front font ',9' tc rgb '#444444'"):format(
        quote(screen.cut(note, 90)), number(at + 0.2 + n * 0.5))
    end
    at = at + 1 + 0.5 * #row.notes
  end
  add(lines, labels)
  add(lines, { ('set yrange [%s:-0.7]'):format(number(at - 0.3)), 'set ytics nomirror ' .. ticks_list(y_ticks),
    ('set rmargin %d'):format(texts + 3) })
  local plots = {}
  local names = {}
  for k, list in ipairs(parts) do
    local name = o.parts and o.parts[k] and screen.cut(screen.clean(o.parts[k]), NAME)
    names[#names + 1] = name
    lines[#lines + 1] = block('p' .. k, #list > 0 and list or { { x.low, -9, x.low, x.low, -9, -9 } })
    plots[k] = ("$p%d using 1:2:3:4:5:6 with boxxyerror lc rgb '%s' fs %s border rgb '#444444' %s"):format(k,
      turn(COLOURS, k), turn(FILLS, k), name and 'title ' .. quote(name) or 'notitle')
  end
  local width, height = finish(lines, { width = 560 + (label + texts) * 8, height = 50 + math.ceil(at * 30),
    axis = 60, beside = (label + texts) * 8, names = names, notes = { o.note and screen.clean(o.note) },
    title = o.title, x = caption })
  lines[#lines + 1] = 'plot ' .. table.concat(plots, ', \\\n  ')
  return gnuplot.draw(o.file, width, height, lines, 'plot.bars')
end

return figures
