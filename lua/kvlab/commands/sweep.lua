-- kvlab sweep FILE: all points of an experiment, some at a time.
local cli = require 'kvlab.cli'
local core = require 'kvlab.core'
local cost = require 'kvlab.cost'
local emit = require 'kvlab.emit'
local experiment = require 'kvlab.experiment'
local format = require 'kvlab.format'
local json = require 'kvlab.json'
local run = require 'kvlab.run'
local sweep = require 'kvlab.sweep'

local command = {
  name = 'sweep',
  json = true,
  usage = 'sweep FILE.lua [OPTIONS]',
  summary = 'every point of an experiment, in processes of their own',
  text = [[Runs what an experiment file describes (docs/sweeps.md). Every point is a run with an id that follows from
its settings: what is done is not done again, and the same command goes on after whatever stopped it. Several of these
commands, also on several machines, may work on one folder. A point that fails is recorded with its reason and stops
nobody. Exit status 1 when any point has failed.]],
  example = 'kvlab sweep experiments/records/run.lua --dry-run',
  options = {
    { 'jobs', 'N', 'processes at a time, also -j N (as many as processors)', short = 'j' },
    { 'dry-run', nil, 'only list the points: id, settings, state, bytes, reads, multiply-adds, minutes' },
    { 'only', 'PATTERN', 'points whose settings contain this text (* stands for anything), or whose id begins so' },
    { 'set', 'KEY=VALUE', 'a setting for all points; may be given again', many = true },
    { 'retry', 'failed', 'tries failed points again, from their last checkpoint' },
    { 'budget', 'MINUTES', 'stops after that time; what is not done stays to be continued' },
    { 'dir', 'DIR', 'where the runs are (runs/NAME)' },
    { 'emit', 'slurm|list', 'prints an array script for sbatch, or a command for each point' },
  },
}

-- The seconds that a point takes: the mean of runs that are done of the same settings but for the seed, else what the
-- experiment says, else the mean of all that are done.
local function estimator(E, points, states)
  local function key(point)
    local copy = {}
    for name, value in pairs(point.config) do copy[name] = value end
    copy.seed = nil
    return require('kvlab.config').canonical(copy)
  end
  local sums, all = {}, { 0, 0 }
  for i, point in ipairs(points) do
    local seconds = states[i].seconds
    if seconds then
      local sum = sums[key(point)] or { 0, 0 }
      sums[key(point)] = sum
      for _, s in ipairs { sum, all } do s[1], s[2] = s[1] + seconds, s[2] + 1 end
    end
  end
  return function(point)
    local same = sums[key(point)]
    if same then return same[1] / same[2] end
    if E.estimate then
      local ok, seconds = pcall(E.estimate, point.config)
      if core.base.interrupted() then error(seconds, 0) end
      return ok and seconds or nil -- what is wrong with a point, its run will say
    end
    return all[2] > 0 and all[1] / all[2] or nil
  end
end

local function state_of(dir, point)
  local ok, r = pcall(run.open, ('%s/%s'):format(dir, point.id))
  if not ok then return { state = 'new' } end
  local how, about = r:status()
  return { state = how, seconds = how == 'done' and about.seconds or nil }
end

local function big(x) return x and format.number(x, 2) or '-' end

local function dry_run(E, points, dir, jobs, as_json)
  local states = {}
  for i, point in ipairs(points) do states[i] = state_of(dir, point) end
  local estimate = estimator(E, points, states)
  local rows = { { 'id', 'settings', 'state', 'parameters', 'bytes/token', 'bytes read', 'multiply-adds', 'minutes' } }
  local items, left, known = {}, 0, true
  for i, point in ipairs(points) do
    local c = cost.of(point.config) or {}
    local seconds, parameters = estimate(point), E.parameters and E.parameters(point.config)
    if states[i].state ~= 'done' then
      left, known = left + (seconds or 0), known and seconds ~= nil
    end
    rows[i + 1] = { point.id, point.label, states[i].state, big(parameters), big(c.bytes_per_token),
      big(c.read_bytes), big(c.flops), seconds and ('%.2f'):format(seconds / 60) or '-' }
    items[i] = json.object { { 'id', point.id }, { 'label', point.label }, { 'settings', point.config },
      { 'state', states[i].state }, { 'parameters', parameters }, { 'bytes_per_token', c.bytes_per_token },
      { 'read_bytes', c.read_bytes }, { 'flops', c.flops }, { 'minutes', seconds and seconds / 60 } }
  end
  if as_json then
    print(json.encode({ points = json.array(items) }, { indent = 2 }))
    return 0
  end
  print(table.concat(format.table(rows, { 'l', 'l', 'l' }), '\n'))
  local time = known and ('about %.1f minutes with -j %d'):format(left / 60 / jobs, jobs) or 'time not known yet'
  print(('%d points in %s; what is left: %s'):format(#points, dir, time))
  return 0
end

local function program()
  if cli.root then return core.system.realpath(cli.root .. '/scripts/kvlab') end
  return 'kvlab'
end

local function absolute(dir)
  local pwd = core.system.realpath('.')
  return dir:find('^/') and dir or pwd .. '/' .. dir
end

function command.run(args, options)
  if #args ~= 1 then cli.usage('sweep: expected one experiment file, got %d', #args) end
  if options.retry and options.retry ~= 'failed' then cli.usage('--retry %s: expected failed', options.retry) end
  if options.emit and options.emit ~= 'slurm' and options.emit ~= 'list' then
    cli.usage('--emit %s: expected slurm or list', options.emit)
  end
  local jobs = options.jobs and cli.whole(options.jobs, '--jobs', 1) or core.base.threads()
  local budget = options.budget and cli.positive(options.budget, '--budget')
  local path = args[1]
  if not core.system.stat(path) and cli.root and core.system.stat(cli.root .. '/' .. path) then
    path = cli.root .. '/' .. path
  end
  local E = experiment.load(path)
  local dir = options.dir or 'runs/' .. E.name
  local points = cli.as_usage(experiment.points, E, { set = options.set, only = options.only })
  if #points == 0 then cli.failed('sweep: no point matches --only %s', tostring(options.only)) end
  if options['dry-run'] then return dry_run(E, points, dir, jobs, options.json) end
  if options.emit then
    print(emit[options.emit] { program = program(), file = E.file, dir = absolute(dir), points = points,
      set = options.set, retry = options.retry ~= nil, name = E.name, jobs = jobs, minutes = budget })
    return 0
  end
  core.base.catch_interrupts(false) -- the loop looks; an error in the middle of it would lose workers
  core.system.catch_terminate()
  local ok, result = pcall(sweep.run, E, { dir = dir, jobs = jobs, retry = options.retry ~= nil, budget = budget,
    set = options.set, only = options.only,
    say = not options.json and function(text)
      print(text)
      io.stdout:flush()
    end or nil })
  core.base.clear_interrupt()
  core.base.catch_interrupts()
  if not ok then cli.failed('sweep: %s', result) end
  local failures = {}
  for i, one in ipairs(result.failures) do
    failures[i] = json.object { { 'id', one.point.id }, { 'label', one.point.label }, { 'reason', one.reason } }
    if not options.json then cli.note('%s (%s) failed: %s', one.point.id, one.point.label, one.reason) end
  end
  if options.json then
    print(json.encode(json.object { { 'dir', result.dir }, { 'points', result.points }, { 'done', result.done },
      { 'done_before', result.before }, { 'failed', result.failed }, { 'left', result.left },
      { 'failures', json.array(failures) } }, { indent = 2 }))
  else
    print(('%d points: %d done, %d done before, %d failed, %d left%s'):format(result.points, result.done, result.before,
      result.failed, result.left, result.left > 0 and '; the same command goes on' or ''))
    print(('kvlab report %s shows the results'):format(emit.quote(dir)))
  end
  if result.stopped == 'interrupted' then return 128 + (core.system.terminated() or 2) end
  return result.failed > 0 and 1 or 0
end

return command
