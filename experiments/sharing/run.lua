-- How many layers should own a cache, how wide, where, how compressed? Recall of 16 pairs through four global layers.
--   kvlab sweep experiments/sharing/run.lua && kvlab report runs/sharing
-- Below each stack lies a window of 2: it joins key and value, so that even the first owner has something to share
-- (experiments/where-full). Heads are narrow, so that a cache can be too small for its task.
local kv = require 'kvlab'

local window = kv.layer { form = 'heads', window = 2 }
local mha, reuse, reindex = kv.mha, kv.reuse, kv.reindex

local points = {}
local function add(head_dim, layout)
  points[#points + 1] = { layout = kv.layout(layout), ['widths.head_dim'] = head_dim }
end

-- Owners and width: 4 x 4, 2 x 8 and 1 x 16 store the same bytes, and so do 4 x 8, 2 x 16 and 1 x 32.
for _, head_dim in ipairs { 4, 8, 16 } do add(head_dim, { window, mha * 4 }) end
for _, head_dim in ipairs { 8, 16 } do add(head_dim, { window, kv.group { mha, reuse } * 2 }) end
for _, head_dim in ipairs { 8, 16, 32 } do add(head_dim, { window, mha, reuse * 3 }) end

-- Placement of two owners.
add(8, { window, mha * 2, reuse * 2 })
add(8, { window, mha, reuse * 2, mha })

-- One owner whose entries are of m tokens.
for _, m in ipairs { 1, 2, 4 } do add(16, { window, kv.hca { ratio = m, window = 2 }, reuse * 3 }) end

-- The pattern of V4.1, with 3 layers in the encoder and 4 in the decoder: as it is, without its Reindex, unshared.
local swa = kv.swa { window = 2 }
local function full(ratio, pool) return kv.full { ratio = ratio, window = 2, topk = 8, pool = pool } end
local pooled = full(1, { blocks = 8, block = 4 })
add(16, { encoder = { swa, full(2), reuse }, decoder = { pooled, reuse, reindex, reuse } })
add(16, { encoder = { swa, full(2), reuse }, decoder = { full(1), reuse * 3 } })
add(16, { encoder = { swa, full(2) * 2 }, decoder = { full(1) * 4 } })

return {
  name = 'sharing',
  worker = 'kvlab.trainer',
  fixed = {
    task = { name = 'recall', vocab = 128, length = 64, pairs = 16 },
    widths = { hidden_size = 64, num_attention_heads = 1, rope_interleave = false },
    model = { norm = 'layer', tied = true, ffn = 0 },
    init = { kind = 'nanogpt', std = 0.06 },
    indexer = { dense_steps = 500, warmup = 50 },
    steps = 1500, batch = 64,
    optimiser = { lr = 3e-3, beta2 = 0.999, decay = 0.1, clip = 1 },
    schedule = { kind = 'cosine', warmup = 100 },
    eval_every = 100, log_every = 100, checkpoint_every = 1000,
    stop = { metric = 'accuracy', at = 0.99 },
  },
  vary = points,
  by = { 'layout', 'widths.head_dim' },
  seeds = 5,
  measure = { 'accuracy', 'step', 'candidate', 'val_loss' },
  better = 'more',
  cost = 'bytes_per_token',
  timeout = 3600,
}
