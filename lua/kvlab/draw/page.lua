-- draw/page.lua: a picture of characters as a file. Frames, lanes and arrows become lines, so that they meet whatever
-- the font is; words stand at their columns.
local gnuplot = require 'kvlab.plot.gnuplot'
local screen = require 'kvlab.plot.screen'

local page = {}

local WIDE <const>, HIGH <const>, EDGE <const> = 8, 17, 1 -- pixels of a character, characters around the picture
local LETTERS <const> = 13                                -- pixels; so large, a letter is as wide as a column
local COLUMNS <const> = 100                               -- of a picture when nobody says how wide it is

local LIGHT <const>, BROKEN <const> = { '#444444', 'lw 1.2' }, { '#444444', 'lw 1.2 dt (4,4)' }
local HEAVY <const>, DOUBLE <const> = { '#1f5fa8', 'lw 3' }, { '#6a3d9a', 'lw 1.2' }

-- Frames by their left upper corner: the corners to the right and below, the line, whether it is drawn twice, and the
-- ground. A light one whose upper edge is ╌ is broken.
local FRAMES = {
  ['┌'] = { right = '┐', below = '└', style = LIGHT, ground = 'white' },
  ['┏'] = { right = '┓', below = '┗', style = HEAVY, ground = '#eaf2fb' },
  ['╔'] = { right = '╗', below = '╚', style = DOUBLE, twice = true, ground = '#f3eefa' },
}

-- Lines that stand alone: do they lie, how they are drawn, and twice?
local LINES = { ['─'] = { true, LIGHT }, ['╌'] = { true, BROKEN }, ['━'] = { true, HEAVY }, ['═'] = { true, DOUBLE },
  ['│'] = { false, LIGHT }, ['╎'] = { false, BROKEN }, ['┃'] = { false, HEAVY }, ['║'] = { false, DOUBLE, true } }

-- The characters by row and column, and how many columns there are.
local function grid_of(text)
  local grid, wide = {}, 0
  for line in (text .. '\n'):gmatch('(.-)\n') do
    local row = {}
    for _, code in utf8.codes(line) do row[#row + 1] = utf8.char(code) end
    wide = math.max(wide, #row)
    grid[#grid + 1] = row
  end
  return grid, wide
end

local function rectangle(lines, x0, y0, x1, y1, inset, style, ground)
  local aside = inset * HIGH / WIDE
  lines[#lines + 1] = ("set object rectangle from %g,%g to %g,%g back %s fc rgb '%s' fs solid border rgb '%s'"):format(
    x0 + aside, y0 + inset, x1 - aside, y1 - inset, style[2], ground, style[1])
end

-- Draws the frame whose corner is there, when it is one, and takes its characters out.
local function frame(lines, grid, x, y)
  local f = FRAMES[grid[y][x]]
  if not f then return end
  local right, below = x + 1, y + 1
  while grid[y][right] and grid[y][right] ~= f.right do right = right + 1 end
  while grid[below] and grid[below][x] ~= f.below do below = below + 1 end
  if not grid[y][right] or not grid[below] then return end
  local style = grid[y][x + 1] == '╌' and BROKEN or f.style
  local x0, y0, x1, y1 = x - 0.5, y - 0.5, right - 0.5, below - 0.5
  if f.twice then rectangle(lines, x0, y0, x1, y1, -0.1, style, f.ground) end
  rectangle(lines, x0, y0, x1, y1, f.twice and 0.1 or 0, style, f.ground)
  for at = x, right do grid[y][at], grid[below][at] = ' ', ' ' end
  for at = y, below do grid[at][x], grid[at][right] = ' ', ' ' end
end

local function stroke(lines, x0, y0, x1, y1, style)
  lines[#lines + 1] = ("set arrow from %g,%g to %g,%g nohead front %s lc rgb '%s'"):format(x0, y0, x1, y1, style[2],
    style[1])
end

-- Draws the line that begins there, as far as it goes on, and takes it out.
local function line(lines, grid, x, y)
  local char = grid[y][x]
  local lies, style, twice = table.unpack(LINES[char])
  local last = lies and x or y
  while (lies and grid[y][last + 1] or not lies and grid[last + 1] and grid[last + 1][x]) == char do last = last + 1 end
  for at = lies and x or y, last do
    if lies then grid[y][at] = ' ' else grid[at][x] = ' ' end
  end
  for _, aside in ipairs(twice and { -0.15, 0.15 } or { 0 }) do
    if lies then stroke(lines, x - 1, y - 0.5, last, y - 0.5, style)
    else stroke(lines, x - 0.5 + aside, y - 1, x - 0.5 + aside, last, style) end
  end
end

local function arrow_head(lines, x, y)
  lines[#lines + 1] = ("set object polygon from %g,%g to %g,%g to %g,%g to %g,%g front fs solid noborder fc rgb "
    .. "'#444444'"):format(x - 1, y - 0.75, x, y - 0.5, x - 1, y - 0.25, x - 1, y - 0.75)
end

-- file(text, path, where) -> path
function page.file(text, path, where)
  local grid, wide = grid_of(text)
  local high = #grid
  local lines = { 'unset border', 'unset tics', 'unset key', 'set lmargin at screen 0', 'set rmargin at screen 1',
    'set tmargin at screen 1', 'set bmargin at screen 0', ('set xrange [%d:%d]'):format(-EDGE, wide + EDGE),
    ('set yrange [%d:%d]'):format(high + EDGE, -EDGE) }
  for y, row in ipairs(grid) do
    for x = 1, #row do frame(lines, grid, x, y) end
  end
  for y, row in ipairs(grid) do
    for x = 1, #row do
      if LINES[row[x]] then
        line(lines, grid, x, y)
      elseif row[x] == '▶' then
        arrow_head(lines, x, y)
        row[x] = ' '
      end
    end
  end
  local font = gnuplot.font_size(path, LETTERS)
  for y, row in ipairs(grid) do
    local from = 1
    for x = 1, #row + 1 do
      if (row[x] or ' ') == ' ' then
        if x > from then
          lines[#lines + 1] = ("set label %s at %d,%g left front font 'monospace,%d'"):format(
            gnuplot.quote(table.concat(row, '', from, x - 1)), from - 1, y - 0.5, font)
        end
        from = x + 1
      end
    end
  end
  lines[#lines + 1] = 'plot NaN'
  return gnuplot.draw(path, (wide + 2 * EDGE) * WIDE, (high + 2 * EDGE) * HIGH, lines, where)
end

-- options(o) -> the options with which a picture of text is drawn, for a file: as wide as a page, with all characters.
function page.options(o)
  if o.file == nil then return o end
  gnuplot.check_file(o.file, 'draw')
  if o.ascii then screen.problem('draw', 'ascii is of text; a file has lines for frames') end
  local all = {}
  for name, value in pairs(o) do all[name] = value end
  all.ascii, all.width = false, o.width or COLUMNS
  return all
end

return page
