-- results.lua DIR [ID]: prints what the runs of toys.lua in DIR came to, all that does not depend on the time they
-- took: the report, and of each run its result, its metrics and the digest of its last tensors. Or that of one run.
local core = require 'kvlab.core'
local json = require 'kvlab.json'
local kv = require 'kvlab'

local dir, only = ...

local function show(front, metrics)
  metrics.tokens_per_second = nil
  print(front .. ' ' .. json.encode(metrics))
end

local function show_run(id)
  local r = kv.run.open(('%s/%s'):format(dir, id))
  local how, about = r:status()
  print(id .. ' ' .. how)
  if how ~= 'done' then return end
  show('result', about.metrics)
  for _, line in ipairs((r:metrics())) do show('line', line) end
  for _, name in ipairs(core.base.list_dir(r.dir .. '/checkpoints')) do
    if name:find('^step%-20%-%d+%.safetensors$') then
      print('tensors ' .. core.system.sha256_file(('%s/checkpoints/%s'):format(r.dir, name)))
    end
  end
end

if only then return show_run(only) end
for _, row in ipairs(kv.report(dir).rows) do
  print(json.encode(row.setting) .. ' n ' .. row.n)
  show('means', row.metrics)
end
local ids = {}
for _, name in ipairs(core.base.list_dir(dir)) do
  if name:find('^%x+$') then ids[#ids + 1] = name end
end
table.sort(ids)
for _, id in ipairs(ids) do show_run(id) end
