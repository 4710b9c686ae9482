-- How an indexer learns to select: from a trained dense model, or from scratch with its own loss or without.
--   kvlab sweep experiments/indexer-training/run.lua && kvlab report runs/indexer-training
-- plan = 'warm-up': a model is trained on all entries; then it reads the k entries that each arm selects; then its
-- indexer learns alone (the KL loss on all visible entries) and selects again. Metrics are accuracies, ARM_kK.
-- plan = 'scratch': it reads k selected entries from the first step on; kl says whether its indexer learns meanwhile.
local evaluate = require 'kvlab.evaluate'
local extend = require 'kvlab.extend'
local recipe = require 'kvlab.recipe'
local trainer = require 'kvlab.trainer'

local DENSE <const>, WARM <const> = 500, { 50, 200 } -- steps
local K <const> = { 1, 2, 4, 8 }

local defaults, resolve = extend.with({ plan = 'warm-up', k = 8, kl = 'visible' }, function(c, own)
  local scratch = own.plan == 'scratch'
  c.widths.index_topk = own.k
  c.indexer = { kl = own.kl, dense_steps = scratch and 0 or DENSE, warmup = scratch and 0 or WARM[#WARM] }
  if not scratch then c.steps = DENSE + WARM[#WARM] end
end)

-- Accuracy of what t has learned when k entries are read, which `arm` selects; and the share of attention they have.
local function selecting(t, arm, k)
  local c, widths = {}, {}
  for key, value in pairs(t.config) do c[key] = value end
  for key, value in pairs(c.widths) do widths[key] = value end
  c.widths, widths.index_topk = widths, k
  local m = recipe.model(c, t.task, t.model.parameters)
  local found = evaluate.full(m, t.task, { batches = c.eval_batches, size = c.eval_size,
    indexer = { select = arm, seed = 0 } })
  return found.accuracy, found.index_recall
end

local function point(run)
  if run.config.plan == 'scratch' then return trainer.point(run) end
  local t, metrics = trainer.new(run.config), {}
  local function measure(name, arm)
    for _, k in ipairs(K) do
      local at = ('%s_k%d'):format(name, k)
      metrics[at], metrics['recall_' .. at] = selecting(t, arm, k)
    end
  end
  while t.step < DENSE do t:advance() end
  metrics.dense = selecting(t, 'oracle', t.task.length)
  for _, arm in ipairs { 'oracle', 'random', 'recent' } do measure(arm, arm) end
  measure('untrained', 'learned')
  local did
  for _, steps in ipairs(WARM) do
    while t.step < DENSE + steps do did = t:advance() end
    measure('warm' .. steps, 'learned')
    metrics['kl_warm' .. steps] = did.kl
    run:log { step = t.step, kl = did.kl, accuracy = metrics[('warm%d_k4'):format(steps)] }
  end
  metrics.accuracy, metrics.step = metrics[('warm%d_k%d'):format(WARM[#WARM], run.config.k)], t.step
  return metrics
end

return {
  name = 'indexer-training',
  point = point,
  defaults = defaults, resolve = resolve,
  fixed = {
    -- a window of 2, then attention that reads the k tokens that an indexer of 4 heads of 16 selects
    layout = 'layer{form=heads,window=2} layer{form=heads,cache=own,select=topk,keys=input}',
    task = { name = 'recall', vocab = 128, length = 32, pairs = 4 },
    widths = { hidden_size = 64, num_attention_heads = 1, head_dim = 64, rope_interleave = false, index_n_heads = 4,
      index_head_dim = 16, index_rope = 'first' },
    model = { norm = 'layer', tied = true, ffn = 0 },
    init = { kind = 'normal', std = 0.02 },
    steps = 1000, batch = 128,
    optimiser = { lr = 3e-3, beta2 = 0.999, decay = 0.1, clip = 1 },
    schedule = { kind = 'constant', warmup = 100 },
    eval_every = 250, log_every = 250, checkpoint_every = 1000,
    stop = { metric = 'accuracy', at = 0.99 },
  },
  vary = {
    { plan = 'warm-up' },
    { plan = 'scratch', kl = 'none', k = 4 }, { plan = 'scratch', kl = 'none', k = 8 },
    { plan = 'scratch', kl = 'selected', k = 4 }, { plan = 'scratch', kl = 'selected', k = 8 },
  },
  by = { 'plan', 'kl', 'k' },
  seeds = 3,
  measure = { 'accuracy', 'step', 'index_recall', 'kl' },
  better = 'more',
  within = { 'plan' },
  timeout = 3600,
}
