-- Rollbacks in a row: together they go no further back than rows are kept, whatever came in between.
local lu = require 'luaunit'
local check = require 'check'
local kv = require 'kvlab'

local widths = { hidden_size = 16, num_attention_heads = 2, head_dim = 16, qk_rope_head_dim = 8, sliding_window = 4,
  vocab_size = 10 }

TestRollback = {}

function TestRollback:test_what_was_taken_back_counts()
  local m = kv.model('swa hca/4', widths)
  local seq <close> = m:sequence { rollback = 3, records = 'f32' }
  seq:prefill { 1, 2, 3, 4, 5, 6, 7, 8, 9, 1 }
  seq:rollback(3)
  check.fails('0 can be taken back', seq.rollback, seq, 1)
  seq:prefill { 4 } -- one token came: one more can go
  check.fails('only 1 can be taken back', seq.rollback, seq, 2)
  seq:rollback(1)
  local logits = seq:decode(5)
  local other <close> = m:sequence { records = 'f32' }
  other:prefill { 1, 2, 3, 4, 5, 6, 7 }
  lu.assertTrue((other:decode(5) - logits):abs():max() < 1e-5)
end

check.main()
