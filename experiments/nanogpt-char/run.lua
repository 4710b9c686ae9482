-- nanoGPT's character model in the size that its author gives for CPUs, on a text file of yours.
--   kvlab sweep experiments/nanogpt-char/run.lua --set task.files=FILE && kvlab report runs/nanogpt-char
-- or KVLAB_TEXT=FILE. Published: validation loss 1.88 after 2,000 iterations on tinyshakespeare (1,115,394 bytes).
local recipe = require 'kvlab.recipe'

local function resolve(settings)
  if not settings.task.files then
    error('nanogpt-char: no text; name a file with --set task.files=FILE or KVLAB_TEXT=FILE', 0)
  end
  return recipe.resolve(settings)
end

return {
  name = 'nanogpt-char',
  worker = 'kvlab.trainer',
  resolve = resolve,
  fixed = {
    layout = 'mha*4',
    task = { name = 'text', files = os.getenv('KVLAB_TEXT') or false, length = 64, ngram = 0 },
    widths = { hidden_size = 128, num_attention_heads = 4, head_dim = 32, intermediate_size = 512,
      rms_norm_eps = 1e-5 },
    model = { norm = 'layer', mlp = 'gelu', positions = 'learned', tied = true },
    init = { kind = 'nanogpt', std = 0.02 },
    steps = 2000, batch = 12,
    optimiser = { lr = 1e-3, beta2 = 0.99, decay = 0.1, clip = 1 },
    schedule = { kind = 'cosine', warmup = 100, final = 0.1 },
    eval_every = 250, eval_batches = 4, eval_size = 128, log_every = 50, checkpoint_every = 250,
  },
  seeds = 3,
  measure = { 'val_loss', 'loss', 'accuracy' },
  better = 'less',
  cost = 'bytes_per_token',
  timeout = 7200,
}
