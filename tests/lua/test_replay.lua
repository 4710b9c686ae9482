-- Bounded replay when the candidate pool was built before the cut: it has more queries than run behind it.
local lu = require 'luaunit'
local check = require 'check'
local kv = require 'kvlab'

TestReplay = {}

function TestReplay:test_pool_from_before_the_cut()
  local m = kv.model('swa full/1{pool=4x2} | reindex reuse', { hidden_size = 32, num_attention_heads = 2, head_dim = 16,
    qk_rope_head_dim = 8, q_lora_rank = 16, index_n_heads = 2, index_head_dim = 16, index_topk = 4,
    sliding_window = 4, vocab_size = 20 })
  local tokens = kv.random { 30, dist = 'integer', low = 0, high = 19, seed = 1 }
  local whole <close> = m:sequence { records = 'f32' }
  local replayed <close> = m:sequence { records = 'f32' }
  local want = whole:prefill(tokens)
  -- exact from 1 + 2 layers x (4 - 1) tokens on
  lu.assertTrue((replayed:prefill(tokens, { replay = 7 }) - want):abs():max() < 1e-5)
  lu.assertEquals({ whole.evaluations, replayed.evaluations }, { 4 * 30, 2 * 30 + 2 * 7 })
  lu.assertTrue((replayed:decode(3) - whole:decode(3)):abs():max() < 1e-5)
end

check.main()
