-- What each named record costs and loses: rows of random numbers go through it and come back.
--   kvlab sweep experiments/records/run.lua && kvlab report runs/records
-- Rows are standard normal, or have a few channels that are 20 times as large, as keys and values of trained models do:
-- a scale that many channels share then serves the large ones, and the ordinary ones pay.
local kv = require 'kvlab'

local ROWS <const> = 256
local OUTLIER_SHARE <const>, OUTLIER_FACTOR <const> = 1 / 64, 20
local DIMS = { channels = 512, key = 256, value = 256 } -- for records without a width of their own

-- float32 {width}: `large` in the outlying channels, `ordinary` in all others.
local function channels(width, seed, large, ordinary)
  local list = {}
  for i = 1, width do list[i] = ordinary end
  for i, channel in ipairs(kv.permutation(width, seed):totable()) do
    if i <= math.max(1, math.floor(width * OUTLIER_SHARE)) then list[channel + 1] = large end
  end
  return kv.tensor(list)
end

local function norm(x) return math.sqrt((x * x):sum()) end

local function point(run)
  local c = run.config
  local record = kv.config.record(c.record)
  local natural = record.natural
  local plan = record:plan(natural and not natural.key and natural or DIMS)
  local rows = kv.random { ROWS, plan.channels, seed = c.seed }
  local ordinary = kv.ones(plan.channels)
  if c.rows == 'outliers' then
    rows = rows * channels(plan.channels, c.seed, OUTLIER_FACTOR + 0.0, 1.0)
    ordinary = channels(plan.channels, c.seed, 0.0, 1.0)
  end
  local lost = plan:roundtrip(rows) - rows
  return {
    error = norm(lost) / norm(rows),
    error_ordinary = norm(lost * ordinary) / norm(rows * ordinary),
    bytes_per_value = plan.bytes / plan.channels,
  }
end

-- Those of kvlab, in the order of their names: a record that somebody registered before is not among them.
local names = {}
for i, record in ipairs(require 'kvlab.records') do names[i] = record.name end

return {
  name = 'records',
  point = point,
  defaults = { record = 'bf16', rows = 'normal', seed = 1 },
  vary = { record = names, rows = { 'normal', 'outliers' } },
  seeds = 3,
  measure = { 'error_ordinary', 'error' },
  better = 'less',
  cost = 'bytes_per_value',
  within = { 'rows' },
  timeout = 60,
}
