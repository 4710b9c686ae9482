-- What a cache record costs a trained model: the record put in after training, or trained in; the window and the
-- global entries apart.
--   kvlab sweep experiments/records/trained.lua && kvlab report runs/records-trained
-- record = 'f32' trains in float and then evaluates through every record in every place: after_RECORD_PLACE, the
-- loss. The others train through their record (gradients pass straight through) and are evaluated so.
local evaluate = require 'kvlab.evaluate'
local extend = require 'kvlab.extend'
local recipe = require 'kvlab.recipe'
local trainer = require 'kvlab.trainer'

local RECORDS <const> = { 'bf16', 'v4.1-local', 'v4.1-main', 'mxfp4' } -- FP8 per 32, FP4 per 16, FP4 per 32
local PLACES <const> = { 'main', 'window', 'both' }

-- The option `records` for one record in one place.
local function stored(record, place)
  return { main = place ~= 'window' and record or 'f32', window = place ~= 'main' and record or 'f32' }
end

local defaults, resolve = extend.with({ record = 'f32', place = 'both' }, function(c, own)
  c.precision, c.records = 'records', stored(own.record, own.place)
end)

-- What the model of t is worth when its rows are stored in such a way.
local function evaluated(t, record, place)
  local c = {}
  for key, value in pairs(t.config) do c[key] = value end
  c.records = stored(record, place)
  local m = recipe.model(c, t.task)
  for name, parameter in pairs(m.parameters) do parameter:copy_(t.model.parameters[name]) end
  return evaluate.full(m, t.task, { batches = c.eval_batches, size = c.eval_size })
end

local function point(run)
  if run.config.record ~= 'f32' then return trainer.point(run) end
  local t = trainer.new(run.config)
  while t.step < run.config.steps do t:advance() end
  local metrics = t:evaluate()
  for _, record in ipairs(RECORDS) do
    for _, place in ipairs(PLACES) do
      local found, at = evaluated(t, record, place), ('after_%s_%s'):format(record, place)
      metrics[at], metrics['accuracy_' .. at] = found.val_loss, found.accuracy
    end
  end
  return metrics
end

local points = { {} }
for i = 2, #RECORDS do
  for _, place in ipairs(PLACES) do points[#points + 1] = { record = RECORDS[i], place = place } end
end

return {
  name = 'records-trained',
  point = point,
  defaults = defaults, resolve = resolve,
  fixed = {
    layout = 'swa{window=2} hca/1{window=2}',
    task = { name = 'recall', vocab = 128, length = 48, pairs = 8 },
    widths = { hidden_size = 64, num_attention_heads = 1, head_dim = 32 },
    model = { norm = 'layer', tied = true, ffn = 0 },
    init = { kind = 'normal', std = 0.05 },
    steps = 400, batch = 64,
    optimiser = { lr = 3e-3, beta2 = 0.999, decay = 0.1, clip = 1 },
    schedule = { kind = 'cosine', warmup = 100 },
    log_every = 100,
  },
  vary = points,
  by = { 'record', 'place' },
  seeds = 3,
  measure = { 'val_loss', 'accuracy' },
  better = 'less',
  within = { 'place' },
  timeout = 600,
}
