-- Bounded replay: after a restart the layers behind the cut run on the last n tokens of the prompt only; how wrong is
-- the first token? (DeepSeek-V4.1 report 3.2.2.)
--   kvlab sweep experiments/replay/run.lua && kvlab report runs/replay
-- The prefill of random prompts with replay = n against the one without. n goes from 1 to the length from which the
-- result is exact, 1 + sum over the decoder's layers of (window - 1), given as a share of it.
local kv = require 'kvlab'

local TOKENS <const> = 96

local function norm(x) return math.sqrt((x * x):sum()) end

local function bound(c) return 1 + c.decoder * (c.window - 1) end

-- n for a share of the bound; 'below' is one token less than the bound.
local function tokens_of(c)
  if c.share == 'below' then return bound(c) - 1 end
  return math.max(1, math.floor(bound(c) * c.share + 0.5))
end

local function point(run)
  local c = run.config
  local layout = kv.layout(('swa full/2 reuse | full/1 reuse*%d'):format(c.decoder - 1))
  local model = kv.model(layout, { hidden_size = 64, num_attention_heads = 4, head_dim = 32, qk_rope_head_dim = 16,
    index_n_heads = 4, index_head_dim = 16, index_topk = 8, sliding_window = c.window, vocab_size = 256,
    q_lora_rank = 32, o_groups = 2, o_lora_rank = 16, intermediate_size = 128 }, { seed = c.seed })
  local prompt = kv.permutation(256, c.seed):slice(1, 1, TOKENS)
  local n = tokens_of(c)
  local whole <close> = model:sequence { records = 'f32' }
  local replayed <close> = model:sequence { records = 'f32' }
  local right, found = whole:prefill(prompt), replayed:prefill(prompt, { replay = n })
  return {
    error = norm(found - right) / norm(right),
    same_token = found:argmax():item() == right:argmax():item() and 1 or 0,
    replayed = n,
    bound = bound(c),
    computed = replayed.evaluations / whole.evaluations,
  }
end

return {
  name = 'replay',
  point = point,
  defaults = { decoder = 2, window = 4, share = 1, seed = 1 },
  vary = { decoder = { 2, 4 }, window = { 4, 8, 16 }, share = { 0, 0.25, 0.5, 0.75, 'below', 1 } },
  seeds = 5,
  measure = { 'error', 'same_token' },
  better = 'less',
  cost = 'replayed',
  within = { 'decoder', 'window' },
  timeout = 60,
}
