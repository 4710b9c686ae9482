-- plot/gnuplot.lua: runs gnuplot on a script that figures.lua wrote.
--
-- Nothing that a user names reaches gnuplot but as a quoted text: it writes to a temporary file, and we copy that to
-- where it is wanted. Its own settings (~/.gnuplot) are not read.
local core = require 'kvlab.core'
local environment = require 'kvlab.environment'
local screen = require 'kvlab.plot.screen'

local gnuplot = {}

local PATIENCE <const> = 120 -- seconds
local OURS <const> = { LD_PRELOAD = true } -- what is loaded into us, such as a sanitizer, is none of gnuplot's business

-- Size is in pixels; a page of PDF is measured in inches. Texts are never markup.
local TERMINALS = {
  svg = function(w, h) return ("svg noenhanced size %d,%d font 'sans-serif,12' background 'white'"):format(w, h) end,
  png = function(w, h) return ("pngcairo noenhanced size %d,%d font 'sans,11' background 'white'"):format(w, h) end,
  pdf = function(w, h) return ("pdfcairo noenhanced size %.3f,%.3f font 'sans,9'"):format(w / 96, h / 96) end,
}

local function ending(path) return TERMINALS[path:lower():match('%.(%w+)$') or ''] end

-- A size of letters: SVG counts them in pixels, the others in points.
function gnuplot.font_size(path, pixels)
  return path:lower():find('%.svg$') and pixels or math.floor(pixels * 0.75 + 0.5)
end

-- check_file(path, where): nil, or a name with an ending that can be drawn.
function gnuplot.check_file(path, where)
  if path == nil then return end
  if type(path) ~= 'string' or not ending(path) then
    screen.problem(where, 'file = %s: expected a name that ends in .svg, .png or .pdf', tostring(path))
  end
end

-- A text in a script: in single quotes, where nothing has a meaning. But gnuplot looks for `commands` and @macros
-- before it looks for quotes, and loses count of these; so what could mean something stands as its code between parts.
function gnuplot.quote(text)
  local function code(c) return ([['."\%03o".']]):format(c:byte()) end
  return "'" .. screen.clean(text):gsub('[\'"`@\\]', code) .. "'"
end

-- The same for labels of points, where a backslash needs another one.
function gnuplot.point_label(text) return gnuplot.quote((text:gsub('\\', '\\\\'))) end

function gnuplot.number(x)
  return x ~= x and 'NaN' or ('%.17g'):format(math.max(-1e300, math.min(1e300, x)))
end

-- block(name, rows) -> the lines of a data block; a row is a list of numbers, false leaves a gap.
function gnuplot.block(name, rows)
  local lines = { ('$%s << EOD'):format(name) }
  for _, row in ipairs(rows) do
    local cells = {}
    for k, x in ipairs(row or {}) do cells[k] = gnuplot.number(x) end
    lines[#lines + 1] = table.concat(cells, ' ')
  end
  lines[#lines + 1] = 'EOD'
  return table.concat(lines, '\n')
end

function gnuplot.installed()
  local process <close> = core.system.spawn({ 'gnuplot', '--version' }, environment.variables(OURS), '/dev/null')
  return process ~= nil
end

local function read(path)
  local file <close> = assert(io.open(path, 'rb'))
  return file:read('a')
end

local function wait(process, where)
  local stop, pause = core.base.now() + PATIENCE, 0.002
  while true do
    local how, status = process:poll()
    if how then return how == 'exit' and status == 0 end
    if core.base.now() > stop then screen.problem(where, 'gnuplot takes more than %d seconds', PATIENCE) end
    core.system.sleep(pause)
    pause = math.min(pause * 1.5, 0.05)
  end
end

-- draw(path, width, height, lines, where) -> path: the script's picture in a file.
function gnuplot.draw(path, width, height, lines, where)
  local made = setmetatable({}, { __close = function(names)
    for _, name in pairs(names) do os.remove(name) end
  end })
  local temporary <close> = made
  temporary.script, temporary.picture, temporary.log = os.tmpname(), os.tmpname(), os.tmpname()
  local script = ('set encoding utf8\nset terminal %s\nset output %s\n%s\nunset output\n'):format(
    ending(path)(width, height), gnuplot.quote(temporary.picture), table.concat(lines, '\n'))
  local ok, problem = core.system.write(temporary.script, script)
  if not ok then screen.problem(where, '%s', problem) end
  local process <close>, failure, code = core.system.spawn({ 'gnuplot', '-d', temporary.script },
    environment.variables(OURS), temporary.log)
  if not process then
    if code ~= 2 then screen.problem(where, 'cannot start %s', failure) end
    screen.problem(where, "file = '%s' needs gnuplot, which is not installed: apt-get install gnuplot-nox; without "
      .. 'file it is drawn as text', path)
  end
  local good = wait(process, where)
  local picture = read(temporary.picture)
  if not good or picture == '' then
    local said = read(temporary.log):gsub('%s+$', ''):match('[^\n]*$') -- before it stands the line of the script
    screen.problem(where, 'gnuplot failed: %s', screen.cut(screen.clean(said), 300))
  end
  local file, why = io.open(path, 'wb')
  if not file then screen.problem(where, 'file: %s', why) end
  ok, why = file:write(picture)
  if ok then ok, why = file:close() else file:close() end
  if not ok then screen.problem(where, 'file = %s: %s', path, tostring(why)) end
  return path
end

return gnuplot
