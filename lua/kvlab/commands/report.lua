-- kvlab report DIR: what the runs of a folder came to.
local cli = require 'kvlab.cli'
local report = require 'kvlab.report'

local command = {
  name = 'report',
  json = true,
  usage = 'report DIR [OPTIONS]',
  summary = 'the results of a sweep: mean and deviation over seeds, bytes beside quality',
  text = [[A row for each setting that the runs in DIR differ in, with mean, standard deviation and number over seeds
(n), the bytes of the cache when a run has a layout, and a * on the rows that no other row beats in cost and quality.
--against adds the differences to one row, seed by seed, and whether they exceed the noise. May be asked while the
sweep runs. Mixed commits and versions are said.]],
  example = 'kvlab report runs/records',
  options = {
    { 'by', 'KEY,...', 'rows by these settings only; all else counts as repetitions' },
    { 'quality', 'METRIC', 'the metric of the front (the first that the experiment measures)' },
    { 'better', 'less|more', 'which of it is better (less for errors and losses)' },
    { 'cost', 'METRIC', 'what is paid for it (bytes_per_token)' },
    { 'against', 'PATTERN', 'the setting that all others are compared with, a part of its label' },
    { 'csv', nil, 'print CSV' }, { 'md', nil, 'print Markdown' },
  },
}

function command.run(args, options)
  if #args ~= 1 then cli.usage('report: expected one folder, got %d', #args) end
  if (options.json and 1 or 0) + (options.csv and 1 or 0) + (options.md and 1 or 0) > 1 then
    cli.usage('report: give one of --json, --csv and --md')
  end
  if options.better and options.better ~= 'less' and options.better ~= 'more' then
    cli.usage('--better %s: expected less or more', options.better)
  end
  local by
  if options.by then
    by = {}
    for key in options.by:gmatch('[^,]+') do by[#by + 1] = key end
  end
  local result = report.of(args[1], { by = by, quality = options.quality, better = options.better,
    cost = options.cost, against = options.against })
  for _, warning in ipairs(result.warnings) do cli.note('%s', warning) end
  local form = options.json and 'json' or options.csv and 'csv' or options.md and 'markdown' or 'text'
  print(report[form](result))
  for _, one in ipairs(form == 'text' and result.failures or {}) do
    print(('%s failed: %s'):format(one.id, one.reason))
  end
  return 0
end

return command
