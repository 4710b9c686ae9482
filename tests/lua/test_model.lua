-- test_model.lua: models: names and shapes of parameters, head, FFN, seeds, given weights; single layers; and the
-- properties of the primitives that they are made of.
local lu = require 'luaunit'
local check = require 'check'
local kv = require 'kvlab'
local model = require 'kvlab.model'

local function distance(a, b)
  local error = math.sqrt(((a - b) * (a - b)):sum() / (b * b):sum())
  return error == error and error or math.huge
end

local function assert_close(a, b, message)
  lu.assertTrue(distance(a, b) <= 1e-5, ('%s: error %g'):format(message or 'differs', distance(a, b)))
end

-- The parameters of a layout as { [name] = shape }.
local function shapes(L, widths, options)
  local found = {}
  for _, p in ipairs(model.parameters(kv.layout(L), widths, options or {})) do found[p.name] = p.shape end
  return found
end

local TOY <const> = { hidden_size = 16, num_attention_heads = 4, num_key_value_heads = 2, head_dim = 8,
  qk_nope_head_dim = 8, qk_rope_head_dim = 4, v_head_dim = 6, kv_lora_rank = 10, index_n_heads = 3, index_head_dim = 8,
  index_topk = 2, sliding_window = 3, vocab_size = 20, o_groups = 2, o_lora_rank = 5, q_lora_rank = 12,
  intermediate_size = 7 }

TestParameters = {}

-- Names and shapes of the released checkpoints, [out, in], at toy widths: D 16, H 4, r_q 12, r_kv 10, c 8.
function TestParameters:test_v2_and_v3()
  local at = 'model.layers.0.self_attn.'
  local mla = { ['model.embed_tokens.weight'] = { 20, 16 }, ['model.layers.0.input_layernorm.weight'] = { 16 },
    [at .. 'q_a_proj.weight'] = { 12, 16 }, [at .. 'q_a_layernorm.weight'] = { 12 },
    [at .. 'q_b_proj.weight'] = { 4 * 12, 12 }, [at .. 'kv_a_proj_with_mqa.weight'] = { 14, 16 },
    [at .. 'kv_a_layernorm.weight'] = { 10 }, [at .. 'kv_b_proj.weight'] = { 4 * 14, 10 },
    [at .. 'o_proj.weight'] = { 16, 24 }, ['model.layers.0.post_attention_layernorm.weight'] = { 16 },
    ['model.layers.0.mlp.gate_proj.weight'] = { 7, 16 }, ['model.layers.0.mlp.up_proj.weight'] = { 7, 16 },
    ['model.layers.0.mlp.down_proj.weight'] = { 16, 7 }, ['model.norm.weight'] = { 16 },
    ['lm_head.weight'] = { 20, 16 } }
  lu.assertEquals(shapes('mla', TOY), mla)

  local indexer = at .. 'indexer.'
  mla[indexer .. 'wq_b.weight'], mla[indexer .. 'wk.weight'] = { 24, 12 }, { 8, 16 }
  mla[indexer .. 'k_norm.weight'], mla[indexer .. 'k_norm.bias'] = { 8 }, { 8 }
  mla[indexer .. 'weights_proj.weight'] = { 3, 16 }
  lu.assertEquals(shapes('dsa', TOY), mla)

  local lite = {}
  for name, value in pairs(TOY) do lite[name] = value end
  lite.q_lora_rank = nil
  lu.assertEquals(shapes('mla', lite, { ffn = 0, hidden_only = true }), {
    ['model.layers.0.input_layernorm.weight'] = { 16 }, [at .. 'q_proj.weight'] = { 48, 16 },
    [at .. 'kv_a_proj_with_mqa.weight'] = { 14, 16 }, [at .. 'kv_a_layernorm.weight'] = { 10 },
    [at .. 'kv_b_proj.weight'] = { 56, 10 }, [at .. 'o_proj.weight'] = { 16, 24 } })
end

local function released(i, more)
  local at = ('layers.%d.attn.'):format(i)
  local own = { attn_sink = { 4 }, ['q_norm.weight'] = { 12 }, ['kv_norm.weight'] = { 8 }, ['wq_a.weight'] = { 12, 16 },
    ['wq_b.weight'] = { 32, 12 }, ['wkv.weight'] = { 8, 16 }, ['wo_a.weight'] = { 10, 16 }, ['wo_b.weight'] = { 16, 10 } }
  local out = { [('layers.%d.attn_norm.weight'):format(i)] = { 16 } }
  for _, set in ipairs { own, more } do
    for name, shape in pairs(set) do out[at .. name] = shape end
  end
  return out
end

function TestParameters:test_v4_and_v4_1()
  local bare = { ffn = 0, hidden_only = true }
  lu.assertEquals(shapes('swa', TOY, bare), released(0, {}))
  lu.assertEquals(shapes('hca/6', TOY, bare), released(0, { ['compressor.ape'] = { 6, 8 },
    ['compressor.wkv.weight'] = { 8, 16 }, ['compressor.wgate.weight'] = { 8, 16 }, ['compressor.norm.weight'] = { 8 } }))
  local csa = released(0, { ['compressor.ape'] = { 4, 16 }, ['compressor.wkv.weight'] = { 16, 16 },
    ['compressor.wgate.weight'] = { 16, 16 }, ['compressor.norm.weight'] = { 8 }, ['indexer.wq_b.weight'] = { 24, 12 },
    ['indexer.weights_proj.weight'] = { 3, 16 }, ['indexer.compressor.ape'] = { 4, 16 },
    ['indexer.compressor.wkv.weight'] = { 16, 16 }, ['indexer.compressor.wgate.weight'] = { 16, 16 },
    ['indexer.compressor.norm.weight'] = { 8 } })
  lu.assertEquals(shapes('csa', TOY, bare), csa)
  local full = { ['compressor.wkv.weight'] = { 8, 16 }, ['compressor.wgate.weight'] = { 8, 16 },
    ['compressor.norm.weight'] = { 8 }, ['indexer.wk.weight'] = { 8, 8 }, ['indexer.k_norm.weight'] = { 8 },
    ['indexer.wq_b.weight'] = { 24, 12 }, ['indexer.weights_proj.weight'] = { 3, 16 } }
  lu.assertEquals(shapes('full/2', TOY, bare), released(0, full))
  full['compressor.wgate.weight'] = nil
  local stack = released(0, full)
  for name, shape in pairs(released(1, { ['indexer.wq_b.weight'] = { 24, 12 },
    ['indexer.weights_proj.weight'] = { 3, 16 } })) do stack[name] = shape end
  for name, shape in pairs(released(2, {})) do stack[name] = shape end
  lu.assertEquals(shapes('full/1 reindex reuse', TOY, bare), stack)
  local whole = shapes('swa', TOY)
  lu.assertEquals({ whole['embed.weight'], whole['head.weight'], whole['norm.weight'], whole['layers.0.ffn.w1.weight'],
    whole['layers.0.ffn.w2.weight'], whole['layers.0.ffn.w3.weight'], whole['layers.0.ffn_norm.weight'] },
    { { 20, 16 }, { 20, 16 }, { 16 }, { 7, 16 }, { 16, 7 }, { 7, 16 }, { 16 } })
end

-- The layouts of the presets, at toy widths.
function TestParameters:test_presets_run()
  local ids = kv.tensor({ 3, 1, 4, 1, 5 }, 'int32')
  for _, name in ipairs { 'v2', 'v2-lite', 'v3', 'v3.2', 'v4-flash', 'v4-pro', 'v4.1-flash' } do
    local L = kv.preset(name)
    local m = kv.model(kv.layout(tostring(L)), TOY, { ffn = 0 })
    lu.assertEquals(#m.layers, #L)
    local prefix = name:find('v4') and 'layers.%d.attn.' or 'model.layers.%d.self_attn.'
    lu.assertNotNil(m:weight(prefix:format(#L - 1) .. (name:find('v4') and 'attn_sink' or 'o_proj.weight')))
    local seq <close> = m:sequence { records = 'f32' }
    local full = m:forward(ids)
    assert_close(seq:prefill(ids), full:slice(2, 5, 5):reshape(-1), name)
  end
end

TestModel = {}

local IDS <const> = { 1, 5, 19, 0, 7, 7 }

function TestModel:test_head_and_ffn()
  local untied, tied = kv.model('csa/2', TOY, {}), kv.model('csa/2', TOY, { tied = true })
  lu.assertNil(tied:weight('head.weight'))
  local given = {}
  for _, name in ipairs(tied.names) do given[name] = tied:weight(name) end
  given['head.weight'] = given['embed.weight']
  local same = kv.model('csa/2', TOY, { weights = given })
  lu.assertTrue(same:forward(IDS):equal(tied:forward(IDS)))
  lu.assertTrue(distance(untied:forward(IDS), tied:forward(IDS)) > 0.1)

  local without = kv.model('csa/2', TOY, { ffn = 0 })
  lu.assertNil(without:weight('layers.0.ffn.w1.weight'))
  local wide = kv.model('csa/2', TOY, { ffn = 11 })
  lu.assertEquals(wide:weight('layers.0.ffn.w1.weight').shape, { 11, 16 })
  -- An FFN whose last matrix is zero is none.
  given = {}
  for _, name in ipairs(untied.names) do given[name] = untied:weight(name) end
  given['layers.0.ffn.w2.weight'] = kv.zeros(16, 7)
  lu.assertTrue(kv.model('csa/2', TOY, { weights = given }):forward(IDS):equal(without:forward(IDS)))
end

function TestModel:test_seeds()
  local a, b, c = kv.model('csa/2 mla', TOY, { seed = 5 }), kv.model('csa/2 mla', TOY, { seed = 5 }),
    kv.model('csa/2 mla', TOY, { seed = 6 })
  lu.assertTrue(a:forward(IDS):equal(b:forward(IDS)))
  lu.assertFalse(a:forward(IDS):equal(c:forward(IDS)))
  for _, name in ipairs(a.names) do
    lu.assertTrue(a:weight(name):equal(b:weight(name)), name)
    if not name:find('norm') then lu.assertFalse(a:weight(name):equal(c:weight(name)), name) end
  end
  -- A layer more leaves the others as they are.
  local longer = kv.model('csa/2 mla swa', TOY, { seed = 5 })
  for _, name in ipairs(a.names) do lu.assertTrue(a:weight(name):equal(longer:weight(name)), name) end
end

function TestModel:test_what_is_no_model()
  local given = {}
  local m = kv.model('csa/2', TOY, {})
  for _, name in ipairs(m.names) do given[name] = m:weight(name) end
  local function with(name, value)
    local copy = {}
    for key, t in pairs(given) do copy[key] = t end
    copy[name] = value
    return { weights = copy }
  end
  check.fails('the weight layers.0.attn.wkv.weight is missing', kv.model, 'csa/2', TOY, with('layers.0.attn.wkv.weight'))
  for _, name in ipairs { 'layers.0.attn.wkv.weight', 'embed.weight', 'head.weight', 'norm.weight',
    'layers.0.ffn.w2.weight', 'layers.0.attn_norm.weight' } do
    check.fails({ name, 'is {3, 3}, expected {' }, kv.model, 'csa/2', TOY, with(name, kv.zeros(3, 3)))
    check.fails({ name, 'int32' }, kv.model, 'csa/2', TOY, with(name, given[name]:to('int32')))
    check.fails({ name, 'string' }, kv.model, 'csa/2', TOY, with(name, 'zero'))
  end
  check.fails("did you mean 'seed'", kv.model, 'csa/2', TOY, { sede = 1 })
  check.fails('seed', kv.model, 'csa/2', TOY, { seed = 'one' })
  check.fails('ffn', kv.model, 'csa/2', TOY, { ffn = -1 })
  check.fails('ffn', kv.model, 'csa/2', TOY, { ffn = 1.5 })
  check.fails("did you mean 'absorb'", kv.model, 'mla', TOY, { order = 'absorbed' })
  check.fails('expected a layout', kv.model, 7, TOY)
  lu.assertEquals(math.type(kv.model('csa/2', TOY, { seed = 2.0, ffn = 8.0 }).ffn), 'integer')
  check.fails('hidden_size is missing', kv.model, 'csa/2', { vocab_size = 3 })
  check.fails("'hiden_size'", kv.model, 'csa/2', { hiden_size = 3 })
  local odd = {}
  for name, value in pairs(TOY) do odd[name] = value end
  odd.head_dim = 7
  check.fails({ 'layer 1', 'head_dim' }, kv.model, 'gqa', odd)
end

-- A layer that reads another's per-head rows has the heads of these rows.
function TestModel:test_heads_of_shared_rows()
  check.fails({ 'layer 2', 'num_key_value_heads' }, kv.model, 'gqa reuse{num_key_value_heads=4,head_dim=4}',
    { hidden_size = 16, num_attention_heads = 4, num_key_value_heads = 2, head_dim = 8, vocab_size = 20 }, {})
end

TestAttention = {}

function TestAttention:test_one_layer_as_an_object()
  for _, l in ipairs { kv.gqa, kv.mla, kv.dsa, kv.swa, kv.hca { ratio = 3 }, kv.csa { ratio = 2 }, kv.full { ratio = 2 } } do
    local A = kv.attention(l, TOY, { seed = 3 })
    local x = kv.random { 2, 9, 16, seed = 4 }
    local y = A:full(x)
    lu.assertEquals(y.shape, { 2, 9, 16 })
    lu.assertTrue(y:equal(kv.attention(l, TOY, { seed = 3 }):full(x)))
    assert_close(A:full(x:slice(1, 2, 2)), y:slice(1, 2, 2), tostring(l))
    assert_close(A:full(x:slice(2, 1, 5)), y:slice(2, 1, 5), tostring(l))
  end
  check.fails('no earlier layer owns a cache', kv.attention, kv.reuse, TOY)
  check.fails('expected one layer, got 2', kv.attention, kv.swa * 2, TOY)
  check.fails('attn_sink is missing', kv.attention, kv.swa, TOY, { weights = {} })
end

-- Ratio 1 without a gate: entries are the tokens' own, so HCA with m = 1 reads what a window of all tokens holds.
function TestAttention:test_ratio_1_is_the_identity()
  local comp = kv.compressor { ratio = 1, width = 8 }
  local rows = kv.random { 1, 6, 8, seed = 1 }
  lu.assertTrue(comp:push(rows):equal(rows))
  lu.assertTrue(kv.compressor { ratio = 1, width = 8 }:push(rows, kv.random { 1, 6, 8, seed = 2 }):equal(rows))

  local entries = kv.attention(kv.layer { cache = 'own', select = 'all', form = 'entry', window = false },
    TOY, { seed = 1 })
  local window = kv.attention(kv.swa { window = 100 }, { hidden_size = 16, num_attention_heads = 4, head_dim = 8,
    qk_rope_head_dim = 4, q_lora_rank = 12, o_groups = 2, o_lora_rank = 5, sliding_window = 3 },
    { weights = { ['wkv.weight'] = entries.w['compressor.wkv.weight'], ['kv_norm.weight'] =
      entries.w['compressor.norm.weight'], ['wq_a.weight'] = entries.w['wq_a.weight'], ['wq_b.weight'] =
      entries.w['wq_b.weight'], ['q_norm.weight'] = entries.w['q_norm.weight'], attn_sink = entries.w.attn_sink,
      ['wo_a.weight'] = entries.w['wo_a.weight'], ['wo_b.weight'] = entries.w['wo_b.weight'] } })
  local x = kv.random { 1, 12, 16, seed = 9 }
  assert_close(entries:full(x), window:full(x))
end

-- Everything that is rotated is rotated together: moving all positions by the same amount changes nothing. What is
-- pooled moves by whole blocks.
function TestAttention:test_moving_all_positions_changes_nothing()
  for _, l in ipairs { kv.gqa, kv.mla, kv.dsa, kv.swa, kv.hca { ratio = 3 }, kv.csa { ratio = 2 }, kv.full { ratio = 2 } } do
    local A = kv.attention(l, TOY, { seed = 3 })
    local x = kv.random { 1, 11, 16, seed = 4 }
    local y = A:full(x)
    local rope, offset = require('kvlab.kernels').rope, 600
    local kernels = require 'kvlab.kernels'
    function kernels.rope(t, freqs, o)
      local moved = {}
      for key, value in pairs(o) do moved[key] = value end
      moved.pos0 = o.pos0 + offset
      return rope(t, freqs, moved)
    end
    local ok, moved = pcall(A.full, A, x)
    kernels.rope = rope
    lu.assertTrue(ok, moved)
    lu.assertTrue(distance(moved, y) <= 1e-4, ('%s: error %g'):format(tostring(l), distance(moved, y)))
  end
end

TestPrimitives = {}

function TestPrimitives:test_rope_and_back()
  local freqs = kv.rope_freqs { channels = 8, theta = 100 }
  local x = kv.random { 1, 5, 3, 12, seed = 1 }
  for _, o in ipairs { {}, { first = true }, { half_split = true }, { stride = 4 } } do
    local function turn(inverse)
      return { pos0 = 1000, first = o.first, half_split = o.half_split, stride = o.stride, inverse = inverse }
    end
    local y = kv.rope(x, freqs, turn(false))
    assert_close((y * y):sum(4), (x * x):sum(4), 'lengths stay')
    assert_close(kv.rope(y, freqs, turn(true)), x, 'and back')
    lu.assertTrue(distance(y, x) > 0.1)
  end
  -- Position by position is the same as all at once.
  local y = kv.rope(x, freqs, { pos0 = 7 })
  for t = 1, 5 do assert_close(kv.rope(x:slice(2, t, t), freqs, { pos0 = 6 + t }), y:slice(2, t, t)) end
end

-- The order of entries is nothing: a list in another order, and rows in another order with the list to match.
function TestPrimitives:test_permuted_entries_change_nothing()
  local q, rows = kv.random { 1, 2, 4, 8, seed = 1 }, kv.random { 1, 9, 8, seed = 2 }
  local sink = kv.random { 4, seed = 3 }
  local function attend(r, list)
    return kv.attend { q = q, sink = sink, scale = 0.3, pos0 = 100, sources = { { rows = r, key = { 1, 8 }, value = { 1, 8 },
      kv_heads = 1, see = 'list', list = kv.tensor({ list }, 'int32') } } }
  end
  local a = attend(rows, { { 0, 2, 5, 8, -1 }, { 1, 3, 4, 6, 7 } })
  assert_close(attend(rows, { { 8, -1, 0, 5, 2 }, { 7, 6, 1, 3, 4 } }), a)
  local order = { 3, 1, 9, 5, 2, 8, 7, 4, 6 } -- row i of the new rows is row order[i]
  local moved, place = {}, {}
  for i, old in ipairs(order) do
    moved[i] = rows:slice(2, old, old)
    place[old - 1] = i - 1
  end
  local list = { { 0, 2, 5, 8, -1 }, { 1, 3, 4, 6, 7 } }
  for _, ids in ipairs(list) do
    for i, id in ipairs(ids) do ids[i] = id >= 0 and place[id] or -1 end
  end
  assert_close(attend(kv.cat(moved, 2), list), a)
end

check.main()
