-- trained.lua: a run's model as its newest checkpoint has it, for those who look at it: kvlab eval and kvlab sample.
-- Nothing is written, so it may be asked while the run goes on.
local config = require 'kvlab.config'
local core = require 'kvlab.core'
local recipe = require 'kvlab.recipe'
local run = require 'kvlab.run'
local trainer = require 'kvlab.trainer'

local trained = {}

-- The folder of the run that `path` means: itself, or the only run in it.
local function folder(path)
  local function is_run(dir) return core.system.stat(dir .. '/config.json') ~= nil end
  if is_run(path) then return path end
  local names, problem = core.base.list_dir(path)
  if not names then error(problem, 0) end
  table.sort(names)
  local found = {}
  for _, name in ipairs(names) do
    if is_run(path .. '/' .. name) then found[#found + 1] = name end
  end
  if #found == 1 then return ('%s/%s'):format(path, found[1]) end
  if #found == 0 then error(('%s: there is no run (no config.json)'):format(path), 0) end
  error(('%s holds %d runs, expected one: %s%s'):format(path, #found, table.concat(found, ', ', 1, math.min(#found, 5)),
    #found > 5 and ', ...' or ''), 0)
end

-- trained.open(path, { 'key=value', ... }) -> { run, config, task, model, step, indexer (to evaluate with) }. The
-- settings changed are those of reading (where files are, how much is evaluated), not of what was trained.
function trained.open(path, sets)
  local r = run.open(folder(path))
  local c = config.plain(r.config)
  if c.task == nil or c.layout == nil or c.optimiser == nil then
    error(('%s: this run trained no model of kvlab.trainer'):format(r.dir), 0)
  end
  for _, text in ipairs(sets or {}) do config.set(c, config.assignment(text)) end
  local t = trainer.new(c)
  local last = r:last()
  if not last then
    error(('%s: %s'):format(r.dir, r.notes[1] or 'there is no checkpoint yet'), 0)
  end
  if not (type(last.state) == 'table' and last.state.training) then
    error(('%s: its checkpoints are not those of kvlab.trainer'):format(r.dir), 0)
  end
  t:load(last)
  return { run = r, config = c, task = t.task, model = t.model, step = t.step, indexer = t:indexer() }
end

-- trained.through(t, records) -> the same model, which on whole sequences computes with what caches in these records
-- give back; nil: with float32.
function trained.through(t, records)
  local c = {}
  for key, value in pairs(t.config) do c[key] = value end
  c.precision, c.records = records and 'records' or 'float', records
  return recipe.model(c, t.task, t.model.parameters)
end

return trained
