-- Reindex or Reuse? Chains of two look-ups through four layers, of which each reads two entries.
--   kvlab sweep experiments/sharing/hops.lua && kvlab report runs/sharing-hops
-- The second look-up is of what the first one found: another entry, which a selection made before cannot know.
-- Models learn on all entries (one look-up alone, then both), then their indexers alone, then with selections.
-- k = 0 reads all entries, with four owners (`unshared`) or one: the first is the baseline, without which nothing can
-- be claimed.
local extend = require 'kvlab.extend'

local DENSE = { unshared = 'hca/1{window=4}*4', reuse = 'hca/1{window=4} reuse*3' }
local SELECTS = { reindex = 'reindex*3', mixed = 'reuse reindex reuse', reuse = 'reuse*3' }

local defaults, resolve = extend.with({ layers = 'reuse', k = 2 }, function(c, own)
  local layers = own.k == 0 and DENSE[own.layers] or ('full/1{window=4,topk=%d} %s'):format(own.k, SELECTS[own.layers])
  c.layout = 'swa{window=4} ' .. layers
end)

local function variables(chains, hops)
  return { name = 'variables', vocab = 64, length = 40, names = 20, chains = chains, hops = hops }
end

return {
  name = 'sharing-hops',
  worker = 'kvlab.trainer',
  defaults = defaults, resolve = resolve,
  fixed = {
    task = { { task = variables(4, 1), steps = 400 }, { task = variables(2, 2) } },
    widths = { hidden_size = 64, num_attention_heads = 2, head_dim = 32, intermediate_size = 256,
      rope_interleave = false },
    model = { norm = 'layer', tied = true, mlp = 'gelu' },
    init = { kind = 'nanogpt', std = 0.06 },
    indexer = { dense_steps = 2300, warmup = 300 },
    steps = 3500, batch = 64,
    optimiser = { lr = 1e-3, beta2 = 0.999, decay = 0.1, clip = 1 },
    schedule = { kind = 'cosine', warmup = 100 },
    eval_every = 250, log_every = 250, checkpoint_every = 2500,
    stop = { metric = 'accuracy', at = 0.99 },
  },
  vary = {
    { layers = 'unshared', k = 0, steps = 5000 }, { layers = 'reuse', k = 0 }, -- all entries
    { layers = 'reindex' }, { layers = 'mixed' }, { layers = 'reuse' },
  },
  by = { 'layers', 'k' },
  seeds = 3,
  measure = { 'accuracy', 'accuracy_hop1', 'accuracy_hop2', 'step', 'index_recall' },
  better = 'more',
  cost = 'bytes_per_token',
  timeout = 3600,
}
