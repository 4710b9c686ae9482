-- Where may the first layer that owns a cache sit? Stacks with one or two owners on associative recall.
--   kvlab sweep experiments/where-full/run.lua && kvlab report runs/where-full
-- Finding the value behind a key takes keys that already hold the token before them. A cache that is made of embeddings
-- has none, and the layers that borrow it cannot add them. A window of 2 below the owner can.
local kv = require 'kvlab'

local window = kv.layer { form = 'heads', window = 2 }

return {
  name = 'where-full',
  worker = 'kvlab.trainer',
  fixed = {
    task = { name = 'recall', vocab = 128, length = 32, pairs = 4 },
    widths = { hidden_size = 64, num_attention_heads = 1, head_dim = 64, rope_interleave = false },
    model = { norm = 'layer', tied = true, ffn = 0 },
    init = { kind = 'nanogpt', std = 0.03 },
    steps = 3000, batch = 64,
    optimiser = { lr = 3e-3, beta2 = 0.999, decay = 0.1, clip = 1 },
    schedule = { kind = 'cosine', warmup = 100 },
    eval_every = 250, log_every = 250, checkpoint_every = 1000,
    stop = { metric = 'accuracy', at = 0.99 },
  },
  vary = { layout = {
    kv.layout { kv.mha, kv.mha },                 -- F, F
    kv.layout { kv.mha, kv.reuse },               -- F, R
    kv.layout { kv.mha, kv.reuse * 2 },           -- F, R, R
    kv.layout { window, kv.mha },                 -- S2, F
    kv.layout { window, kv.mha, kv.reuse },       -- S2, F, R
    kv.layout { kv.mha { window = 2 }, kv.reuse }, -- F2, R2
    kv.layout { window * 3 },                     -- S2, S2, S2
  } },
  seeds = 3,
  measure = { 'accuracy', 'step', 'candidate', 'val_loss' },
  better = 'more',
  cost = 'bytes_per_token',
  timeout = 3600,
}
