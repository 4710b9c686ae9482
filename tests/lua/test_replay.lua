-- test_replay.lua: bounded replay in a causal encoder-decoder (V4.1 report 3.2.2): cost, and when it is exact.
local lu = require 'luaunit'
local check = require 'check'
local toys = require 'toys'
local model, ids, part, fresh = toys.model, toys.ids, toys.part, toys.fresh
local distance, assert_close = toys.distance, toys.assert_close

TestReplay = {}

local function evaluations(text, W, T, n)
  local m = model(text, { ffn = 0 }, { sliding_window = W })
  local seq <close> = m:sequence { records = 'f32' }
  local logits = seq:prefill(ids(T), { replay = n })
  return m, seq.evaluations, logits
end

-- Two layers after the cut: the first token is exact from n = 1 + 2 (W - 1) on, those after it from 2 (W - 1).
function TestReplay:test_the_bound_and_one_below()
  for _, text in ipairs { 'swa full/2 reuse | full/1 reuse', 'swa*2 | swa*2', 'full/2 | reuse reuse',
    'full/1{pool=2x2} | reindex reuse', 'gqa | swa*2' } do
    for W = 2, 4 do
      local T, first, later = 15, 1 + 2 * (W - 1), 2 * (W - 1)
      for n = 1, 17 do
        local m, done, logits = evaluations(text, W, T, n)
        local where = ('%s, W %d, n %d'):format(text, W, n)
        local encoder = m.layout.cut
        lu.assertEquals(done, encoder * T + 2 * math.min(n, T), where)
        local plain <close> = m:sequence { records = 'f32' }
        local error = distance(logits, plain:prefill(ids(T)))
        if n >= first then lu.assertTrue(error <= 1e-5, ('%s: first token, error %g'):format(where, error)) end
        if n == first - 1 then lu.assertTrue(error > 1e-3, ('%s: one below, error %g'):format(where, error)) end

        local seq <close> = m:sequence { records = 'f32' }
        seq:prefill(ids(T), { replay = n })
        local worst = 0
        for t = 1, 3 do worst = math.max(worst, distance(seq:decode(t), plain:decode(t))) end
        if n >= later then lu.assertTrue(worst <= 1e-5, ('%s: decode, error %g'):format(where, worst)) end
        if n == later - 1 then lu.assertTrue(worst > 1e-3, ('%s: decode, one below, error %g'):format(where, worst)) end
      end
    end
  end
end

function TestReplay:test_what_cannot_be_replayed()
  local m = model 'swa | full/1{source=input} reuse'
  local seq <close> = m:sequence { records = 'f32' }
  check.fails('source = input', seq.prefill, seq, ids(9), { replay = 3 })
  lu.assertEquals(#seq, 0)
  assert_close(seq:prefill(ids(9), { replay = 9 }), fresh(m, {}):prefill(ids(9)))
  check.fails('replay starts a sequence', seq.prefill, seq, ids(9), { replay = 3 })
end

function TestReplay:test_chunks_rollback_and_forks_after_replay()
  local m = model('swa full/2 | full/1 reuse', nil, { sliding_window = 3 })
  local seq <close> = m:sequence { records = 'f32', rollback = 2 }
  seq:prefill(ids(12), { replay = 6 })
  local plain <close> = fresh(m, ids(12))
  local fork <close> = seq:fork()
  assert_close(seq:prefill(ids(4, 9)), plain:prefill(ids(4, 9)))
  seq:rollback(2)
  local again <close> = fresh(m, ids(12))
  again:prefill(part(ids(4, 9), 1, 2))
  for t = 1, 4 do assert_close(seq:decode(t), again:decode(t)) end
  local other <close> = fresh(m, ids(12))
  for t = 1, 4 do assert_close(fork:decode(t), other:decode(t)) end
end

check.main()
