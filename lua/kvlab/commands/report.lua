-- kvlab report DIR: what the runs of a folder came to.
local cli = require 'kvlab.cli'
local html = require 'kvlab.report.html'
local pictures = require 'kvlab.report.pictures'
local plot = require 'kvlab.plot'
local report = require 'kvlab.report'
local tables = require 'kvlab.report.tables'

local command = {
  name = 'report',
  json = true,
  usage = 'report DIR [OPTIONS]',
  summary = 'the results of a sweep: mean and deviation over seeds, bytes beside quality, curves',
  text = [[A row for each setting that the runs in DIR differ in, with mean, standard deviation and number over seeds
(n), the bytes of the cache when a run has a layout, and a * on the rows that no other row beats in cost and quality.
--against adds the differences to one row, seed by seed, and whether they exceed the noise. --plot draws quality
against cost and the curves below the table, --html makes one page of all. May be asked while the sweep runs. Mixed
commits and versions are said.]],
  example = 'kvlab report runs/records',
  options = {
    { 'by', 'KEY,...', 'rows by these settings only; all else counts as repetitions' },
    { 'quality', 'METRIC', 'the metric of the front (the first that the experiment measures)' },
    { 'better', 'less|more', 'which of it is better (less for errors and losses)' },
    { 'cost', 'METRIC', 'what is paid for it (bytes_per_token)' },
    { 'against', 'PATTERN', 'the setting that all others are compared with, a part of its label' },
    { 'plot', nil, 'below the table, quality against cost and a curve, as text' },
    { 'curves', 'METRIC,...', 'below the table, these metrics over the steps of the runs' },
    { 'file', 'NAME', 'draw only: quality against cost, or --curves, into NAME.svg, .png or .pdf (gnuplot)' },
    { 'csv', nil, 'print CSV' }, { 'md', nil, 'print Markdown' }, { 'html', nil, 'print one page of HTML' },
  },
}

local FORMS = { 'json', 'csv', 'md', 'html' }

local function words_of(text)
  if not text then return nil end
  local list = {}
  for word in text:gmatch('[^,]+') do list[#list + 1] = word end
  return list
end

-- The form that is asked for, nil for text; refuses what cannot go together.
local function form_of(options)
  local form
  for _, name in ipairs(FORMS) do
    if options[name] and form then cli.usage('report: give one of --json, --csv, --md and --html') end
    form = options[name] and name or form
  end
  for _, name in ipairs { 'plot', 'curves', 'file' } do
    if form and options[name] and not (form == 'html' and name == 'curves') then
      cli.usage('report: --%s and --%s do not go together', name, form)
    end
  end
  if options.plot and options.file then cli.usage('report: --plot is text; give --file or --plot') end
  return form
end

-- The pictures that are asked for, as options of plot.line.
local function wanted(result, options, curves)
  local list = {}
  if options.plot or options.file and not curves then
    local quality, why = pictures.quality_plot(result)
    if quality then list[1] = quality
    elseif options.file then cli.failed('report: no picture: %s', why)
    else cli.note('no picture of quality and cost: %s', why) end
  end
  if curves or options.plot then
    local more = pictures.metric_curves(result, curves or 1)
    table.move(more, 1, #more, #list + 1, list)
  end
  return list
end

-- The words that ask for this report again.
local function words_again(dir, options)
  local words = { 'kvlab', 'report', dir }
  for _, option in ipairs(command.options) do
    local value = options[option[1]]
    if value then
      words[#words + 1] = '--' .. option[1]
      if option[2] then words[#words + 1] = value end
    end
  end
  return words
end

function command.run(args, options)
  if #args ~= 1 then cli.usage('report: expected one folder, got %d', #args) end
  local form = form_of(options)
  if options.better and options.better ~= 'less' and options.better ~= 'more' then
    cli.usage('--better %s: expected less or more', options.better)
  end
  local curves = words_of(options.curves)
  if options.file and curves and #curves ~= 1 then cli.usage('report: --file draws one metric, got %d', #curves) end
  local result = report.of(args[1], { by = words_of(options.by), quality = options.quality, better = options.better,
    cost = options.cost, against = options.against })
  for _, warning in ipairs(result.warnings) do cli.note('%s', warning) end
  if form == 'html' then
    print(html(result, { curves = curves, words = words_again(args[1], options) }))
  elseif form then
    print(tables[form == 'md' and 'markdown' or form](result))
  else
    local list = wanted(result, options, curves)
    if options.file then
      list[1].file = options.file
      print(plot.line(list[1]))
      return 0
    end
    print(tables.text(result))
    for _, one in ipairs(result.failures) do print(('%s failed: %s'):format(one.id, one.reason)) end
    for _, picture in ipairs(list) do print('\n' .. plot.line(picture)) end
  end
  return 0
end

return command
