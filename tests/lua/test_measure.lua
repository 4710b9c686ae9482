-- kvlab measure: what real caches say is what was counted, and what does not fit is refused before it is filled.
local lu = require 'luaunit'
local check = require 'check'
local kv = require 'kvlab'
local cell = require 'kvlab.cell'
local core = require 'kvlab.core'
local measure = require 'kvlab.measure'
local standin = require 'kvlab.standin'

local function equal(L, options)
  local m = kv.measure(L, options)
  local first = m.differing[1]
  lu.assertTrue(m.equal, first and ('%s at %d: layer %d, %s: computed %d, measured %d'):format(m.name, m.context,
    first.layer, first.figure, first.computed, first.measured))
  lu.assertEquals(m.measured, m.computed)
  return m
end

-- --- equality -----------------------------------------------------------------------------------------
TestEqual = {}

-- N = 1, below the first block of every ratio, just before, at and after the window, blocks that are not complete.
function TestEqual:test_presets_at_real_widths()
  local contexts = { mha = { 1, 17 }, v2 = { 1, 333 }, ['v2-lite'] = { 333 }, v3 = { 65 }, ['v3.2'] = { 1, 2051 },
    ['v4-flash'] = { 1, 3, 127, 129, 2309 }, ['v4-pro'] = { 261 }, ['v4.1-flash'] = { 1, 2, 128, 1543 } }
  for _, name in ipairs(kv.presets) do
    for _, N in ipairs(contexts[name]) do equal(kv.preset(name), { context = N }) end
  end
end

-- By hand, from the records' sizes: V4.1-Flash has 3 owners of ratio 2 and one of 1 (288 + 68 B an entry), 40 windows of
-- 528 B; every layer but the first two reads at most 512 entries; searched are the keys of the 4 owners, and 4 times
-- the pool, which holds everything here.
function TestEqual:test_figures_by_hand()
  local m = equal(kv.preset 'v4.1-flash', { context = 1543 })
  lu.assertEquals(m.measured, { store_bytes = (3 * 771 + 1543) * 356 + 40 * 128 * 528,
    kv_bytes = 38 * 512 * 288 + 40 * 128 * 528, index_bytes = (3 * 771 + 5 * 1543) * 68 })
  local mha = equal(kv.preset 'mha', { context = 17 })
  lu.assertEquals(mha.measured, { store_bytes = 17 * 3932160, kv_bytes = 17 * 3932160, index_bytes = 0 })
end

function TestEqual:test_pool_smaller_than_the_entries()
  equal(kv.layout 'full/1{pool=3x8,topk=20} reuse reindex reuse', { context = 301 })
end

-- Layers as no model has them: all forms with ratios, windows and selections that the presets do not combine.
function TestEqual:test_unusual_layers()
  local widths = { num_key_value_heads = 8, kv_lora_rank = 128, qk_nope_head_dim = 32, v_head_dim = 64, head_dim = 64,
    num_attention_heads = 16, index_n_heads = 4, index_topk = 9, sliding_window = 6 }
  local L = kv.layout('mla reuse*2 dsa mla{select=share} csa/8{window=5} gqa/3 mla/4 [full/3 reindex reuse]*2 gqa{window=7} '
    .. 'mqa{select=topk} hca/16 mla/2{select=topk,keys=entry,window=3} | full/2{source=input} reuse')
  for _, N in ipairs { 1, 2, 5, 16, 97 } do equal(L, { context = N, widths = widths }) end
end

function TestEqual:test_records()
  equal(kv.preset 'v4.1-flash', { context = 77, records = 'bf16' })
  equal(kv.preset 'v4-flash', { context = 77, records = { main = 'v4.1-main', index = 'index-fp8' } })
  -- Layouts without records of their own: rows of heads and latents in bf16, as kv.count has them.
  local m = equal(kv.layout 'mla gqa', { context = 10, widths = { kv_lora_rank = 128, qk_nope_head_dim = 32,
    v_head_dim = 64, head_dim = 64, num_key_value_heads = 2 } })
  lu.assertEquals(m.measured.store_bytes, 10 * 2 * (128 + 64 + 2 * 64 + 2 * 64))
end

-- Pages: what is allocated is what the refusal reckons with.
function TestEqual:test_allocated_bytes()
  local m = equal(kv.layout 'mla', { context = 65, widths = { kv_lora_rank = 128, qk_nope_head_dim = 32, v_head_dim = 64 } })
  lu.assertEquals(m.allocated_bytes, 2 * 64 * 2 * (128 + 64))
  -- A ring of 128 + 1 slots in pages of 64: three pages, 64 x 528 B each.
  lu.assertEquals(equal(kv.layout 'swa', { context = 1000000007 }).allocated_bytes, 3 * 64 * 528)
end

-- A counter that counts wrong, or a cache that holds less than it should, is found and named.
function TestEqual:test_differences_are_found()
  local class = cell.class
  local stats = class.stats
  class.stats = function(self)
    local s = stats(self)
    s.stored_bytes = s.stored_bytes + 1
    return s
  end
  local ok, m = pcall(kv.measure, kv.layout 'swa*2', { context = 5 })
  class.stats = stats
  lu.assertTrue(ok, tostring(m))
  lu.assertFalse(m.equal)
  lu.assertEquals(m.differing[2], { layer = 2, figure = 'store_bytes', computed = 5 * 528, measured = 5 * 528 + 1 })
end

function TestEqual:test_memory_is_given_back()
  collectgarbage() collectgarbage()
  local before = core.base.live_bytes()
  equal(kv.preset 'v2-lite', { context = 100 })
  collectgarbage() collectgarbage()
  lu.assertTrue(core.base.live_bytes() <= before)
end

-- --- stand-ins ----------------------------------------------------------------------------------------
TestStandin = {}

function TestStandin:test_chunks_differ_and_seeds_repeat()
  local function drawn(seed)
    local s = standin.new({ 8, 1000000 }, standin.noise(seed))
    return s:outputs(1, 3), s:outputs(1, 3)
  end
  local a, b = drawn(1)
  local again = drawn(1)
  local other = drawn(2)
  lu.assertEquals(a.shape, { 1, 3, 8 })
  lu.assertEquals((a - again):abs():max(), 0)
  lu.assertTrue((a - b):abs():max() > 0.1)
  lu.assertTrue((a - other):abs():max() > 0.1)
end

function TestStandin:test_shapes_of_views()
  local s = standin.new({ 6 * 5, 4 }, standin.noise(1)):reshape(6, 5, 4):slice(2, 2, -1)
  lu.assertEquals(s.shape, { 6, 4, 4 })
  lu.assertEquals(s:outputs(1, 2).shape, { 1, 2, 6, 4 })
end

-- A model of V4-Pro has 61 layers of matrices; one that is measured has none.
function TestStandin:test_no_matrix_is_made()
  collectgarbage() collectgarbage()
  local before = core.base.live_bytes()
  local m = measure.model(kv.count(kv.preset 'v4-pro'))
  lu.assertTrue(core.base.live_bytes() - before < 64 << 20)
  lu.assertTrue(standin.is(m.layers[1].w['wq_b.weight']))
end

-- --- refusals -----------------------------------------------------------------------------------------
TestRefusal = {}

function TestRefusal:test_what_is_needed_and_what_fits()
  check.fails({ 'MHA at 131,072 tokens needs 480.', 'caches of 515 GB', '8 GiB may be used', 'a context of ' }, kv.measure,
    kv.preset 'mha', { memory = 8 << 30 })
  check.fails('not even one token fits', kv.measure, kv.preset 'mha', { memory = 1 << 20 })
  check.fails('control group', kv.measure, kv.preset 'mha', { context = 1 << 62 })
end

-- The context that is said to fit does, and the next one does not: pages of 64 rows of 65,536 B in 60 layers.
function TestRefusal:test_the_limit_is_sharp()
  local memory = 2 << 30
  local refusal = measure.refusal(kv.count(kv.preset 'mha'), memory)
  local fits = tonumber((refusal:match 'a context of ([%d,]+) fits':gsub(',', '')))
  lu.assertEquals(fits % 64, 0)
  lu.assertNil(measure.refusal(kv.count(kv.preset 'mha', { context = fits }), memory))
  lu.assertNotNil(measure.refusal(kv.count(kv.preset 'mha', { context = fits + 1 }), memory))
  lu.assertTrue(fits * 3932160 < memory and (fits + 128) * 3932160 > memory - (1 << 29))
end

function TestRefusal:test_nothing_is_filled()
  local began = core.base.now()
  check.fails('520', kv.measure, kv.layout '[full reuse*1000000]', { context = 5 })
  lu.assertTrue(core.base.now() - began < 5)
end

function TestRefusal:test_options()
  check.fails("'contxt'", kv.measure, kv.preset 'v2', { contxt = 5 })
  check.fails('memory', kv.measure, kv.preset 'v2', { memory = -1 })
  check.fails('context = 0', kv.measure, kv.preset 'v2', { context = 0 })
  check.fails('kv_lora_rank', kv.measure, kv.layout 'mla')
end

-- --- the command --------------------------------------------------------------------------------------
TestCommand = {}

local function kvlab(words) return check.sh('scripts/kvlab measure ' .. words .. ' </dev/null') end

function TestCommand:test_text()
  local code, out, err = kvlab 'v4.1-flash v4-flash --context 301'
  lu.assertEquals({ code, err }, { 0, '' })
  out = out:gsub(' +', ' ')
  for _, part in ipairs { '40 layers, 301 tokens cached', 'stored 2,970,716 B 2,970,716 B equal', 'search keys read',
    'allocated, in pages 4,374,016 B', 'filling the caches', 'bytes read ratio seconds of the step ratio' } do
    lu.assertStrContains(out, part)
  end
  lu.assertNotStrContains(out, 'DIFFERENT')
end

local SCHEMA = { name = 'string', context = 'number', computed = { store_bytes = 'number', kv_bytes = 'number',
  index_bytes = 'number' }, measured = { store_bytes = 'number', kv_bytes = 'number', index_bytes = 'number' },
  equal = 'boolean', allocated_bytes = 'number', seconds = { fill = 'number', select = 'number', attention = 'number',
    step = 'number' } }

local function types(value)
  if type(value) ~= 'table' then return type(value) end
  local out = {}
  for key, own in pairs(value) do out[key] = types(own) end
  return out
end

function TestCommand:test_json()
  local code, out, err = kvlab 'v4-flash --context 301 --json'
  lu.assertEquals({ code, err }, { 0, '' })
  local one = kv.json.decode(out)
  lu.assertEquals(types(one), SCHEMA)
  lu.assertEquals(one.measured, one.computed)
  local _, several = kvlab 'v2-lite v4.1-flash --context 9 --json'
  several = kv.json.decode(several)
  lu.assertEquals(#several, 2)
  lu.assertEquals(types(several[2]), SCHEMA)
  lu.assertEquals(several[2].name, 'DeepSeek-V4.1-Flash')
end

-- A refusal is a failed job, and comes before the layouts in front of it are measured.
function TestCommand:test_mha_is_refused()
  for _, words in ipairs { 'mha', 'v2 mha --json', 'mha --memory 8 --context 131072' } do
    local began = core.base.now()
    local code, out, err = kvlab(words)
    lu.assertEquals({ code, out }, { 1, '' }, words)
    lu.assertStrContains(err, 'MHA at 131,072 tokens needs 480.')
    lu.assertStrContains(err, 'fits')
    lu.assertTrue(core.base.now() - began < 5)
  end
end

function TestCommand:test_bad_usage()
  for words, part in pairs { [''] = 'expected a layout', ['v2 --context 0'] = '--context 0', ['v9'] = "'v9'",
    ['v2 --memory -1'] = '--memory -1', ['v2 --memory 1e-12'] = 'less than a byte', ['v2 --records bf61'] = 'bf61',
    ["mla"] = 'kv_lora_rank', ['v2 --contxt 5'] = "'--contxt'", ['v2 --widths kv_lora_rank=x'] = 'kv_lora_rank',
    ['v2 --access mask'] = "'--access'" } do
    local code, out, err = kvlab(words)
    lu.assertEquals({ code, out }, { 2, '' }, words .. err)
    lu.assertStrContains(err, part)
  end
end

-- A layer that counts but whose running needs one more width says which.
function TestCommand:test_a_width_that_only_running_needs()
  local name = check.write('return kv.layout { kv.swa, widths = { head_dim = 64, sliding_window = 4 } }', '.lua')
  local code, out, err = kvlab('swa ' .. name .. ' --context 5')
  os.remove(name)
  lu.assertEquals({ code, out }, { 2, '' })
  lu.assertStrContains(err, 'the width num_attention_heads is missing')
end

-- Ctrl-C ends a fill of minutes at once.
function TestCommand:test_interrupt()
  local began = core.base.now()
  local code, out, err = check.sh 'timeout -s INT -k 20 1.5 scripts/kvlab measure v3.2 </dev/null'
  lu.assertEquals({ code, out }, { 124, '' })
  lu.assertStrContains(err, 'kvlab: interrupted')
  lu.assertTrue(core.base.now() - began < 10)
end

check.main()
