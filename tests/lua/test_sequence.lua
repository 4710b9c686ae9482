-- test_sequence.lua: sequences of a model: chunks, batches, forks, rollback, limits, failures.
local lu = require 'luaunit'
local check = require 'check'
local kv = require 'kvlab'
local kernels = require 'kvlab.kernels'
local toys = require 'toys'
local model, ids, part, fresh = toys.model, toys.ids, toys.part, toys.fresh
local row, assert_close, EVERY = toys.row, toys.assert_close, toys.every

TestChunks = {}

function TestChunks:test_a_layer_of_every_kind_in_every_way()
  local m = model(EVERY)
  local list = ids(19)
  local full = m:forward(list)
  for _, chunks in ipairs { { 19 }, { 1, 18 }, { 4, 4, 4, 4, 3 }, { 18, 1 }, { 7, 1, 1, 10 }, { 2, 3, 5, 9 } } do
    local seq <close> = m:sequence { records = 'f32' }
    local at = 0
    for _, n in ipairs(chunks) do
      local logits = seq:prefill(part(list, at + 1, at + n))
      at = at + n
      assert_close(logits, row(full, 1, at), ('chunks %s, token %d'):format(table.concat(chunks, ' '), at))
    end
    lu.assertEquals(#seq, 19)
  end
  local seq <close> = m:sequence { records = 'f32' }
  for t, id in ipairs(list) do assert_close(seq:decode(id), row(full, 1, t), 'token ' .. t) end
end

function TestChunks:test_forward_has_a_batch()
  local m = model(EVERY)
  local both = kv.tensor({ ids(9), ids(9, 5) }, 'int32')
  local logits = m:forward(both)
  lu.assertEquals(logits.shape, { 2, 9, 16 })
  assert_close(logits:slice(1, 1, 1), m:forward(ids(9)))
  assert_close(logits:slice(1, 2, 2), m:forward(ids(9, 5)))
end

function TestChunks:test_mla_expands_chunks_and_absorbs_tokens()
  local by_order = {}
  local m = model 'mla*2'
  local seen = {}
  local attend = kernels.attend
  function kernels.attend(o)
    seen[#seen + 1] = o.sources[1].key_rows and 'expand' or 'absorb'
    return attend(o)
  end
  local ok, problem = pcall(function()
    local seq <close> = m:sequence { records = 'f32' }
    seq:prefill(ids(5))
    seq:decode(3)
  end)
  kernels.attend = attend
  lu.assertTrue(ok, problem)
  lu.assertEquals(seen, { 'expand', 'expand', 'absorb', 'absorb' })
  for _, text in ipairs { 'mla*2', 'dsa*2', 'mla{window=2} dsa reuse' } do
    for _, order in ipairs { 'expand', 'absorb', 'merged' } do
      local ordered = model(text, { order = order })
      local seq <close> = ordered:sequence { records = 'f32' }
      seq:prefill(ids(6))
      by_order[order] = { ordered:forward(ids(7)), seq:decode(ids(7)[7]) }
      assert_close(by_order[order][2], row(by_order[order][1], 1, 7), text .. ', ' .. order)
      assert_close(by_order[order][1], by_order.expand[1], text .. ', ' .. order)
    end
  end
end

-- In whatever order it computes, a step reads what is counted.
function TestChunks:test_orders_read_the_same_rows()
  for _, text in ipairs { 'dsa{window=2}', 'mla', 'mla/2{select=topk,keys=entry} reuse' } do
    local m = model(text)
    local counted = kv.count(m.layout:labelled { widths = m.widths }, { context = 9, records = 'bf16' })
    for _, order in ipairs { 'expand', 'absorb', 'merged' } do
      local ordered = model(text, { order = order })
      for _, N in ipairs { 1, 9 } do
        local seq <close> = fresh(ordered, ids(N - 1), { records = 'bf16' })
        local plain <close> = fresh(m, ids(N - 1), { records = 'bf16' })
        seq:reset()
        assert_close(seq:decode(3), plain:decode(3), text .. ', ' .. order)
        if N == 9 then
          local reads = seq:reads()
          lu.assertEquals(tostring(reads.selected_bytes + reads.window_bytes), tostring(counted.read.kv_bytes), text)
        end
      end
    end
  end
end

TestBatch = {}

function TestBatch:test_several_sequences_at_their_own_positions()
  local m = model(EVERY)
  local seqs, alone = {}, {}
  for b, n in ipairs { 0, 1, 5, 12 } do
    seqs[b], alone[b] = fresh(m, ids(n, b)), fresh(m, ids(n, b))
  end
  for step = 1, 4 do
    local tokens = { step, 3, 15 - step, 7 }
    local logits = m:decode(seqs, tokens)
    lu.assertEquals(logits.shape, { 4, 16 })
    for b = 1, 4 do assert_close(row(logits, b), alone[b]:decode(tokens[b]), ('step %d, sequence %d'):format(step, b)) end
  end
  for b = 1, 4 do
    local together, apart = seqs[b]:reads(), alone[b]:reads()
    for _, key in ipairs { 'selected_bytes', 'window_bytes', 'index_bytes' } do
      lu.assertEquals(together[key], apart[key], key .. ' do not depend on the batch')
    end
    seqs[b]:free()
    alone[b]:free()
  end
end

function TestBatch:test_what_is_no_batch()
  local m, other = model 'csa/2', model 'csa/2'
  local a <close> = fresh(m, ids(3))
  local b <close> = fresh(m, ids(4))
  local c <close> = fresh(other, ids(3))
  check.fails('sequence 2 belongs to another model', m.decode, m, { a, c }, { 1, 2 })
  check.fails('belongs to another model', m.decode, m, { c }, { 1 })
  check.fails('sequence 2 stands twice', m.decode, m, { a, a }, { 1, 2 })
  check.fails('2 sequences need a list of as many tokens', m.decode, m, { a, b }, { 1 })
  check.fails('item 2 is a number', m.decode, m, { a, 7 }, { 1, 2 })
  check.fails('expected a list of sequences', m.decode, m, {}, {})
  check.fails('16 is outside 0 .. 15', m.decode, m, { a, b }, { 1, 16 })
  lu.assertEquals({ #a, #b, #c }, { 3, 4, 3 })
  local gone = fresh(m, ids(2))
  gone:free()
  check.fails('freed', m.decode, m, { a, gone }, { 1, 2 })
  lu.assertEquals(#a, 3)
  assert_close(a:decode(5), fresh(m, ids(3)):decode(5))
end

TestFork = {}

function TestFork:test_a_fork_shares_complete_pages_and_nothing_else()
  local m = model 'full/1 mla' -- pages of 64 entries
  local a <close> = fresh(m, ids(130), { records = 'bf16' })
  local main = a.cells[1].main.table
  local b <close> = a:fork()
  lu.assertEquals(#b, 130)
  lu.assertEquals(b.cells[1].main.table:pages(), main:pages())
  lu.assertEquals(b.cells[2].main.table:pages(), a.cells[2].main.table:pages())
  local expected <close> = fresh(m, ids(130), { records = 'bf16' })
  local other <close> = fresh(m, ids(130), { records = 'bf16' })
  for t = 1, 70 do -- both go on, each with its own tokens
    assert_close(b:decode(t % 16), expected:decode(t % 16), 'the fork, step ' .. t)
    assert_close(a:decode((t * 7) % 16), other:decode((t * 7) % 16), 'the original, step ' .. t)
  end
  local mine, its = main:pages(), b.cells[1].main.table:pages()
  lu.assertEquals({ mine[1], mine[2] }, { its[1], its[2] })
  lu.assertNotEquals(mine[3], its[3])
  lu.assertEquals(b:reads().layers[1].index_rows > 0, true)
end

function TestFork:test_either_may_be_freed_first()
  local m = model(EVERY)
  for _, first in ipairs { 'original', 'fork' } do
    local a = fresh(m, ids(11))
    local b = a:fork()
    local left = first == 'original' and b or a;
    (first == 'original' and a or b):free()
    local expected <close> = fresh(m, ids(11))
    assert_close(left:decode(9), expected:decode(9))
    left:free()
  end
end

function TestFork:test_the_fork_counts_for_itself()
  local m = model 'csa/2 reuse'
  local a <close> = fresh(m, ids(8))
  local before = a:reads()
  local b <close> = a:fork()
  lu.assertEquals(b:reads().selected_bytes, 0)
  b:decode(1)
  lu.assertTrue(b:reads().selected_bytes > 0)
  lu.assertEquals(a:reads(), before)
end

TestRollback = {}

function TestRollback:test_going_back_is_as_if_it_had_not_been()
  local m = model(EVERY)
  for r = 0, 4 do
    for _, way in ipairs { 'decode', 'prefill' } do
      for back = 0, r do
        local seq <close> = fresh(m, ids(9), { records = 'f32', rollback = r })
        if way == 'decode' then
          for t = 1, r do seq:decode((5 * t) % 16) end
        elseif r > 0 then
          seq:prefill(part(ids(9, 7), 1, r))
        end
        seq:rollback(back)
        lu.assertEquals(#seq, 9 + r - back)
        local past = ids(9)
        for t = 1, r - back do past[9 + t] = way == 'decode' and (5 * t) % 16 or ids(9, 7)[t] end
        local plain <close> = fresh(m, past)
        for t = 1, 6 do assert_close(seq:decode(t), plain:decode(t), ('%s, r %d, back %d, %d'):format(way, r, back, t)) end
      end
    end
  end
end

function TestRollback:test_no_further_than_was_asked_for()
  local m = model(EVERY)
  local seq <close> = fresh(m, ids(20), { records = 'f32', rollback = 2 })
  check.fails({ '3 tokens', 'rollback = 3' }, seq.rollback, seq, 3)
  check.fails('whole number', seq.rollback, seq, -1)
  check.fails('whole number', seq.rollback, seq, 0.5)
  check.fails('the sequence has 20', seq.rollback, seq, 21)
  lu.assertEquals(#seq, 20)
  seq:rollback(2)
  check.fails('1 token', seq.rollback, seq, 1)
  seq:prefill { 3 } -- a short chunk does not bring back what is gone
  check.fails('2 tokens', seq.rollback, seq, 2)
  lu.assertEquals(#seq, 19)
  seq:rollback(1)
  local list = ids(18)
  local plain <close> = fresh(m, list)
  for t = 1, 5 do assert_close(seq:decode(t), plain:decode(t)) end
  local none <close> = fresh(m, ids(20))
  check.fails('rollback = 1', none.rollback, none, 1)
  none:rollback(0)
end

function TestRollback:test_extra_rows_are_counted_apart()
  local m = model 'swa csa/2'
  local a <close> = fresh(m, ids(12))
  local b <close> = fresh(m, ids(12), { records = 'f32', rollback = 4 })
  local without, with = a:stats(), b:stats()
  lu.assertEquals(with.stored_bytes, without.stored_bytes)
  lu.assertEquals(with.state_bytes, without.state_bytes)
  -- One row more than r is kept, so that a step that fails can be taken back after a rollback of r.
  lu.assertEquals(without.rollback_bytes, 2 * 1 * 32)
  lu.assertEquals(with.rollback_bytes, 2 * 5 * 32)
  lu.assertTrue(with.state_rollback_bytes > without.state_rollback_bytes)
end

TestLimits = {}

local SMALL = kv.record { name = 'small-pages', page = { entries = 2 }, fields = { { channels = 'rest',
  number = 'f32' } } }

function TestLimits:test_out_of_pages_leaves_everything_as_it_was()
  for _, text in ipairs { 'gqa', 'csa/2', 'mla swa', 'full/2 reuse', EVERY } do
    local m = model(text)
    local options = { records = SMALL, pages = text == EVERY and 300 or 60 }
    local plain <close> = m:sequence { records = 'f32' }
    local seqs, failed = {}, nil
    for b = 1, 40 do
      local seq = m:sequence(options)
      local ok, problem = pcall(seq.prefill, seq, ids(9))
      seqs[b] = seq
      if not ok then failed = problem break end
    end
    lu.assertStrContains(tostring(failed), 'page')
    local last, one = seqs[#seqs], seqs[#seqs - 1]
    lu.assertTrue(#seqs > 3)
    lu.assertEquals(#last, 0)
    plain:prefill(ids(9))
    -- The pools are (nearly) full: go on with one sequence until it fails, too.
    local steps = 0
    for t = 1, 60 do
      local before = one:stats()
      local ok, problem = pcall(one.decode, one, t % 16)
      if not ok then
        lu.assertStrContains(tostring(problem), 'page')
        lu.assertEquals(one:stats(), before)
        break
      end
      steps = steps + 1
      assert_close(problem, plain:decode(t % 16), ('%s, step %d'):format(text, t))
    end
    local before = { one:stats(), #one, seqs[1]:stats() }
    check.fails('page', one.prefill, one, ids(200))
    lu.assertEquals({ one:stats(), #one, seqs[1]:stats() }, before)
    for b = 1, #seqs - 2 do seqs[b]:free() end -- others make room
    for t = 1, 5 do assert_close(one:decode(t), plain:decode(t), ('%s, after %d steps'):format(text, steps)) end
    assert_close(last:prefill(ids(9)), fresh(m, {}):prefill(ids(9)), text)
    one:free()
    last:free()
  end
end

function TestLimits:test_a_batch_that_fails_moves_nobody()
  local m = model 'gqa csa/2'
  local options = { records = SMALL, pages = 8 }
  local a <close> = m:sequence(options)
  local b <close> = m:sequence(options)
  a:prefill(ids(4))
  b:prefill(ids(4, 3))
  local x <close> = fresh(m, ids(4))
  local y <close> = fresh(m, ids(4, 3))
  local ok, problem = true, nil
  local steps = 0
  while ok and steps < 20 do
    local before = { a:stats(), b:stats(), #a, #b }
    ok, problem = pcall(m.decode, m, { a, b }, { 1, 2 })
    if ok then
      steps = steps + 1
      x:decode(1)
      y:decode(2)
    else
      lu.assertStrContains(tostring(problem), 'page')
      lu.assertEquals({ a:stats(), b:stats(), #a, #b }, before)
    end
  end
  lu.assertFalse(ok)
  b:free()
  assert_close(a:decode(9), x:decode(9))
end

function TestLimits:test_a_limit_holds_whatever_was_made_before()
  local m = model 'gqa'
  local free <close> = fresh(m, ids(9), { records = SMALL })
  local bound <close> = m:sequence { records = SMALL, pages = 2 }
  check.fails('page', bound.prefill, bound, ids(9))
  bound:prefill(ids(4))
  lu.assertEquals(#bound, 4)
end

TestFailures = {}

-- Fails the nth call of kernels[name] inside f.
local function fail_at(name, n, f)
  local real, calls = kernels[name], 0
  kernels[name] = function(...)
    calls = calls + 1
    if calls == n then error('interrupted', 0) end
    return real(...)
  end
  local ok, problem = pcall(f)
  kernels[name] = real
  return ok, problem
end

-- What a sequence holds, without the rows that it could go back to: a failed step may cost the one that is kept for it.
local function held(seq)
  local s = seq:stats()
  return { s.stored_bytes, s.state_bytes, s.allocated_bytes }
end

function TestFailures:test_a_computation_that_breaks_off_changes_nothing()
  local m = model(EVERY)
  for _, name in ipairs { 'attend', 'index', 'rms_norm', 'rope' } do
    local seq = fresh(m, ids(10), { records = 'f32', rollback = 1 })
    local other = fresh(m, ids(6, 2))
    local plain <close> = fresh(m, ids(10))
    local second <close> = fresh(m, ids(6, 2))
    local broke = 0
    for n = 1, 80, 3 do
      local before, of_other = held(seq), held(other)
      for _, f in ipairs { function() seq:decode(4) end, function() seq:prefill(ids(5)) end,
        function() m:decode({ seq, other }, { 4, 5 }) end } do
        local saved = seq:fork() -- a call that gets through is undone by going on with a copy from before
        local ok, problem = fail_at(name, n, f)
        if ok then
          seq:free()
          other:free()
          seq, other = saved, fresh(m, ids(6, 2))
        else
          broke = broke + 1
          lu.assertEquals(problem, 'interrupted')
          lu.assertEquals({ #seq, #other }, { 10, 6 })
          lu.assertEquals({ held(seq), held(other) }, { before, of_other })
          saved:free()
        end
      end
    end
    lu.assertTrue(broke >= 4, name)
    for t = 1, 4 do
      assert_close(seq:decode(t), plain:decode(t), name)
      assert_close(other:decode(t), second:decode(t), name)
    end
    seq:rollback(1)
    seq:free()
    other:free()
  end
end

-- Ctrl-C raises from a hook, wherever Lua happens to be. Afterwards the sequences are where they were, or, when all was
-- done but the tidying up, where they should be; and they go on from there.
function TestFailures:test_interrupted_at_any_instruction()
  local m = model('csa/2 mla swa reuse', nil, { index_topk = 1 })
  local list = ids(7)
  local function operations(seq, other)
    return {
      { function() seq:decode(4) end, 1, { 4 } },
      { function() seq:prefill { 5, 6, 7 } end, 3, { 5, 6, 7 } },
      { function() m:decode({ seq, other }, { 4, 5 }) end, 1, { 4 } },
      { function() seq:rollback(2) end, -2, {} },
      { function() seq:fork():free() end, 0, {} },
    }
  end
  -- What comes after each number of tokens, undisturbed.
  local expected = {}
  for which = 1, 5 do
    local past = part(list, 1, which == 4 and 5 or 7)
    for _, token in ipairs(operations()[which][3]) do past[#past + 1] = token end
    local moved <close> = fresh(m, past)
    local still <close> = fresh(m, list)
    expected[which] = { [0] = still:decode(9), [#past - 7] = moved:decode(9) }
  end

  local interrupted = 0
  for which = 1, 5 do
    local finished, step, n = false, 1, 1
    while not finished do
      local seq = fresh(m, list, { records = 'f32', rollback = 2 })
      local other = fresh(m, ids(4, 1))
      local operation = operations(seq, other)[which]
      local ok, problem = pcall(function()
        debug.sethook(function()
          debug.sethook()
          error('interrupted', 0)
        end, '', n)
        operation[1]()
        debug.sethook()
      end)
      if ok then finished = true
      else
        lu.assertEquals(problem, 'interrupted')
        interrupted = interrupted + 1
      end
      local change = #seq - 7
      lu.assertTrue(change == 0 or change == operation[2], ('operation %d, %d instructions'):format(which, n))
      if which == 3 then lu.assertEquals(#other - 4, change) end
      assert_close(seq:decode(9), expected[which][change], ('operation %d, %d instructions'):format(which, n))
      seq:free()
      other:free()
      n = n + step
      step = step + which % 2 + 1 -- finer at the beginning
    end
  end
  lu.assertTrue(interrupted > 100)
end

function TestFailures:test_use_after_free()
  local m = model 'csa/2'
  local seq = fresh(m, ids(5))
  seq:free()
  seq:free()
  for _, f in ipairs { function() seq:decode(1) end, function() seq:prefill { 1 } end, function() seq:fork() end,
    function() seq:rollback(0) end, function() seq:stats() end } do
    check.fails('the sequence was freed', f)
  end
  lu.assertStrContains(tostring(seq), 'freed')
end

function TestFailures:test_bad_tokens_and_options()
  local m = model 'csa/2'
  local seq <close> = fresh(m, ids(5))
  check.fails('outside 0 .. 15', seq.decode, seq, 16)
  check.fails('outside 0 .. 15', seq.decode, seq, -1)
  check.fails('T >= 1', seq.prefill, seq, {})
  check.fails('expected one token', seq.decode, seq, { 1, 2 })
  check.fails('a batch of 2', seq.prefill, seq, kv.tensor({ { 1, 2 }, { 3, 4 } }, 'int32'))
  check.fails('tokens', seq.decode, seq, nil)
  check.fails('tokens', seq.decode, seq, 'word')
  check.fails('tokens', seq.decode, seq, 1.5)
  check.fails('tokens', m.forward, m, { 1, 'x' })
  check.fails('tokens', m.forward, m, kv.zeros(3))
  check.fails("did you mean 'rollback'", m.sequence, m, { rolback = 1 })
  check.fails('rollback', m.sequence, m, { rollback = -1 })
  check.fails('pages', m.sequence, m, { pages = 0 })
  check.fails("did you mean 'bf16'", m.sequence, m, { records = 'bf17' })
  check.fails("unknown role 'mian'", m.sequence, m, { records = { mian = 'bf16' } })
  check.fails('whole number', seq.prefill, seq, { 1 }, { replay = 0 })
  check.fails('encoder and a decoder', seq.prefill, seq, { 1 }, { replay = 1 })
  lu.assertEquals(#seq, 5)
  assert_close(seq:decode(3), fresh(m, ids(5)):decode(3))
end

-- A NaN stays where causality lets it: other sequences, and earlier tokens, do not see it.
function TestFailures:test_nan_in_the_input()
  local m = model(EVERY)
  local seq <close> = fresh(m, {})
  local clean <close> = fresh(m, {})
  local h = m:embed(m:tokens(ids(6)))
  local bad = h:clone()
  bad:slice(2, 6, 6):fill_(0 / 0)
  local y, expected = seq:extend(bad), clean:extend(h)
  assert_close(y:slice(2, 1, 5), expected:slice(2, 1, 5))
  lu.assertFalse(row(y, 1, 6):sum() == row(y, 1, 6):sum())
  seq:decode(3) -- computes nonsense, but computes
end

function TestFailures:test_k_and_n_at_the_edges()
  for _, text in ipairs { 'csa/4', 'dsa', 'full/3{pool=2x4} reindex reuse', 'hca/128', 'full/2{pool=1x1,topk=1} reindex' } do
    for _, k in ipairs { 1, 1000000 } do
      local m = model(text, nil, { index_topk = k })
      local list = ids(11)
      local full = m:forward(list)
      local seq <close> = m:sequence { records = 'f32' }
      for t, id in ipairs(list) do assert_close(seq:decode(id), row(full, 1, t), ('%s, k %d, token %d'):format(text, k, t)) end
    end
  end
end

TestRecords = {}

-- A layout without records of its own stores the same bytes as are counted.
function TestRecords:test_deployed_records_are_the_counted_ones()
  local w = { hidden_size = 16, num_attention_heads = 2, num_key_value_heads = 1, head_dim = 64, qk_nope_head_dim = 8,
    qk_rope_head_dim = 32, v_head_dim = 8, kv_lora_rank = 64, index_n_heads = 8, index_head_dim = 64, index_topk = 2,
    sliding_window = 3, vocab_size = 16, o_groups = 1, o_lora_rank = 4, q_lora_rank = 12 }
  for _, text in ipairs { 'gqa', 'mla', 'dsa', 'mla{window=2}', 'csa/2 reuse', 'full/1 reindex', 'swa{form=latent}' } do
    for _, records in ipairs { 'deployed', 'bf16' } do
      local L = kv.layout(text):labelled { widths = w }
      local m = kv.model(L, {})
      local seq <close> = m:sequence { records = records }
      seq:prefill(ids(9))
      local counted = kv.count(L, { context = 9, records = records })
      lu.assertEquals(tostring(seq:stats().stored_bytes), tostring(counted.store.total_bytes), text .. ', ' .. records)
    end
  end
end

check.main()
