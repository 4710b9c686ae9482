-- Layouts: the language in Lua and as text, sharing, checking, lossless printing.
local lu = require 'luaunit'
local check = require 'check'
local kv = require 'kvlab'
local presets = require 'kvlab.presets'

local swa, full, reindex, reuse, group, layout = kv.swa, kv.full, kv.reindex, kv.reuse, kv.group, kv.layout

local V41 = 'swa*2 [full/2 reuse*5]*3 | full/1{pool=2048x8} reuse*3 [reindex reuse*3]*4'

TestValues = {}

function TestValues:test_layers_are_interned_values()
  lu.assertTrue(rawequal(full { ratio = 2 }, full { ratio = 2 }))
  lu.assertTrue(rawequal(kv.csa { ratio = 4, window = true }, kv.csa))
  lu.assertFalse(full { ratio = 2 } == full { ratio = 4 })
  lu.assertEquals(kv.csa.ratio, 4)
  lu.assertEquals(tostring(full { ratio = 2, window = 64 } { window = 32 }), 'full/2{window=32}')
end

function TestValues:test_layers_and_layouts_cannot_be_changed()
  check.fails('cannot be changed', function() swa.window = 3 end)
  check.fails('cannot be changed', function() layout { swa }[1] = full end)
  local pooled = full { pool = { blocks = 4, block = 2 } }
  pooled.pool.blocks = 99 -- a copy
  lu.assertEquals(pooled.pool.blocks, 4)
  local pool = { blocks = 4, block = 2 }
  pooled = full { pool = pool }
  pool.blocks = 7
  lu.assertEquals(pooled.pool.blocks, 4)
end

function TestValues:test_operators()
  local L = layout { swa * 2, group { full { ratio = 2 }, reuse * 2 } * 2 }
  lu.assertEquals(#L, 8)
  lu.assertTrue(L[3] == full { ratio = 2 })
  lu.assertNil(L[9])
  lu.assertEquals(tostring(L), 'swa*2 [full/2 reuse*2]*2')
  local M = L:with(5, reindex)
  lu.assertEquals(tostring(M), 'swa*2 full/2 reuse reindex full/2 reuse*2')
  lu.assertEquals(tostring(L), 'swa*2 [full/2 reuse*2]*2')
  lu.assertEquals(tostring(L:map(function(l) if l == swa then return kv.mla end end)), 'mla*2 [full/2 reuse*2]*2')
  lu.assertEquals(tostring(L .. reuse), 'swa*2 [full/2 reuse*2]*2 reuse')
  lu.assertTrue(L == layout { swa, swa, full { ratio = 2 }, reuse, reuse, full { ratio = 2 }, reuse, reuse })
  lu.assertFalse(L == M)
  lu.assertTrue(layout { 2 * swa } == layout { swa, swa })
  local seen = 0
  for i, l in ipairs(L) do seen = seen + (l == L[i] and 1 or 0) end
  lu.assertEquals(seen, 8)
end

function TestValues:test_concatenation_keeps_the_cut()
  local L = layout 'swa | full' .. reuse
  lu.assertEquals(tostring(L), 'swa | full/1 reuse')
  lu.assertEquals(tostring(layout 'swa' .. layout 'swa | full'), 'swa*2 | full/1')
  check.fails('only one encoder', function() return layout 'swa|swa' .. layout 'swa|swa' end)
  lu.assertEquals(tostring(layout { layout 'swa | full' }), 'swa | full/1')
end

function TestValues:test_labels_travel_and_do_not_matter_for_equality()
  local L = layout { name = 'mine', widths = { head_dim = 64 }, swa }
  lu.assertEquals(L.name, 'mine')
  lu.assertTrue(L == layout 'swa')
  lu.assertEquals(L:with(1, full).name, 'mine')
  lu.assertEquals(layout('swa'):labelled { name = 'b' }.name, 'b')
end

TestSharing = {}

local function owners_and_selectors(text)
  local L = layout(text)
  local owners, selectors = {}, {}
  for i = 1, #L do owners[i], selectors[i] = L:owner(i) or 0, L:selector(i) or 0 end
  return table.concat(owners, ' '), table.concat(selectors, ' ')
end

local function sharing(text, owners, selectors)
  local a, b = owners_and_selectors(text)
  lu.assertEquals(a, owners, text)
  lu.assertEquals(b, selectors, text)
end

function TestSharing:test_modes_of_csa2()
  sharing('swa full/2 reuse reindex reuse', '0 2 2 2 2', '0 2 2 4 4')
end

function TestSharing:test_across_the_cut()
  sharing('full/2 reuse | reuse full/1 reuse', '1 1 1 4 4', '1 1 1 4 4')
end

-- Cross-layer attention, YOCO, and the index sharing of GLM-5.2 need no kind of their own.
function TestSharing:test_other_peoples_layouts()
  sharing('[gqa reuse]*2', '1 1 3 3', '1 1 3 3')
  sharing('swa*2 gqa reuse*2', '0 0 3 3 3', '0 0 3 3 3')
  sharing('dsa mla{select=share}*2 dsa', '1 2 3 4', '1 1 1 4')
end

-- A selection goes with the grid of entries, not with the owner.
function TestSharing:test_selection_follows_the_ratio()
  sharing('full/2{name=a} full/4 reuse{of=a} reuse', '1 2 1 2', '1 2 1 2')
  sharing('full/2{name=a} full/2 reuse{of=a}', '1 2 1', '1 2 2')
  sharing('full/2{name=a} hca reuse{of=a} reuse', '1 2 1 2', '1 2 1 2')
end

function TestSharing:test_windows_follow_the_owner()
  local L = layout 'gqa reuse full/2{window=7} reuse mla reuse'
  local found = {}
  for i = 1, #L do found[i] = L:window(i, { sliding_window = 128 }) end
  lu.assertEquals(found, { 0, 0, 7, 7, 0, 0 })
  lu.assertEquals(layout('swa'):window(1, { sliding_window = 128 }), 128)
  check.fails({ 'layer 1 (layer_id 0)', 'sliding_window' }, function() layout('swa'):window(1, {}) end)
end

function TestSharing:test_pools()
  local L = layout 'full{pool=4x2} reindex reindex{pool=none} reuse full/2 reindex'
  lu.assertNil(L:pool(1))
  lu.assertEquals(L:pool(2), { blocks = 4, block = 2 })
  lu.assertNil(L:pool(3))
  lu.assertNil(L:pool(4))
  lu.assertNil(L:pool(6))
end

TestText = {}

function TestText:test_text_and_lua_are_the_same_value()
  local L = layout {
    name = 'DeepSeek-V4.1-Flash',
    encoder = { swa * 2, group { full { ratio = 2 }, reuse * 5 } * 3 },
    decoder = { group { full { ratio = 1, pool = { blocks = 2048, block = 8 } }, reuse * 3 },
      group { reindex, reuse * 3 } * 4 },
  }
  lu.assertTrue(layout(V41) == L)
  lu.assertTrue(layout 'swa*2 [full/2 reuse*5]*3 | [full/1{pool=2048x8} reuse*3] [reindex reuse*3]*4' == L)
  lu.assertEquals(tostring(L), V41)
  lu.assertEquals(L.cut, 20)
end

function TestText:test_spellings()
  for _, text in ipairs { '[Full, Reuse×5]', '[full reuse*5]', 'Full Reusex5', 'full reuse x 5', 'FULL,REUSE × 5',
    'full/1 reuse reuse reuse reuse reuse', ' [ full , reuse * 5 ] * 1 ', 'full{ratio=1} reuse*5' } do
    lu.assertEquals(tostring(layout(text)), 'full/1 reuse*5', text)
  end
  lu.assertEquals(tostring(layout "csa{record='v4-main', window=64}"), 'csa{window=64,record=v4-main}')
  lu.assertEquals(tostring(layout 'csa{window=none}'), 'csa{window=none}')
end

local ERRORS = {
  { '', 'empty' }, { '   ', 'empty' }, { 'reuse', 'layer 1 (layer_id 0), reuse', 'no earlier layer owns a cache' },
  { 'gqa reindex', 'layer 2 (layer_id 1), reindex', 'gqa has no index keys', 'reuse' },
  { 'hca reindex', 'no index keys' }, { 'swa*0', 'repeat count 0' }, { 'swa*-1', 'repeat count -1' },
  { 'swa*1.5', 'repeat count 1.5' }, { 'full/0', 'ratio = 0', '1 or more' }, { 'full/-2', 'ratio = -2' },
  { 'full/1.5', 'ratio = 1.5' }, { 'full/', 'ratio after full/' }, { '[swa', "column 1: this '[' is never closed" },
  { 'swa]', "column 4: ']' closes nothing" }, { 'swa | full | swa', 'a second' }, { '| swa', 'expected a layer' },
  { 'swa |', 'expected a layer', 'the end' }, { 'reues', "unknown layer kind 'reues'", "'reuse'" },
  { 'full{wndow=3}', "unknown field 'wndow'", "'window'" }, { 'full{window=-3}', 'window = -3' },
  { 'full{window=3', 'never closed' }, { 'full{window}', "expected '='" }, { 'full{=3}', 'expected a field' },
  { 'full{topk=0}', 'topk = 0' }, { 'full{pool=8}', 'pool = 8', '2048x8' }, { 'full{pool=0x8}', 'pool' },
  { 'swa/2', 'ratio does not apply' }, { 'reuse/2', 'ratio does not apply' }, { 'hca{topk=4}', 'topk does not apply' },
  { 'mla{select=share}', 'no earlier layer selects among entries of 1 token' },
  { 'reuse{of=a}', "named 'a'" }, { 'full{name=ab} reuse{of=abc}', "named 'abc'", "'ab'" },
  { 'full{name=a} full{name=a}', "the name 'a' belongs to layer 1" }, { 'csa{overlap=true,ratio=1}', 'overlap' },
  { 'full{ratio=2,ratio=2}', 'given twice' }, { 'swa*10000000', 'more than' },
  { '[[[swa*9999]*9999]*9999]*9999', 'more than' },
  { 'full{source=encoder}', 'needs a layer after the |' }, { 'layer', 'neither a cache nor a window' },
  { 'layer{cache=own,select=none}', 'select = none' }, { 'swa{select=all}', 'no cache to select from' },
  { 'swa ; swa', 'column 5' }, { '\0', 'column 1' }, { 'gqa{keys=entry,select=topk}', 'keys = entry' },
  { 'csa{keys=input}', 'keys = input' }, { ('['):rep(1000) .. 'swa', 'nested' }, { 'swa\xff', 'column 4' },
  { 'gqa reuse{form=entry}', 'layer 2 (layer_id 1)', 'layer 1', 'form heads' },
  { 'full{pool=4x2} reindex{pool=8x2}', 'pool = 8x2 does not apply', 'pool = none' },
}

function TestText:test_errors_name_the_place_and_the_remedy()
  for _, case in ipairs(ERRORS) do
    check.fails(table.move(case, 2, #case, 1, {}), layout, case[1])
  end
end

function TestText:test_errors_of_the_lua_form()
  check.fails("text goes through kv.layout 'text'", layout, { 'swa' })
  check.fails('expected a table of layers or a text', layout, 5)
  check.fails({ 'expected one argument, got a table', 'widths = ' }, layout, 'swa', { widths = { hidden_size = 8 } })
  check.fails('at least one layer', layout, {})
  check.fails({ "unknown field 'enocder'", "'encoder'" }, layout, { enocder = {} })
  check.fails('both', layout, { swa, encoder = { swa }, decoder = { swa } })
  check.fails('decoder = nil', layout, { encoder = { swa } })
  check.fails('a layer each', layout, { encoder = { swa }, decoder = {} })
  check.fails({ "unknown role 'mian'", "'main'" }, layout, { swa, records = { mian = 'bf16' } })
  check.fails('records: main = 3', layout, { swa, records = { main = 3 } })
  check.fails("unknown layer kind 'x'", require('kvlab.layer').new, 'x', {})
  check.fails({ 'layer 2', 'layers 1 to 1' }, function() return layout 'swa':with(2, swa) end)
  check.fails('expected a layer', function() return layout 'swa':with(1, 5) end)
  check.fails('repeat count', function() return swa * 0 end)
  check.fails('repeat count', function() return swa * 1.5 end)
  check.fails({ "no field 'widow'", "'window'" }, function() return swa.widow end)
end

-- A random valid layout prints to a text that parses to the same layout.
local function random_layer(seen_owner, seen_keys)
  local r = math.random
  local choices = { function() return swa { window = r(1, 300) } end, function() return kv.mha end,
    function() return kv.gqa { num_key_value_heads = r(1, 8) } end, function() return kv.mla end,
    function() return kv.dsa { topk = r(1, 99) } end, function() return kv.hca { ratio = r(1, 200) } end,
    function() return kv.csa { ratio = r(2, 9), overlap = r(2) == 1 } end,
    function() return full { ratio = r(1, 4), pool = r(2) == 1 and { blocks = r(1, 9), block = r(1, 9) } or nil } end,
    function() return kv.layer { cache = 'own', form = 'latent', select = 'topk', window = r(1, 9) } end }
  if seen_owner then
    choices[#choices + 1] = function() return reuse { window = r(2) == 1 and 'none' or 'owner' } end
  end
  if seen_keys then choices[#choices + 1] = function() return reindex { topk = r(1, 99) } end end
  return choices[r(#choices)]()
end

function TestText:test_printing_loses_nothing()
  math.randomseed(20)
  local cuts = 0
  for _ = 1, 400 do
    local items, owner, keys = {}, false, false
    local function more(n)
      local part = {}
      for _ = 1, n do
        local l = random_layer(owner, keys)
        if l.cache == 'own' then owner, keys = true, l.keys ~= nil end
        part[#part + 1] = l
        if l.cache ~= 'own' or math.random(3) == 1 then part[#part] = l * math.random(1, 4) end
      end
      return group(part) * math.random(1, 3)
    end
    items[1] = more(math.random(1, 6))
    local ok, L
    if math.random(2) == 1 then
      ok, L = pcall(layout, { encoder = items, decoder = { more(math.random(1, 5)) } })
    else
      ok, L = pcall(layout, items)
    end
    if ok then -- a repeated group may put a reindex after an owner without keys
      if L.cut then cuts = cuts + 1 end
      local text = tostring(L)
      lu.assertTrue(layout(text) == L, text)
      lu.assertEquals(tostring(layout(text)), text)
    end
  end
  lu.assertTrue(cuts > 100, tostring(cuts))
end

TestChecks = {}

function TestChecks:test_ratio_above_the_window_warns()
  local L = layout 'hca{window=64}*2'
  local warnings = L:warnings {}
  lu.assertEquals(#warnings, 1)
  lu.assertStrContains(warnings[1], 'layer 1 (layer_id 0), hca{window=64} and 1 more')
  -- At position 126 the open block holds positions 0 .. 126 and the window shows 63 .. 126.
  lu.assertStrContains(warnings[1], 'up to 63 tokens')
  lu.assertStrContains(warnings[1], 'position 126 reads nothing of positions 0 to 62')
  check.fails('position 126', layout, { strict = true, kv.hca { window = 64 } })
  lu.assertEquals(layout('hca'):warnings { sliding_window = 128 }, {})
  lu.assertEquals(layout('hca'):warnings { sliding_window = 127 }, {})
  lu.assertEquals(#layout('hca'):warnings { sliding_window = 126 }, 1)
  lu.assertEquals(#layout('csa{window=none}'):warnings {}, 1)
end

function TestChecks:test_presets()
  local layers = { mha = 60, v2 = 60, ['v2-lite'] = 27, v3 = 61, ['v3.2'] = 61, ['v4-flash'] = 43, ['v4-pro'] = 61,
    ['v4.1-flash'] = 40 }
  local function kinds(name)
    local n = {}
    for _, l in ipairs(kv.preset(name)) do n[l.kind] = (n[l.kind] or 0) + 1 end
    return n
  end
  for _, name in ipairs(presets.names) do
    local L = kv.preset(name)
    lu.assertEquals(#L, layers[name], name)
    lu.assertTrue(layout(tostring(L)) == L)
    lu.assertEquals(L:warnings(), {})
  end
  -- The layer counts of the released config files (compress_ratios, kv_source, index_source).
  lu.assertEquals(kinds 'v4-flash', { swa = 2, csa = 21, hca = 20 })
  lu.assertEquals(kinds 'v4-pro', { csa = 30, hca = 31 })
  lu.assertEquals(kinds 'v4.1-flash', { swa = 2, full = 4, reindex = 4, reuse = 30 })
  check.fails({ "unknown preset 'v4flash'", "'v4-flash'" }, kv.preset, 'v4flash')
end

-- A config.json leaves out what transformers derives; nothing may come from another model instead.
function TestChecks:test_widths_of_a_config()
  local of_config = require('kvlab.widths').of_config
  local w = of_config { hidden_size = 8192, num_attention_heads = 64, num_key_value_heads = 8 }
  lu.assertEquals({ w.head_dim, w.num_key_value_heads }, { 128, 8 })
  w = of_config { hidden_size = 8192, num_attention_heads = 64, head_dim = 256 }
  lu.assertEquals({ w.head_dim, w.num_key_value_heads }, { 256, 64 })
  lu.assertNil(of_config({ hidden_size = 7168, num_attention_heads = 128, kv_lora_rank = 512 }).head_dim)
end

function TestChecks:test_a_million_layers()
  local L = layout '[full/2 reuse*5]*100000 swa*400000'
  lu.assertEquals(#L, 1000000)
  lu.assertEquals(#L:classes(), 3)
  lu.assertEquals(tostring(L), '[full/2 reuse*5]*100000 swa*400000')
  lu.assertEquals(L:owner(599999), 599995)
end

check.main()
