-- report.lua: kv.report: the runs of a folder as rows: a setting, and its metrics as mean and deviation over seeds.
--
-- Only what is done counts; the folder may be worked on meanwhile. What a layout costs is computed from the settings
-- (kvlab.cost), not taken from the runs. The forms in which a report is shown are in report/*.lua.
local collect = require 'kvlab.report.collect'
local config = require 'kvlab.config'
local opts = require 'kvlab.options'
local rows = require 'kvlab.report.rows'

local report = {}

-- Settings as keys: those given, those that the sweep says, or all that differ.
local function keys_of(runs, by)
  if not by then return rows.varying(runs) end
  local known, list = {}, {}
  for _, one in ipairs(runs) do
    for key in pairs(one.config) do known[key] = true end
    for key in pairs(config.leaves(one.config)) do known[key] = true end
  end
  for key in pairs(known) do list[#list + 1] = key end
  table.sort(list)
  for _, key in ipairs(#runs > 0 and by or {}) do opts.word(key, list, 'report: by') end
  return by
end

-- The names of all metrics: the measured ones first, in their order.
local function metrics_of(list, measured)
  local names, there = {}, {}
  for _, row in ipairs(list) do
    for metric in pairs(row.metrics) do there[metric] = true end
  end
  for _, metric in ipairs(measured) do
    if there[metric] then names[#names + 1] = metric end
    there[metric] = nil
  end
  local rest = {}
  for metric in pairs(there) do rest[#rest + 1] = metric end
  table.sort(rest)
  return table.move(rest, 1, #rest, #names + 1, names)
end

-- What a row costs: bytes of its layout, a metric, or a setting that is a number.
local function cost_of(row, name)
  local setting = row.setting[name]
  return row[name] or row.metrics[name] and row.metrics[name].mean or type(setting) == 'number' and setting or nil
end

local OPTIONS = { 'by', 'quality', 'better', 'cost', 'within', 'against' }

-- report.of(dir, { by = { keys }, quality = metric, better = 'less' | 'more', cost = metric, within = { keys } })
-- -> { rows =, keys =, metrics = names, counts =, warnings =, failures =, quality =, cost = }; `runs` are those that
-- have begun, for curves.
function report.of(dir, options)
  options = options or {}
  opts.check(options, OPTIONS, 'kv.report', 'option')
  local all = collect(dir)
  local said = #all.sweeps == 1 and all.sweeps[1] or {}
  local runs = table.move(all.begun, 1, #all.begun, #all.runs + 1, table.move(all.runs, 1, #all.runs, 1, {}))
  local keys = keys_of(runs, options.by or said.by and #said.by > 0 and said.by or nil)
  local list = rows.group(all.runs, keys)
  rows.sort(list, keys)
  for _, row in ipairs(list) do rows.finish(row, keys) end
  local names = metrics_of(list, said.measure or {})
  local quality = options.quality or names[1]
  if options.quality and #names > 0 then opts.word(quality, names, 'report: quality') end
  local paid = options.cost or said.cost or 'bytes_per_token'
  local better = options.better or said.better
    or quality and (quality:find('loss') or quality:find('error')) and 'less' or 'more'
  for _, row in ipairs(list) do row.cost = cost_of(row, paid) end
  local baseline = options.against and quality and rows.compare(list, options.against, quality)
  for _, row in ipairs(list) do row.by_seed = nil end
  local within = options.within or said.within or {}
  if quality then rows.mark_front(list, quality, better, within) end
  return { rows = list, keys = keys, metrics = names, counts = all.counts, warnings = all.warnings,
    failures = all.failures, quality = quality, better = better, cost = paid, within = within, baseline = baseline,
    made_with = all.made_with, runs = runs, sweeps = all.sweeps, environments = all.environments, dir = dir }
end

return report
