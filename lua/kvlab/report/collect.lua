-- report/collect.lua: what there is in a folder of runs. It may be worked on meanwhile.
local config = require 'kvlab.config'
local core = require 'kvlab.core'
local environments = require 'kvlab.environment'
local json = require 'kvlab.json'
local run = require 'kvlab.run'

local function read_json(path)
  local file = io.open(path)
  if not file then return nil end
  local text = file:read('a')
  file:close()
  local ok, value = pcall(json.decode, text)
  return ok and value or nil
end

local function add_environments(seen, r, all)
  for _, environment in ipairs(r:environments()) do
    all[json.encode(environment)] = environment
    seen.commit[environments.commit_name(environment, 12)] = true
    if environment.kvlab then seen.kvlab[environment.kvlab] = true end
    if environment.experiment then seen.experiment[environment.experiment:sub(1, 12)] = true end
  end
end

local function names_of(set)
  local list = {}
  for name in pairs(set) do list[#list + 1] = name end
  table.sort(list)
  return list
end

-- The done runs, those that have begun and not ended, how many there are in each state, warnings, what the sweeps said.
local function collect(dir)
  local names, problem = core.base.list_dir(dir)
  if not names then error('report: ' .. problem, 0) end
  if core.system.stat(dir .. '/config.json') then names = { '.' } end -- a single run
  table.sort(names)
  local out = { runs = {}, begun = {}, counts = {}, warnings = {}, sweeps = {}, failures = {}, environments = {} }
  local seen = { commit = {}, kvlab = {}, experiment = {} }
  local others = 0
  for _, name in ipairs(names) do
    local path = dir .. '/' .. name
    if name:find('%.sweep%.json$') then
      out.sweeps[#out.sweeps + 1] = read_json(path)
    elseif core.system.stat(path .. '/config.json') then
      local ok, r, how, about = pcall(function()
        local r = run.open(path)
        return r, r:status()
      end)
      if not ok then
        others = others + 1
      else
        out.counts[how] = (out.counts[how] or 0) + 1
        if how == 'done' then
          out.runs[#out.runs + 1] = { config = r.config, metrics = about.metrics, seconds = about.seconds, run = r }
          add_environments(seen, r, out.environments)
        elseif how == 'failed' then
          out.failures[#out.failures + 1] = { id = r.id, reason = about.reason }
        elseif how ~= 'new' then
          out.begun[#out.begun + 1] = { config = r.config, run = r }
        end
      end
    end
  end
  if others > 0 then
    out.warnings[1] = ('%d runs are of another results version (or damaged) and left out'):format(others)
  end
  local words = { commit = 'commits', kvlab = 'versions of kvlab', experiment = 'versions of the sweep file' }
  for key, what in pairs(words) do
    local list = names_of(seen[key])
    if #list > 1 then
      out.warnings[#out.warnings + 1] = ('the runs mix %d %s: %s'):format(#list, what, table.concat(list, ', '))
    end
  end
  table.sort(out.warnings)
  out.made_with = { results = config.RESULTS, kvlab = json.array(names_of(seen.kvlab)),
    commits = json.array(names_of(seen.commit)) }
  return out
end

return collect
