-- kvlab train FILE: one run of an experiment, in this process, on all threads.
local cli = require 'kvlab.cli'
local core = require 'kvlab.core'
local emit = require 'kvlab.emit'
local experiment = require 'kvlab.experiment'
local json = require 'kvlab.json'
local progress = require 'kvlab.training_progress'
local run = require 'kvlab.run'
local sweep = require 'kvlab.sweep'

local command = {
  name = 'train',
  json = true,
  usage = 'train FILE.lua [OPTIONS]',
  summary = 'train one model on a task: any layout, resumable',
  text = [[FILE returns the settings of a training (docs/training.md), or an experiment of which --only and --set leave
one point. The run gets a folder of its own, DIR/ID, with settings, metrics and checkpoints; the id follows from the
settings. Ctrl-C and SIGTERM leave a checkpoint, and the same command goes on from it: the result is the same to the
bit. A run that is done is not done again. Folders are those of kvlab sweep, and kvlab report reads them.]],
  example = "kvlab train experiments/where-full/run.lua --only 'mha*2 seed=1'",
  options = {
    { 'set', 'KEY=VALUE', 'a setting, also inside tables (optimiser.lr=0.01); may be given again', many = true },
    { 'only', 'PATTERN', 'the point whose settings contain this text, or whose id begins so' },
    { 'dir', 'DIR', 'where runs are (runs/NAME)' },
    { 'threads', 'N', 'threads (as many as processors)' },
  },
}

local MOST <const> = 12 -- points that are listed

local function only_point(points, file)
  if #points == 1 then return points[1] end
  if #points == 0 then cli.usage('train: no point of %s fits --only', file) end
  local lines = {}
  for i = 1, math.min(#points, MOST) do lines[i] = ('  %s  %s'):format(points[i].id, points[i].label) end
  if #points > MOST then lines[#lines + 1] = ('  and %d more'):format(#points - MOST) end
  cli.usage('train: %s describes %d runs; choose one with --only or --set, or do all with kvlab sweep:\n%s', file,
    #points, table.concat(lines, '\n'))
end

local function show(r, about, as_json)
  if as_json then
    print(json.encode(json.object { { 'id', r.id }, { 'dir', r.dir }, { 'state', 'done' }, { 'metrics', about.metrics },
      { 'seconds', about.seconds }, { 'settings', r.config } }, { indent = 2 }))
    return
  end
  print(sweep.shown(about.metrics))
  print(('%s: kvlab eval %s shows what its caches cost'):format(r.dir, emit.quote(r.dir)))
end

-- Notes that came since it was called last.
local function teller(r)
  local told = 0
  return function()
    for i = told + 1, #r.notes do cli.note('%s', r.notes[i]) end
    told = #r.notes
  end
end

local function train(E, r, point)
  local tell = teller(r)
  local shown = progress.new(point.config.steps or 1)
  if E.memory then core.base.limit_memory(E.memory) end
  r:begin { experiment = E.digest }
  local ok, problem = xpcall(function()
    local metrics = E.point(r, function(training, line)
      tell()
      shown:step(training, line)
    end)
    r:finish(metrics)
  end, function(problem) return { text = tostring(problem), trace = debug.traceback('', 2) } end)
  shown:close()
  tell()
  return ok, problem
end

function command.run(args, options)
  if #args ~= 1 then cli.usage('train: expected one file, got %d', #args) end
  if options.threads then core.base.threads(cli.whole(options.threads, '--threads', 1)) end
  local E = experiment.load(args[1])
  local points, keys = experiment.points(E, { set = options.set, only = options.only })
  local point = only_point(points, args[1])
  local dir = options.dir or 'runs/' .. E.name
  core.system.catch_terminate()
  local r = run.create { dir = ('%s/%s'):format(dir, point.id), config = point.config }
  local how, about = r:status()
  if how == 'done' then
    cli.note('%s is done already', r.dir)
    show(r, about, options.json)
    return 0
  end
  local mine, who = r:claim()
  if not mine then cli.failed('%s is being worked on by %s', r.dir, who) end
  local claimed <close> = r
  if how == 'failed' then
    cli.note('it failed before (%s) and is tried again', about.reason)
    r:retry()
  end
  if not core.system.stat(('%s/%s.sweep.json'):format(dir, E.name)) then sweep.describe(E, dir, keys) end
  local ok, problem = train(E, claimed, point)
  if ok then
    show(r, select(2, r:status()), options.json)
    return 0
  end
  if core.base.interrupted() then
    cli.note('stopped; the same command goes on from where it was')
    return 128 + (core.system.terminated() or 2)
  end
  pcall(r.fail, r, problem.text) -- a full disk takes no reason
  error(setmetatable(problem, { __tostring = function(self) return self.text end }), 0)
end

return command
