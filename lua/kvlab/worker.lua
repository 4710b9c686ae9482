-- worker.lua: the process of one point of a sweep. Not a module: the runner starts it with
--   lua worker.lua FILE DIR NUMBER
-- The runner holds claim NUMBER of the run in DIR and gives its heartbeats. What goes wrong in the experiment's code is
-- written down here as the reason; what ends this process altogether, by the runner.
local file, dir, number = ...
local core = require 'kvlab.core'
local experiment = require 'kvlab.experiment'
local run = require 'kvlab.run'

core.base.catch_interrupts()
core.system.catch_terminate()
core.base.blas_single_thread()
core.base.threads(math.tointeger(tonumber(os.getenv('KVLAB_THREADS') or 1)) or 1)
io.stdout:setvbuf('line')

local r = run.open(dir)
r:claimed(math.tointeger(tonumber(number)))

local function work()
  local E = experiment.load(file)
  if E.name ~= r.config.experiment or E.version ~= r.config.version then
    error(('%s is now experiment %s, version %d; the run belongs to %s, version %s'):format(file, E.name, E.version,
      r.config.experiment, tostring(r.config.version)), 0)
  end
  if E.memory then core.base.limit_memory(E.memory) end
  r:begin { experiment = E.digest }
  local result = E.point(r)
  r:finish(result)
end

local function explain(problem)
  io.stderr:write(debug.traceback(tostring(problem), 2), '\n')
  return tostring(problem)
end

local ok, problem = xpcall(work, explain)
for _, note in ipairs(r.notes) do io.stderr:write('kvlab: note: ', note, '\n') end
if ok then os.exit(0, true) end
if core.base.interrupted() then os.exit(128 + (core.system.terminated() or 2), true) end
r:fail(problem)
os.exit(1, true)
