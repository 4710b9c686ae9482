-- sweep.lua: does the points of an experiment, each in a process of its own, some at a time.
--
-- There is no server and no list of jobs: what is to be done follows from the experiment, what is done from the run
-- folders, and a claim (kvlab.claim) decides who does what. So any number of runners may work on one folder, and after
-- any of them was killed the same command goes on.
local core = require 'kvlab.core'
local environment = require 'kvlab.environment'
local experiment = require 'kvlab.experiment'
local json = require 'kvlab.json'
local opts = require 'kvlab.options'
local run = require 'kvlab.run'

local system = core.system
local sweep = { grid = experiment.grid, draws = experiment.draws }

local GRACE <const> = 20  -- seconds that workers have to end after they were asked to
local SIGINT <const>, SIGKILL <const>, SIGTERM <const> = 2, 9, 15

local SIGNALS = { [4] = 'SIGILL', [6] = 'SIGABRT', [7] = 'SIGBUS', [8] = 'SIGFPE', [11] = 'SIGSEGV',
  [24] = 'SIGXCPU', [25] = 'SIGXFSZ' }

-- Did somebody else ask the worker to stop? Schedulers signal all processes of a task, and a worker may be gone before
-- its runner has heard of it.
local function was_asked(kind, code)
  local signal = kind == 'signal' and code or code - 128
  return signal == SIGINT or signal == SIGTERM
end

-- Why a process that wrote no reason ended.
local function reason_of(kind, code)
  if kind == 'signal' and code == SIGKILL then return 'killed by SIGKILL: the system was out of memory, or kill -9' end
  if kind == 'signal' then
    return ('ended by signal %d%s'):format(code, SIGNALS[code] and ', ' .. SIGNALS[code] or '')
  end
  if code == 0 then return 'ended without a result' end
  return ('ended with status %d, see output.log'):format(code)
end

-- The command that starts a worker, and its environment: this interpreter, these paths, one thread.
local function worker_command(E, dir, number)
  local program = system.readlink('/proc/self/exe')
  if not program or not program:match('[^/]*$'):find('^lua') then program = 'lua5.4' end
  local file = package.searchpath('kvlab.worker', package.path)
  return { program, file, E.file, dir, tostring(number) }
end

local OWN = { LUA_PATH = true, LUA_PATH_5_4 = true, LUA_CPATH = true, LUA_CPATH_5_4 = true, LUA_INIT = true,
  LUA_INIT_5_4 = true, OPENBLAS_NUM_THREADS = true, KVLAB_THREADS = true }
local function worker_environment()
  local list = environment.variables(OWN)
  for name, value in pairs { LUA_PATH = package.path, LUA_CPATH = package.cpath, OPENBLAS_NUM_THREADS = '1',
    KVLAB_THREADS = '1' } do
    list[#list + 1] = ('%s=%s'):format(name, value)
  end
  return list
end

-- --- one runner ------------------------------------------------------------------------------------------

local function run_dir(self, point) return ('%s/%s'):format(self.dir, point.id) end

local function say(self, text, ...)
  if self.say then self.say(text:format(...)) end
end

local function settle(self, point, how, about)
  self.settled[point.id] = how
  self.count[how] = self.count[how] + 1
  if how == 'failed' then self.failures[#self.failures + 1] = { point = point, reason = about } end
end

-- sweep.shown(metrics) -> 'accuracy 0.99, loss 0.1'
function sweep.shown(metrics)
  local keys, parts = {}, {}
  for key, value in pairs(metrics or {}) do
    if type(value) == 'number' then keys[#keys + 1] = key end
  end
  table.sort(keys)
  for _, key in ipairs(keys) do parts[#parts + 1] = ('%s %.5g'):format(key, metrics[key]) end
  return table.concat(parts, ', ')
end

-- Starts a worker for the point, or settles it. Returns true when one was started.
local function start(self, point)
  local dir = run_dir(self, point)
  local r = run.create { dir = dir, config = point.config }
  local retry = self.retry and not self.retried[point.id]
  local how, about = r:status()
  if how == 'done' then settle(self, point, 'before') return false end
  if how == 'failed' and not retry then settle(self, point, 'failed', about.reason) return false end
  if not r:claim() then return false end -- somebody is at it
  how, about = r:status() -- it may have ended between the two
  if how == 'done' or how == 'failed' and not retry then
    r:release()
    settle(self, point, how == 'done' and 'before' or 'failed', about.reason)
    return false
  end
  if how == 'failed' then r:retry() end
  self.retried[point.id] = true
  local process, problem = system.spawn(worker_command(self.E, dir, r.number), worker_environment(),
    dir .. '/output.log')
  if not process then
    r:fail('the worker cannot be started: ' .. problem)
    r:release()
    settle(self, point, 'failed', problem)
    return false
  end
  self.running[#self.running + 1] = { run = r, point = point, process = process, since = core.base.now() }
  return true
end

-- What became of a worker that has ended.
local function finish(self, one, kind, code)
  local point, r = one.point, one.run
  local seconds = core.base.now() - one.since
  local how, about = r:status()
  if how ~= 'done' and how ~= 'failed' then
    if one.lost then how, about = 'left', 'another runner has it'
    elseif one.late then how, about = 'failed', { reason = ('time-out after %g s'):format(self.E.timeout) }
    elseif self.stopping or was_asked(kind, code) then how, about = 'left', 'stopped'
    else how, about = 'failed', { reason = reason_of(kind, code) } end
    if how == 'failed' then r:fail(about.reason, { seconds = seconds }) end
  end
  if not one.lost then r:release() end
  if how == 'left' then
    if not one.lost then self.count.left = self.count.left + 1 end
    say(self, '%s  %s  %.1f s  %s', how, point.label, seconds, about)
    return
  end
  settle(self, point, how, about.reason)
  local total = #self.points - self.count.before
  say(self, '[%d/%d] %s  %s  %.1f s  %s', self.count.done + self.count.failed, total, how, point.label, seconds,
    how == 'done' and sweep.shown(about.metrics) or about.reason)
end

-- Heartbeats, time-outs, workers that ended.
local function attend(self)
  local now = core.base.now()
  local still = {}
  local list = self.running
  self.running = still
  for i, one in ipairs(list) do
    local kind, code = one.process:poll()
    if kind then
      local ok, problem = pcall(finish, self, one, kind, code)
      if not ok then
        for j = i + 1, #list do still[#still + 1] = list[j] end
        error(problem, 0)
      end
    else
      still[#still + 1] = one
      if now - (one.beaten or 0) > 1 then
        one.beaten = now
        if not one.lost and not pcall(one.run.beat, one.run) then
          one.lost = true
          one.process:signal(SIGKILL)
        end
      end
      if self.E.timeout and now - one.since > self.E.timeout and not one.late then
        one.late = true
        one.process:signal(SIGKILL)
      end
    end
  end
end

local function stop_workers(self, why)
  self.stopping = why
  for _, one in ipairs(self.running) do one.process:signal(SIGINT) end
  local until_then = core.base.now() + GRACE
  while #self.running > 0 do
    attend(self)
    if core.base.now() > until_then then
      for _, one in ipairs(self.running) do one.process:signal(SIGKILL) end
    end
    system.sleep(0.02)
  end
end

-- Goes through the points until each is done, has failed, or there is no time left. Points that others work on are
-- waited for: their runner may die.
local function loop(self)
  local pending, at, last_pass = self.points, 1, 0
  local waiting = {}
  while true do
    attend(self)
    if core.base.interrupted() then return stop_workers(self, 'interrupted') end
    if self.deadline and core.base.now() > self.deadline then return stop_workers(self, 'budget') end
    while #self.running < self.jobs and at <= #pending do
      local point = pending[at]
      at = at + 1
      if not start(self, point) and not self.settled[point.id] then waiting[#waiting + 1] = point end
      if core.base.interrupted() then break end
    end
    if at > #pending then
      if #waiting == 0 and #self.running == 0 then return end
      if #waiting > 0 and core.base.now() - last_pass > 0.5 then
        pending, at, waiting, last_pass = waiting, 1, {}, core.base.now()
      end
    end
    system.sleep(0.02)
  end
end

local OPTIONS = { 'dir', 'jobs', 'retry', 'budget', 'set', 'only', 'say' }

-- sweep.describe(E, dir, keys): writes down what a report of the folder needs to know.
function sweep.describe(E, dir, keys)
  run.write_whole(('%s/%s.sweep.json'):format(dir, E.name), json.encode({ name = E.name, file = E.file,
    keys = json.array(keys), measure = json.array(E.measure or {}), better = E.better, cost = E.cost,
    within = json.array(E.within or {}), by = E.by and json.array(E.by) or nil },
    { indent = 2 }) .. '\n')
end

-- sweep.run(E, { dir =, jobs =, retry =, budget = minutes, set =, only =, say = function(text) })
-- -> { points =, done =, before =, failed =, left =, failures = { { point =, reason = } }, stopped = nil | why }
function sweep.run(E, options)
  options = options or {}
  opts.check(options, OPTIONS, 'kv.sweep.run', 'option')
  if type(E) == 'string' then E = experiment.load(E) end
  if not E.file then error('kv.sweep.run: expected the path of a sweep file', 0) end
  local points, keys = experiment.points(E, { set = options.set, only = options.only })
  local dir = options.dir or 'runs/' .. E.name
  local budget = options.budget
  local self = { E = E, dir = dir, points = points, jobs = opts.whole(options.jobs or 1, 1, 'kv.sweep.run: jobs'),
    retry = options.retry, deadline = budget and core.base.now() + budget * 60, say = options.say,
    running = {}, settled = {}, retried = {}, failures = {},
    count = { done = 0, failed = 0, before = 0, left = 0 } }
  run.make_folders(dir)
  dir = system.realpath(dir)
  self.dir = dir
  sweep.describe(E, dir, keys)
  local ok, problem = pcall(loop, self)
  if not ok then
    pcall(stop_workers, self, 'error')
    error(problem, 0)
  end
  local settled = self.count.done + self.count.failed + self.count.before
  return { points = #points, done = self.count.done, before = self.count.before, failed = self.count.failed,
    left = #points - settled, failures = self.failures, stopped = self.stopping, dir = dir }
end

-- sweep.points(E, { set =, only = }) -> list of { id =, config =, label = }, keys that vary; E: a path, or what a sweep
-- file returns.
function sweep.points(E, options)
  E = type(E) == 'string' and experiment.load(E) or experiment.check(E)
  return experiment.points(E, options)
end

return sweep
