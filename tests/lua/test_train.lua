-- test_train.lua: gradients of whole models against central differences, what indexers learn from, optimisers,
-- selection arms, flat memory, and a task that is learned.
local lu = require 'luaunit'
local check = require 'check'
local core = require 'kvlab.core'
local kv = require 'kvlab'

local W <const> = { hidden_size = 16, num_attention_heads = 4, num_key_value_heads = 2, head_dim = 8,
  qk_nope_head_dim = 8, qk_rope_head_dim = 4, v_head_dim = 6, kv_lora_rank = 10, index_n_heads = 3, index_head_dim = 8,
  index_topk = 2, sliding_window = 3, vocab_size = 20, q_lora_rank = 12, intermediate_size = 7,
  max_position_embeddings = 16 }

local function batch(T, seed)
  return { tokens = kv.random { 2, T, seed = seed or 3, dist = 'integer', low = 0, high = 19 },
    targets = kv.random { 2, T, seed = (seed or 3) + 1, dist = 'integer', low = -1, high = 19 } }
end

local function widths(more)
  local w = {}
  for name, n in pairs(W) do w[name] = n end
  for name, n in pairs(more or {}) do w[name] = n end
  return w
end

local function sum_of(t)
  local sum = 0
  for _, x in pairs(t) do sum = sum + x end
  return sum
end

-- The slope of f along `direction` from p, by four differences: exact for polynomials of degree 4.
local function slope(f, p, direction, h)
  local before = p:clone()
  local function at(x)
    p:copy_(before + direction * x)
    local y = f()
    p:copy_(before)
    return y
  end
  return (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h)
end

-- The loss is float32 near 3, so a difference is known to 3e-7 / h; with h = 0.01 a slope to about 5e-5. Scores of
-- indexers have corners, so their steps are shorter; their losses are small and known better.
local function assert_slopes(m, grads, f, name_of_case, h)
  local checked = 0
  for i, name in ipairs(m.names) do
    local p, g = m.parameters[name], grads[name]
    if g then
      local norm = (g * g):sum() ^ 0.5
      local draw = kv.random { seed = i, table.unpack(p.shape) }
      local directions = { draw / (draw * draw):sum() ^ 0.5 }
      if norm > 1e-6 then directions[2] = g / norm end
      for _, d in ipairs(directions) do
        local want = slope(f, p, d, h or 0.01)
        lu.assertAlmostEquals((g * d):sum(), want, 0.01 * norm + 1e-4, name_of_case .. ': ' .. name)
      end
      checked = checked + 1
    end
  end
  return checked
end

TestModels = {}

-- Selections jump when a parameter moves, so these are fixed by an arm that does not look at parameters.
local CASES = {
  { 'mha' }, { 'gqa' }, { 'mqa gqa{window=2}' }, { 'mla', { order = 'expand' } }, { 'mla', { order = 'absorb' } },
  { 'mla', { order = 'merged' } }, { 'mla{window=2} mla/2{window=2}' }, { 'dsa' }, { 'dsa reuse', { order = 'absorb' } },
  { 'swa' }, { 'hca/4' }, { 'csa' }, { 'full/2 reindex reuse' }, { 'full/1{window=none} reuse' },
  { 'full/2{pool=2x2} reindex reuse' }, { 'swa | full/2{source=encoder} reuse' },
  { 'swa csa', nil, { o_groups = 2, o_lora_rank = 5 } },
  { 'csa', nil, { q_lora_rank = 'none', query_head_norm = true } }, { 'gqa mha', { tied = true } },
  { 'mha', { norm = 'layer', mlp = 'gelu', positions = 'learned', tied = true } },
}

function TestModels:test_every_kind_of_layer()
  for _, case in ipairs(CASES) do
    local w = widths(case[3])
    if w.q_lora_rank == 'none' then w.q_lora_rank = nil end
    local m = kv.model(case[1], w, case[2])
    local b = batch(9)
    local options = { indexer = { select = 'recent' } }
    local _, grads = m:loss(b, options)
    local function f()
      m:changed()
      return (m:loss(b, { gradients = false, indexer = options.indexer }))
    end
    assert_slopes(m, grads, f, case[1])
    for _, name in ipairs(m.names) do
      lu.assertEquals(grads[name] == nil, name:find('indexer', 1, true) ~= nil, case[1] .. ': ' .. name)
    end
  end
end

-- Indexers learn from their loss alone, the rest of the model has nothing of it.
function TestModels:test_indexers()
  for _, text in ipairs { 'dsa', 'csa', 'full/2 reindex reuse', 'swa | full/2{source=encoder} reuse' } do
    for _, kl in ipairs { 'selected', 'visible', 'pool' } do
      local m = kv.model(text, W)
      local b = batch(9)
      local options = { kl = kl, select = 'recent', coefficient = 2 }
      local _, grads, more = m:loss(b, { indexer = options })
      lu.assertTrue(sum_of(more.kl) > 0)
      local _, plain = m:loss(b, { indexer = { select = 'recent' } })
      local own = {}
      for _, name in ipairs(m.names) do
        if name:find('indexer', 1, true) then own[name] = grads[name] * 0.5
        else lu.assertTrue(grads[name]:equal(plain[name]), name) end
      end
      local checked = assert_slopes(m, own, function()
        local _, _, now = m:loss(b, { gradients = false, indexer = { kl = kl, select = 'recent' } })
        return sum_of(now.kl)
      end, text .. ', ' .. kl, 0.004)
      lu.assertTrue(checked >= 4)
    end
  end
end

function TestModels:test_forward_and_loss_agree()
  for _, case in ipairs(CASES) do
    local w = widths(case[3])
    if w.q_lora_rank == 'none' then w.q_lora_rank = nil end
    local m = kv.model(case[1], w, case[2])
    local b = batch(9)
    local labels = b.targets:reshape(-1)
    local want = kv.cross_entropy(m:forward(b.tokens):reshape(-1, 20), labels, labels:ge(0):sum()):item()
    lu.assertAlmostEquals((m:loss(b)), want, 1e-5, case[1])
    lu.assertAlmostEquals((m:loss(b, { gradients = false })), want, 1e-5, case[1])
  end
end

-- Quantised rows: values through the records, gradients as if there were none.
function TestModels:test_quantisers()
  local m = kv.model('csa', W, { quantisers = { main = 'bf16', window = 'bf16' } })
  local free = kv.model('csa', W)
  local b = batch(9)
  local _, grads = m:loss(b)
  local _, other = free:loss(b)
  for name, g in pairs(grads) do
    local d = g - other[name]
    lu.assertTrue((d * d):sum() <= 1e-3 * (g * g):sum() + 1e-9, name)
  end
end

function TestModels:test_learned_positions_decode()
  local m = kv.model('mha gqa', W, { norm = 'layer', mlp = 'gelu', positions = 'learned' })
  local list = { 3, 1, 4, 1, 5 }
  local full = m:forward(list)
  local seq <close> = m:sequence { records = 'f32' }
  for t, id in ipairs(list) do
    local d = seq:decode(id) - full:select(2, t):reshape(-1)
    lu.assertTrue((d * d):sum() < 1e-8)
  end
  check.fails({ 'position 16', 'max_position_embeddings = 16' }, m.forward, m, batch(17).tokens)
end

TestStudy = {}

local function report(select, more)
  local m = kv.model('full/1{window=none,topk=3} reuse', W, { seed = 5 })
  local options = { select = select, metrics = true, seed = 7 }
  for name, value in pairs(more or {}) do options[name] = value end
  local _, _, found = m:loss(batch(12), { gradients = false, indexer = options })
  return found.indexers[1]
end

function TestStudy:test_arms()
  local oracle = report 'oracle'
  for _, arm in ipairs { 'learned', 'random', 'recent' } do
    local r = report(arm)
    lu.assertTrue(r.recall < oracle.recall, arm)
    lu.assertAlmostEquals(r.gap, r.oracle - r.recall, 1e-12)
    lu.assertAlmostEquals(r.active, 9 / 12, 1e-12) -- queries at 3 .. 11 see more than 3 entries
  end
  -- An oracle ranks by the mean mass of all that read with its list, which the report measures too.
  lu.assertAlmostEquals(report('oracle', { dense = true }).gap, 0, 1e-6)
  lu.assertNotEquals(report('random').recall, report('random', { seed = 8 }).recall)
  lu.assertEquals(report('random').recall, report('random').recall)
end

-- With dense attention nothing depends on who selects.
function TestStudy:test_dense()
  local m = kv.model('full/1{window=none,topk=2} reuse', W)
  local b = batch(9)
  local function loss(select) return (m:loss(b, { indexer = { select = select, dense = true, kl = 'visible' } })) end
  lu.assertEquals(loss 'learned', loss 'random')
  local all = kv.model('full/1{window=none,topk=9} reuse', W)
  lu.assertAlmostEquals(loss 'learned', (all:loss(b)), 1e-6)
end

-- The loss is the KL to the mean mass of its readers, by the definition.
function TestStudy:test_warm_up_learns()
  local m = kv.model('full/1{window=none,topk=3} reuse', W)
  local opt = kv.adamw(m, { lr = 1e-2, decay = 0 })
  local embed, first, last = m:weight('embed.weight'):clone(), nil, nil
  for step = 1, 60 do
    local _, grads, more = m:loss(batch(12, step), { train = 'indexer', indexer = { dense = true, kl = 'visible' } })
    for name in pairs(grads) do lu.assertStrContains(name, 'indexer') end
    opt:step(grads)
    first, last = first or more.kl[1], more.kl[1]
  end
  lu.assertTrue(last < 0.7 * first, ('%g to %g'):format(first, last))
  lu.assertTrue(embed:equal(m:weight 'embed.weight'))
end

TestOptimiser = {}

-- One step from moments of 0 moves every element by lr against the sign of its gradient.
function TestOptimiser:test_first_steps()
  local p = { matrix = kv.ones(2, 2), vector = kv.ones(2) }
  local opt = kv.adamw(p, { lr = 0.1, decay = 0.5, clip = 0 })
  local norm, lr = opt:step { matrix = kv.tensor { { 2, -2 }, { 2, 2 } }, vector = kv.tensor { 3, -0.5 } }
  lu.assertAlmostEquals(norm, (16 + 9.25) ^ 0.5, 1e-6)
  lu.assertEquals(lr, 0.1)
  lu.assertAlmostEquals(p.matrix[1][1], 0.95 - 0.1, 1e-6) -- decays
  lu.assertAlmostEquals(p.matrix[1][2], 0.95 + 0.1, 1e-6)
  lu.assertAlmostEquals(p.vector[1], 1 - 0.1, 1e-6)
  lu.assertAlmostEquals(p.vector[2], 1 + 0.1, 1e-6)
end

function TestOptimiser:test_shared_parameters_are_stepped_once()
  local t = kv.ones(2, 2)
  local opt = kv.adamw({ a = t, b = t }, { lr = 0.1, decay = 0 })
  local g = kv.ones(2, 2)
  opt:step { a = g, b = g }
  lu.assertAlmostEquals(t[1][1], 0.9, 1e-6)
  opt:step { b = kv.ones(2, 2) }
  lu.assertAlmostEquals(t[1][1], 0.8, 1e-6)
  local m = kv.model('swa swa', W)
  local given = {}
  for name, value in pairs(m.parameters) do given[name] = value end
  given['layers.1.attn.wkv.weight'] = given['layers.0.attn.wkv.weight']
  local _, apart = kv.model('swa swa', W, { weights = m.parameters }):loss(batch(5))
  local shared = kv.model('swa swa', W, { weights = given })
  local _, grads = shared:loss(batch(5))
  lu.assertTrue(rawequal(grads['layers.0.attn.wkv.weight'], grads['layers.1.attn.wkv.weight']))
  lu.assertFalse(grads['layers.0.attn.wkv.weight']:equal(apart['layers.0.attn.wkv.weight']))
end

function TestOptimiser:test_accumulation()
  local m = kv.model('gqa', W)
  local a, b = batch(6, 1), batch(6, 7)
  a.targets, b.targets = a.targets:maximum(0), b.targets:maximum(0) -- as many targets in both
  local both = { tokens = kv.cat({ a.tokens, b.tokens }, 1), targets = kv.cat({ a.targets, b.targets }, 1) }
  local _, want = m:loss(both)
  local _, grads = m:loss(a, { scale = 0.5 })
  m:loss(b, { scale = 0.5, gradients = grads })
  for name, g in pairs(want) do
    local d = g - grads[name]
    lu.assertTrue((d * d):sum() <= 1e-9 * (g * g):sum() + 1e-14, name)
  end
end

function TestOptimiser:test_schedules()
  local f = kv.schedule.cosine { warmup = 10, steps = 110, final = 0.1 }
  lu.assertAlmostEquals(f(5), 0.5, 1e-12)
  lu.assertAlmostEquals(f(10), 1, 1e-12)
  lu.assertAlmostEquals(f(60), 0.55, 1e-12)
  lu.assertAlmostEquals(f(110), 0.1, 1e-12)
  lu.assertAlmostEquals(f(500), 0.1, 1e-12)
  lu.assertAlmostEquals(kv.schedule.linear { warmup = 2, steps = 12 }(7), 0.5, 1e-12)
  lu.assertEquals(kv.schedule.constant { warmup = 2 }(9), 1)
end

-- Merged weights are made of parameters: a step makes them anew.
function TestOptimiser:test_merged_weights_follow()
  local m = kv.model('mla', W, { order = 'merged' })
  local b = batch(6)
  m:forward(b.tokens)
  local opt = kv.adamw(m, { lr = 0.05 })
  opt:step((select(2, m:loss(b))))
  local fresh = kv.model('mla', W, { order = 'expand', weights = m.parameters })
  local d = m:forward(b.tokens) - fresh:forward(b.tokens)
  lu.assertTrue((d * d):sum() < 1e-6)
end

function TestOptimiser:test_errors()
  local m = kv.model('mha', W)
  check.fails({ "unknown key 'scales'", 'scale' }, m.loss, m, batch(4), { scales = 1 })
  check.fails('no target', m.loss, m, { tokens = { 1 }, targets = { -1 } })
  check.fails('targets are {1, 2}', m.loss, m, { tokens = { 1 }, targets = { 1, 2 } })
  check.fails('id 20', m.loss, m, { tokens = { 1 }, targets = { 20 } })
  check.fails('the batch is a', m.loss, m, 3)
  check.fails('train names no parameter', m.loss, m, batch(4), { train = 'nothing' })
  check.fails({ 'indexer: select', 'learned' }, m.loss, m, batch(4), { indexer = { select = 'learnt' } })
  check.fails("unknown key 'k'", m.loss, m, batch(4), { indexer = { k = 1 } })
  check.fails('beta1 = 1', kv.adamw, m, { beta1 = 1 })
  check.fails("unknown key 'rate'", kv.adamw, m, { rate = 1 })
  check.fails("no parameter is called 'x'", function() kv.adamw(m):step { x = kv.ones(1) } end)
  check.fails('expected {16}', function() kv.adamw(m):step { ['model.norm.weight'] = kv.ones(1) } end)
  check.fails('steps', kv.schedule.cosine, {})
  local opt = kv.adamw(m)
  local before = m:weight('model.norm.weight'):clone()
  opt:step { ['model.norm.weight'] = kv.ones(16) / 0 }
  lu.assertTrue(before:equal(m:weight 'model.norm.weight'))
  lu.assertEquals(opt.steps, 0)
end

TestRun = {}

local function rss()
  for line in io.lines '/proc/self/status' do
    local kb = line:match '^VmRSS:%s+(%d+)'
    if kb then return tonumber(kb) end
  end
end

-- Without the collector: what a step leaves behind is the small tensors that nobody frees by hand.
function TestRun:test_memory_is_flat()
  local m = kv.model('csa swa', widths { hidden_size = 32 }, {})
  local opt = kv.adamw(m)
  local live, resident, most = nil, nil, 0
  for step = 1, 200 do
    local _, grads = m:loss(batch(16, step), { indexer = { kl = 'selected' } })
    opt:step(grads)
    if step % 20 == 0 and step >= 40 then
      collectgarbage() collectgarbage()
      live, resident = live or core.base.live_bytes(), resident or rss()
      lu.assertEquals(core.base.live_bytes(), live)
      most = math.max(most, rss())
    end
  end
  if (os.getenv 'LD_PRELOAD' or ''):find('asan', 1, true) then return end -- it keeps freed memory for a while
  lu.assertTrue(most - resident < 3000, ('resident memory grew from %d to %d kB'):format(resident, most))
end

-- Recall: the first layer joins a key with the value after it, the second finds the key. Chance is 1/32; right
-- value set, wrong binding 1/4.
function TestRun:test_recall_is_learned()
  local task = kv.tasks.recall { vocab = 64, length = 24, pairs = 4 }
  local m = kv.model('layer{form=heads,window=2} mha', { hidden_size = 32, num_attention_heads = 2,
    num_key_value_heads = 2, head_dim = 16, vocab_size = 64 }, { ffn = 0 })
  local opt = kv.adamw(m, { lr = 1e-2, schedule = kv.schedule.cosine { warmup = 20, steps = 300 } })
  for step = 1, 300 do opt:step((select(2, m:loss(task.batch(1, step, 64))))) end
  local b = task.validation(1, 128)
  local score = task.score(b, m:forward(b.tokens):argmax(3))
  lu.assertTrue(score.correct >= 0.95 * score.count, ('%d of %d'):format(score.correct, score.count))
end

check.main()
