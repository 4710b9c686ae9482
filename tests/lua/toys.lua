-- toys.lua: models at toy widths and what tests of sequences do with them.
local lu = require 'luaunit'
local kv = require 'kvlab'

local WIDTHS <const> = { hidden_size = 16, num_attention_heads = 4, num_key_value_heads = 2, head_dim = 8,
  qk_nope_head_dim = 8, qk_rope_head_dim = 4, v_head_dim = 8, kv_lora_rank = 8, index_n_heads = 8, index_head_dim = 8,
  index_topk = 2, sliding_window = 3, vocab_size = 16, o_groups = 2, o_lora_rank = 4, q_lora_rank = 12,
  intermediate_size = 8 }

-- A layer of every kind; per-head, latent and entry rows in one model.
local EVERY <const> = 'mha mqa gqa mla dsa swa hca/5 csa/3 reindex reuse full/2{pool=2x2} reindex reuse '
  .. '| full/1{source=encoder} reuse dsa{select=share}'

local function model(text, options, changes)
  local w = {}
  for name, value in pairs(WIDTHS) do w[name] = value end
  for name, value in pairs(changes or {}) do w[name] = value end
  return kv.model(kv.layout(text), w, options)
end

local function ids(n, salt)
  local list = {}
  for t = 1, n do list[t] = (t * t + 3 * t + (salt or 0)) % 16 end
  return list
end

local function part(list, first, last) return table.move(list, first, last, 1, {}) end

-- The values of t at the indices given, as a vector.
local function row(t, ...)
  for axis, i in ipairs { ... } do t = t:slice(axis, i, i) end
  return t:reshape(-1)
end

local function distance(a, b)
  local error = math.sqrt(((a - b) * (a - b)):sum() / (b * b):sum())
  return error == error and error or math.huge
end

local function assert_close(a, b, message)
  local error = distance(a, b)
  lu.assertTrue(error <= 1e-5, ('%s: error %g'):format(message or 'differs', error))
end

-- A sequence with these tokens behind it, as if nothing else had ever happened.
local function fresh(m, list, options)
  local seq = m:sequence(options or { records = 'f32' })
  if #list > 0 then seq:prefill(list) end
  return seq
end

return { model = model, ids = ids, part = part, row = row, distance = distance, assert_close = assert_close,
  fresh = fresh, every = EVERY }
