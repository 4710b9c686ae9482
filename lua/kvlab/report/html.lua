-- report/html.lua: a report as one page of HTML that needs nothing else: styles, pictures and sorting are inside.
local config = require 'kvlab.config'
local emit = require 'kvlab.emit'
local environment = require 'kvlab.environment'
local gnuplot = require 'kvlab.plot.gnuplot'
local pictures = require 'kvlab.report.pictures'
local plot = require 'kvlab.plot'
local screen = require 'kvlab.plot.screen'
local tables = require 'kvlab.report.tables'

local CURVES <const> = 6 -- pictures of curves at most

local STYLE = [[
body { font: 15px/1.5 system-ui, sans-serif; max-width: 76em; margin: 2em auto; padding: 0 1em; color: #222; }
h1 { font-size: 1.5em; } h2 { font-size: 1.15em; margin-top: 2em; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25em .7em; border-bottom: 1px solid #ddd; text-align: left; vertical-align: top; }
th { border-bottom: 2px solid #888; } th button { all: unset; cursor: pointer; }
th button::after { content: " \2195"; color: #999; } th button:focus-visible { outline: 2px solid #0072B2; }
th[aria-sort=ascending] button::after { content: " \2191"; }
th[aria-sort=descending] button::after { content: " \2193"; }
td.n { text-align: right; white-space: nowrap; } tr.front td { background: #eef5fb; }
pre { background: #f6f6f6; padding: .8em; overflow-x: auto; line-height: 1.2; }
figure { margin: 1em 0; } svg { max-width: 100%; height: auto; }
.warning { border-left: 4px solid #D55E00; padding-left: .7em; }
]]

-- A click on a heading sorts by its column; numbers by value, what is missing last.
local SCRIPT = [[
for (const button of document.querySelectorAll('th button')) button.onclick = () => {
  const th = button.parentElement, body = th.closest('table').tBodies[0], i = th.cellIndex;
  const down = th.getAttribute('aria-sort') === 'ascending';
  for (const other of th.parentElement.cells) other.removeAttribute('aria-sort');
  th.setAttribute('aria-sort', down ? 'descending' : 'ascending');
  const key = row => row.cells[i].dataset.value ?? row.cells[i].textContent;
  const rows = [...body.rows].sort((a, b) => {
    const x = key(a), y = key(b);
    if (x === '' || y === '') return (x === '') - (y === '');
    const order = isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y;
    return down ? -order : order;
  });
  body.append(...rows);
};
]]

local ESCAPES = { ['&'] = '&amp;', ['<'] = '&lt;', ['>'] = '&gt;', ['"'] = '&quot;', ["'"] = '&#39;' }

-- Any text as HTML: valid UTF-8 without control characters but for ends of lines.
local function escape(value)
  local lines = {}
  for line in (tostring(value) .. '\n'):gmatch('(.-)\r?\n') do lines[#lines + 1] = screen.clean(line) end
  return (table.concat(lines, '\n'):gsub('[&<>"\']', ESCAPES))
end

-- --- the table ----------------------------------------------------------------------------------------------------

-- A cell: its text, and the number by which it is sorted.
local function cell(text, number)
  return ('<td%s>%s</td>'):format(number and (' class="n" data-value="%.17g"'):format(number)
    or text == '' and ' data-value=""' or '', escape(text))
end

-- A column for each setting, then those of the table of text.
local function columns_of(result)
  local columns = {}
  for i, key in ipairs(result.keys) do
    columns[i] = { name = key, get = function(row)
      local value = row.setting[key]
      if value == nil then return '' end
      return config.shown(value), type(value) == 'number' and value or nil
    end }
  end
  local more = tables.columns(result, { { 'seconds', 'seconds', 1 } })
  return table.move(more, 1, #more, #columns + 1, columns)
end

local function table_html(result)
  local columns, out = columns_of(result), {}
  out[1] = '<div class="scroll"><table><thead><tr>'
  for _, column in ipairs(columns) do
    out[#out + 1] = ('<th scope="col"><button type="button">%s</button></th>'):format(escape(column.name))
  end
  out[#out + 1] = '</tr></thead><tbody>'
  for _, row in ipairs(result.rows) do
    local cells = {}
    for i, column in ipairs(columns) do cells[i] = cell(column.get(row)) end
    out[#out + 1] = ('<tr%s>%s</tr>'):format(row.pareto and ' class="front"' or '', table.concat(cells))
  end
  out[#out + 1] = '</tbody></table></div>'
  return table.concat(out, '\n')
end

-- --- pictures -----------------------------------------------------------------------------------------------------

-- An SVG by gnuplot, whose names must not meet those of another picture in the page; without gnuplot the text.
local function picture(options, number, drawn)
  if not drawn then
    options.ascii, options.width = false, 100
    return ('<figure><pre>%s</pre></figure>'):format(escape(plot.line(options)))
  end
  local name = os.tmpname()
  local path = name .. '.svg'
  options.file = path
  local ok, problem = pcall(plot.line, options)
  local file = ok and io.open(path, 'rb')
  local svg = file and file:read('a')
  if file then file:close() end
  os.remove(name)
  os.remove(path)
  if not ok then error(problem, 0) end
  svg = svg:gsub('^.-(<svg)', '%1', 1):gsub('id=([\'"])', ('id=%%1p%d-'):format(number))
    :gsub('href=([\'"])#', ('href=%%1#p%d-'):format(number)):gsub('url%(#', ('url(#p%d-'):format(number))
  return ('<figure>%s</figure>'):format(svg)
end

local function pictures_html(result, wanted)
  local out, number, drawn = {}, 0, gnuplot.installed()
  local function add(options)
    number = number + 1
    out[#out + 1] = picture(options, number, drawn)
  end
  local quality, why = pictures.quality_plot(result)
  if quality then add(quality) else out[1] = ('<p>%s</p>'):format(escape('No picture of quality and cost: ' .. why)) end
  for _, options in ipairs(pictures.metric_curves(result, wanted or CURVES)) do add(options) end
  if not drawn then
    out[#out + 1] = '<p>Drawn as text: gnuplot is not installed (apt-get install gnuplot-nox).</p>'
  end
  return table.concat(out, '\n')
end

-- --- the rest -----------------------------------------------------------------------------------------------------

local function list_html(items, class)
  local out = {}
  for i, item in ipairs(items) do out[i] = ('<li>%s</li>'):format(escape(item)) end
  return ('<ul%s>%s</ul>'):format(class and (' class="%s"'):format(class) or '', table.concat(out))
end

local function environments_html(result)
  local keys = { 'kvlab', 'results', 'commit', 'experiment', 'host', 'lua', 'blas', 'threads' }
  local names, out = {}, { '<div class="scroll"><table><thead><tr>' }
  for name in pairs(result.environments) do names[#names + 1] = name end
  table.sort(names)
  if #names == 0 then return '<p>No run says what it was made with.</p>' end
  for _, key in ipairs(keys) do out[#out + 1] = ('<th scope="col">%s</th>'):format(key) end
  out[#out + 1] = '</tr></thead><tbody>'
  for _, name in ipairs(names) do
    local cells = {}
    for i, key in ipairs(keys) do
      local value = result.environments[name][key]
      if key == 'commit' and value then value = environment.commit_name(result.environments[name]) end
      cells[i] = ('<td>%s</td>'):format(escape(value == nil and '' or tostring(value):sub(1, 41)))
    end
    out[#out + 1] = '<tr>' .. table.concat(cells) .. '</tr>'
  end
  out[#out + 1] = '</tbody></table></div>'
  return table.concat(out, '\n')
end

-- How the runs and this page are made again.
local function commands(result, words)
  local out = {}
  for _, sweep in ipairs(result.sweeps) do
    if sweep.file then
      out[#out + 1] = ('kvlab sweep %s --dir %s'):format(emit.quote(sweep.file), emit.quote(result.dir))
    end
  end
  local list = {}
  for i, word in ipairs(words or { 'kvlab', 'report', result.dir, '--html' }) do list[i] = emit.quote(word) end
  out[#out + 1] = table.concat(list, ' ')
  return table.concat(out, '\n')
end

-- html(result, { curves = { metrics }, words = the words of the command }) -> text
local function html(result, options)
  options = options or {}
  local names = {}
  for i, sweep in ipairs(result.sweeps) do names[i] = sweep.name end
  local title = #names > 0 and table.concat(names, ', ') or result.dir
  local out = {}
  local function put(text, ...) out[#out + 1] = select('#', ...) > 0 and text:format(...) or text end
  put('<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">')
  put('<meta name="viewport" content="width=device-width, initial-scale=1">')
  put('<title>%s</title><style>\n%s</style></head><body>', escape(title), STYLE)
  put('<h1>%s</h1><p>%s</p>', escape(title), escape(tables.state(result)))
  if #result.warnings > 0 then put(list_html(result.warnings, 'warning')) end
  put('<h2>Results</h2>')
  put(table_html(result))
  put(list_html(tables.legend(result)))
  put('<h2>Pictures</h2>')
  put(pictures_html(result, options.curves))
  if #result.failures > 0 then
    local list = {}
    for i, one in ipairs(result.failures) do list[i] = ('%s: %s'):format(one.id, one.reason) end
    put('<h2>Failed runs</h2>')
    put(list_html(list))
  end
  put('<h2>Made with</h2>')
  put(environments_html(result))
  put('<h2>To do it again</h2><pre>%s</pre>', escape(commands(result, options.words)))
  put('<script>\n%s</script></body></html>', SCRIPT)
  return table.concat(out, '\n')
end

return html
