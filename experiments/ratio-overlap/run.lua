-- What one layer with compressed entries can recall: ratio x overlap x alignment of the pairs with the blocks.
--   kvlab sweep experiments/ratio-overlap/run.lua && kvlab report runs/ratio-overlap
-- An entry that covers key and value joins them, which takes another layer without compression. Pairs that begin in the
-- middle of a block are cut in two, unless entries overlap.
local extend = require 'kvlab.extend'

local defaults, resolve = extend.with({ ratio = 2, overlap = false, offset = 0, below = false }, function(c, own)
  local layer = ('hca/%d{overlap=%s,window=2}'):format(own.ratio, own.overlap)
  if own.ratio == 1 then layer = 'hca/1{window=2}' end
  c.layout = own.below and 'swa{window=2} ' .. layer or layer
  c.task = { name = 'recall', vocab = 128, length = 32 + own.offset, pairs = 4, offset = own.offset }
end)

local points = { { ratio = 1 } }
for _, overlap in ipairs { false, true } do
  for offset = 0, 1 do
    for _, ratio in ipairs { 2, 4 } do
      points[#points + 1] = { ratio = ratio, overlap = overlap, offset = offset }
    end
  end
end
points[#points + 1] = { ratio = 8 }
for _, point in ipairs { { 1, 0 }, { 2, 0 }, { 2, 1 }, { 4, 0 } } do
  points[#points + 1] = { ratio = point[1], offset = point[2], below = true }
end

return {
  name = 'ratio-overlap',
  worker = 'kvlab.trainer',
  defaults = defaults, resolve = resolve,
  fixed = {
    widths = { hidden_size = 64, num_attention_heads = 1, head_dim = 64 },
    model = { norm = 'layer', tied = true, ffn = 0, positions = 'none' },
    init = { kind = 'normal', std = 0.05 },
    steps = 1000, batch = 64,
    optimiser = { lr = 3e-3, beta2 = 0.999, decay = 0.1, clip = 1 },
    schedule = { kind = 'cosine', warmup = 100 },
    eval_every = 250, log_every = 250, checkpoint_every = 1000,
    stop = { metric = 'accuracy', at = 0.99 },
  },
  vary = points,
  by = { 'below', 'ratio', 'overlap', 'offset' },
  seeds = 3,
  measure = { 'accuracy', 'step', 'candidate', 'val_loss' },
  better = 'more',
  cost = 'bytes_per_token',
  timeout = 3600,
}
