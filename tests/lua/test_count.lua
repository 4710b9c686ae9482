-- Counting: the published figures, an independent simulation token by token, random layouts, huge ones.
local lu = require 'luaunit'
local check = require 'check'
local count = require 'kvlab.count'
local kv = require 'kvlab'
local simulation = require 'kv_simulation'

local exact = kv.exact

-- --- (1) figures that are known exactly -----------------------------------------------------------------
TestFigures = {}

-- preset, records -> bytes per token, fixed, KV read, keys read at 131,072 tokens. Sources: DeepSeek-V2 report
-- Table 1 for MHA; the sizes of the deployed formats for the rest.
local FIGURES = {
  { 'mha', 'deployed', '3932160', 0, 515396075520, 0 },
  { 'mha', 'bf16', '3932160', 0, 515396075520, 0 },
  { 'v2', 'deployed', '69120', 0, 9059696640, 0 },
  { 'v2', 'bf16', '69120', 0, 9059696640, 0 },
  { 'v3', 'deployed', '70272', 0 },
  { 'v3', 'bf16', '70272', 0 },
  { 'v3.2', 'deployed', '48068', 0, 81952768, 1055391744 },
  { 'v3.2', 'bf16', '85888', 0, 143917056, 2046820352 },
  { 'v3.2', { main = 'mla-bf16', index = 'index-fp8' }, '78324', 0 },
  { 'v4-flash', 'deployed', '14057/4', 3214336, 21453824, 46792704 },
  { 'v4-flash', 'bf16', '6880', 43 * 128 * 1024, 37617664, 176160768 },
  { 'v4.1-flash', 'deployed', '890', 2703360, 8306688, 26738688 },
  { 'v4.1-flash', 'bf16', '3200', 40 * 128 * 1024, 25165824, 100663296 },
}

function TestFigures:test_every_figure()
  for _, row in ipairs(FIGURES) do
    local r = kv.count(kv.preset(row[1]), { records = row[2] })
    local where = ('%s %s'):format(row[1], type(row[2]) == 'string' and row[2] or 'mixed')
    lu.assertEquals(r.context, 131072)
    lu.assertEquals(tostring(r.store.bytes_per_token), row[3], where)
    lu.assertEquals(tostring(r.store.fixed_bytes), tostring(row[4]), where)
    if row[5] then
      lu.assertEquals(tostring(r.read.kv_bytes), tostring(row[5]), where)
      lu.assertEquals(tostring(r.read.index_bytes), tostring(row[6]), where)
      lu.assertEquals(tostring(r.read.total_bytes), tostring(row[5] + row[6]), where)
    end
  end
end

function TestFigures:test_crossover_is_exact()
  local v4, v41 = kv.count(kv.preset 'v4-flash'), kv.count(kv.preset 'v4.1-flash')
  lu.assertEquals(('%.2f'):format(v4.crossover_tokens:tonumber()), '914.66')
  lu.assertEquals(('%.2f'):format(v41.crossover_tokens:tonumber()), '3037.48')
  lu.assertEquals(v4.crossover_tokens, exact(3214336 * 4, 14057))
  lu.assertEquals(v41.crossover_tokens, exact(2703360, 890))
  lu.assertNil(kv.count(kv.layout 'swa').crossover_tokens)
end

function TestFigures:test_parts_of_a_read()
  local r = kv.count(kv.preset 'v4.1-flash').read
  lu.assertEquals(tostring(r.selected_bytes), '5603328') -- 38 layers x 512 entries x 288 B
  lu.assertEquals(tostring(r.window_bytes), '2703360')
  -- V4-Flash: 21 x (512 + 128) + 20 x (65,536 / 128 + 128) + 2 x 128 positions at 65,536 tokens.
  local positions = 0
  for _, c in ipairs(kv.count(kv.preset 'v4-flash', { context = 65536 }).classes) do
    positions = positions + c.count * (c.rows + c.window_rows)
  end
  lu.assertEquals(positions, 26496)
end

function TestFigures:test_ratio_to_mha()
  local ratios = { v2 = '56.89', ['v3.2'] = '81.80', ['v4-flash'] = '1118.92', ['v4.1-flash'] = '4418.16' }
  for name, printed in pairs(ratios) do
    local slope = kv.count(kv.preset(name)).store.bytes_per_token
    lu.assertEquals(('%.2f'):format((count.mha_bytes_per_token() / slope):tonumber()), printed, name)
  end
end

-- --- (2) the presets, token by token --------------------------------------------------------------------
TestPresets = {}

local function add(list, l, n)
  for _ = 1, n or 1 do
    local copy = { window = 0 }
    for key, value in pairs(l) do copy[key] = value end
    list[#list + 1] = copy
    if copy.from == true then copy.from = #list end
    if copy.by == true then copy.by = #list end
  end
end

-- The released models as lists of plain layers, from their config files: compress_ratios of V4, kv_source and
-- index_source of V4.1. bytes: { main, index, window row }.
local MODELS = {
  mha = { deployed = { 65536 }, bf16 = { 65536 }, build = function(b)
    local list = {}
    add(list, { from = true, by = true, ratio = 1, main = b[1] }, 60)
    return list
  end },
  ['v3.2'] = { deployed = { 656, 132 }, bf16 = { 1152, 256 }, build = function(b)
    local list = {}
    add(list, { from = true, by = true, ratio = 1, main = b[1], index = b[2], k = 2048, scores = true }, 61)
    return list
  end },
  ['v4.1-flash'] = { deployed = { 288, 68, 528 }, bf16 = { 1024, 256, 1024 }, build = function(b)
    local list = {}
    local source, indexer, pooler = 0, 0, 21
    local owners = { [2] = 2, [8] = 2, [14] = 2, [20] = 1 } -- layer_id -> ratio
    local indexers = { [24] = true, [28] = true, [32] = true, [36] = true }
    for id = 0, 39 do
      local l = { window = 128, row = b[3] }
      if owners[id] then
        source, indexer = id + 1, id + 1
        l.ratio, l.main, l.index, l.width = owners[id], b[1], b[2], 512
        l.k, l.scores = 512, true
      elseif indexers[id] then
        indexer = id + 1
        l.k, l.scores, l.pool = 512, true, { 2048, 8 }
        lu.assertEquals(source, pooler)
      end
      if id >= 2 then l.from, l.by = source, indexer end
      list[#list + 1] = l
    end
    return list
  end },
}
for _, row in ipairs { { 'v2', 60 }, { 'v3', 61 }, { 'v2-lite', 27 } } do
  MODELS[row[1]] = { deployed = { 1152 }, bf16 = { 1152 }, build = function(b)
    local list = {}
    add(list, { from = true, by = true, ratio = 1, main = b[1] }, row[2])
    return list
  end }
end
-- compress_ratios: V4-Flash [0, 0] + (4, 128) x 20 + [4]; V4-Pro [128, 128] + (4, 128) x 29 + [4].
for _, row in ipairs { { 'v4-flash', 0, 20, 512 }, { 'v4-pro', 128, 29, 1024 } } do
  MODELS[row[1]] = { deployed = { 584, 68, 584 }, bf16 = { 1024, 256, 1024 }, build = function(b)
    local ratios = { row[2], row[2] }
    for _ = 1, row[3] do
      table.insert(ratios, 4)
      table.insert(ratios, 128)
    end
    table.insert(ratios, 4)
    local list = {}
    for _, ratio in ipairs(ratios) do
      local l = { window = 128, row = b[3] }
      if ratio > 0 then
        l.from, l.by, l.ratio, l.main, l.width = true, true, ratio, b[1], 512
      end
      if ratio == 4 then l.overlap, l.index, l.index_width, l.k, l.scores = true, b[2], 128, row[4], true end
      add(list, l)
    end
    return list
  end }
end

-- Compares one result with the simulation, every layer and every sum.
local function compare(r, layers, held, visits, where)
  local sum, list = simulation.totals(layers, held, visits)
  local function same(got, want, what)
    if tostring(got) ~= tostring(want) then
      error(('%s: %s is %s, the simulation has %s'):format(where, what, tostring(got), tostring(want)), 0)
    end
  end
  same(#r.layout, #layers, 'layers')
  for i, want in ipairs(list) do
    local c = count.layer(r, i)
    local function layer_same(got, name) same(got, want[name], ('layer %d, %s'):format(i, name)) end
    layer_same(c.entries, 'entries')
    layer_same(c.scored, 'keys_scored')
    layer_same(c.rows, 'rows')
    layer_same(c.window_rows, 'filled')
    layer_same(c.store + c.filled, 'total')
    layer_same(c.fixed, 'fixed')
    layer_same(c.state, 'state')
    layer_same(c.selected, 'selected')
    layer_same(c.window, 'window')
    layer_same(c.keys, 'keys')
  end
  same(r.store.bytes_per_token, simulation.slope(layers), 'bytes per token')
  same(r.store.total_bytes, sum.total, 'total bytes')
  same(r.store.fixed_bytes, sum.fixed, 'fixed bytes')
  same(r.store.state_bytes, sum.state, 'state bytes')
  same(r.read.selected_bytes, sum.selected, 'selected bytes')
  same(r.read.window_bytes, sum.window, 'window bytes')
  same(r.read.kv_bytes, sum.selected + sum.window, 'KV bytes')
  same(r.read.index_bytes, sum.keys, 'key bytes')
  same(r.read.total_bytes, sum.selected + sum.window + sum.keys, 'bytes read')
end

function TestPresets:test_against_the_simulation()
  math.randomseed(11)
  local presets = 0
  for name, model in pairs(MODELS) do
    presets = presets + 1
    for _, N in ipairs { 1, 127, 128, 129, 131072, 131073, 1048576 } do
      for _, set in ipairs { 'deployed', 'bf16' } do
        local layers = model.build(model[set])
        local small = N <= 129
        local held = small and simulation.feed(layers, N) or simulation.feed_many(layers, N)
        for _, access in ipairs { 'gather', 'mask' } do
          local visits = (small and simulation.sets or simulation.counts)(layers, held, access == 'mask')
          local r = kv.count(kv.preset(name), { context = N, records = set, access = access })
          compare(r, layers, held, visits, ('%s at %d, %s, %s'):format(name, N, set, access))
        end
      end
    end
  end
  lu.assertEquals(presets, #kv.presets)
end

-- formats.md 5 and semantics 5.8 in words: what can be left open, in float32.
function TestPresets:test_compressor_state()
  local function state(name, N) return tostring(kv.count(kv.preset(name), { context = N }).store.state_bytes) end
  local csa, hca = 2 * 4 * (1024 + 256), 2 * 4 * 512 -- one open row of a CSA and of an HCA layer
  local halves = 4 * 2 * 4 * (512 + 128)             -- the first halves of CSA's last finished block
  lu.assertEquals(state('v4-flash', 3), tostring(21 * 3 * csa + 20 * 3 * hca))
  lu.assertEquals(state('v4-flash', 4), tostring(21 * halves + 20 * 4 * hca))
  lu.assertEquals(state('v4-flash', 128), tostring(21 * halves))
  lu.assertEquals(state('v4-flash', 255), tostring(21 * (halves + 3 * csa) + 20 * 127 * hca))
  lu.assertEquals(state('v4.1-flash', 7), tostring(3 * 4096))
  lu.assertEquals(state('v4.1-flash', 8), '0')
  lu.assertEquals(tostring(kv.count(kv.preset 'v4-flash').store.state_bytes_most),
    tostring(21 * (halves + 3 * csa) + 20 * 127 * hca))
end

-- --- (3) random layouts ---------------------------------------------------------------------------------
TestRandom = {}

local function one(list) return list[math.random(#list)] end
local function maybe(p) return math.random() < p end

-- Bytes of a row of c channels, r of them rotated, or nil when the record does not fit such a row.
local BYTES = {
  bf16 = function(c) return 2 * c end,
  fp16 = function(c) return 2 * c end,
  f32 = function(c) return 4 * c end,
  q8_0 = function(c) return c % 32 == 0 and c // 32 * 34 or nil end,
  q4_0 = function(c) return c % 32 == 0 and c // 32 * 18 or nil end,
  q4_1 = function(c) return c % 32 == 0 and c // 32 * 20 or nil end,
  mxfp4 = function(c) return c % 32 == 0 and c // 32 * 17 or nil end,
  nvfp4 = function(c) return c % 64 == 0 and c // 64 * 36 or nil end,
  ['index-fp8'] = function(c) return c + 4 end,
  ['index-fp4'] = function(c) return c % 32 == 0 and c // 2 + c // 32 or nil end,
  ['v4.1-local'] = function(c) return c % 32 == 0 and c + c // 32 or nil end,
  ['v4.1-main'] = function(c) return c % 16 == 0 and c // 2 + c // 16 or nil end,
  ['v4-main'] = function(c, r)
    local n = c - r
    return n > 0 and n % 64 == 0 and n + 2 * r + n // 64 + 1 or nil
  end,
  ['v3.2-main'] = function(c, r)
    local n = c - r
    return n > 0 and n % 128 == 0 and n + 4 * (n // 128) + 2 * r or nil
  end,
}
local RECORD_NAMES = {}
for name in pairs(BYTES) do RECORD_NAMES[#RECORD_NAMES + 1] = name end
table.sort(RECORD_NAMES)

local function random_widths()
  local w = {
    num_attention_heads = 8, num_key_value_heads = one { 1, 2, 4, 8 }, head_dim = one { 64, 128, 192 },
    qk_rope_head_dim = one { 16, 32 }, qk_nope_head_dim = 32,
    kv_lora_rank = one { 128, 256 }, index_head_dim = one { 32, 64, 128 }, index_n_heads = 2,
    index_topk = math.random(1, 20), sliding_window = math.random(1, 12), hidden_size = 64,
  }
  if maybe(0.7) then w.v_head_dim = one { 32, 64 } end
  return w
end

-- What a row of `form` holds: channels, rotated ones.
local function row_of(form, w, kv_heads)
  if form == 'heads' then
    return (kv_heads or w.num_key_value_heads) * (w.head_dim + (w.v_head_dim or w.head_dim)), 0
  elseif form == 'latent' then
    return w.kv_lora_rank + w.qk_rope_head_dim, w.qk_rope_head_dim
  end
  return w.head_dim, w.qk_rope_head_dim
end

-- A record that fits; `field` gets ',record=NAME' when the layer names it itself.
local function record_for(c, r, fields, field, default, asked)
  local name = default
  if maybe(0.3) then
    local wanted = one(RECORD_NAMES)
    if BYTES[wanted](c, r) then
      name = wanted
      fields[#fields + 1] = field .. '=' .. wanted
    end
  end
  return BYTES[asked or name](c, r)
end

local FORM = { mha = 'heads', mqa = 'heads', gqa = 'heads', mla = 'latent', dsa = 'latent', hca = 'entry',
  csa = 'entry',
  full = 'entry', swa = 'entry' }
local RATIO = { hca = 128, csa = 4 }
local ROW_DEFAULT = { heads = 'bf16', latent = 'bf16' }

-- One random valid layout: its text, its widths, the roles asked for, and the simulated layers.
local function random_layout()
  local w = random_widths()
  local asked = maybe(0.25) and { main = one { 'bf16', 'f32' }, window = 'fp16', index = one { 'bf16',
    'index-fp8' } } or {}
  local n = math.random(1, 14)
  local cut = n > 1 and maybe(0.4) and math.random(1, n - 1) or nil
  local texts, layers, forms, heads_of, pools = {}, {}, {}, {}, {}
  local last_owner, latest, named = nil, {}, {}
  for i = 1, n do
    local l, fields, kind = { window = 0 }, {}, nil
    local function put(...) fields[#fields + 1] = (...):format(select(2, ...)) end
    local sharing = last_owner and maybe(0.5)
    if sharing then
      local from, of = last_owner, nil
      if #named > 0 and maybe(0.3) then
        local owner = one(named)
        from, of = owner.at, owner.name
      end
      local reindexes = layers[from].index and maybe(0.4)
      if not reindexes and not latest[layers[from].ratio] then goto owner end
      kind = reindexes and 'reindex' or 'reuse'
      l.from = from
      if of then put('of=%s', of) end
      if reindexes then
        l.by, l.scores, l.k = i, true, w.index_topk
        if maybe(0.5) then
          l.k = math.random(1, 9)
          put('topk=%d', l.k)
        end
        if pools[from] and maybe(0.3) then put 'pool=none' else l.pool = pools[from] end
      elseif maybe(0.2) then -- all entries of a shared cache: reuse with select = all
        l.by = i
        put 'select=all'
      else
        l.by = latest[layers[from].ratio]
      end
      l.window = layers[from].window
      if maybe(0.3) then
        l.window = one { 0, 1, 3, 7 }
        put('window=%s', l.window == 0 and 'none' or l.window)
      end
      forms[i], heads_of[i] = forms[from], heads_of[from]
    end
    ::owner::
    if not kind then
      kind = one { 'mha', 'mqa', 'gqa', 'mla', 'dsa', 'hca', 'csa', 'full', 'full', 'swa', 'swa' }
      local form = FORM[kind]
      if kind == 'swa' and maybe(0.5) then
        form = 'heads'
        put 'form=heads'
      end
      forms[i] = form
      heads_of[i] = kind == 'mha' and 8 or kind == 'mqa' and 1 or w.num_key_value_heads
      if form == 'heads' and (kind == 'gqa' or kind == 'swa') and maybe(0.3) then
        heads_of[i] = one { 1, 2, 4 }
        put('num_key_value_heads=%d', heads_of[i])
      end
      local windowed = form == 'entry' or kind == 'swa'
      l.window = windowed and w.sliding_window or 0
      if maybe(0.3) then
        l.window = one { 1, 2, 5, 9 }
        put('window=%d', l.window)
      end
      if kind ~= 'swa' then
        l.from, l.by, l.ratio = i, i, RATIO[kind] or 1
        if form == 'entry' and maybe(0.7) or kind ~= 'dsa' and maybe(0.15) then
          l.ratio = one { 1, 2, 3, 5, 8 }
        end
        l.overlap = kind == 'csa' and l.ratio > 1
        if kind == 'full' and l.ratio > 1 and maybe(0.3) then
          l.overlap = true
          put 'overlap=true'
        end
        local c, r = row_of(form, w, heads_of[i])
        l.width = c
        l.main = record_for(c, r, fields, 'record', ROW_DEFAULT[form] or 'v4.1-main', asked.main)
        if kind == 'dsa' or kind == 'csa' or kind == 'full' then
          l.scores, l.k = true, w.index_topk
          local d = w.index_head_dim
          if maybe(0.4) then
            l.k = math.random(1, 30)
            put('topk=%d', l.k)
          end
          if kind == 'csa' then l.index_width = d end
          l.index = record_for(d, math.min(w.qk_rope_head_dim, d), fields, 'index_record', 'index-fp4', asked.index)
          if maybe(0.4) then
            pools[i] = { math.random(1, 5), math.random(1, 4) }
            put('pool=%dx%d', pools[i][1], pools[i][2])
          end
        end
        if maybe(0.3) then
          named[#named + 1] = { name = 'n' .. i, at = i }
          put('name=n%d', i)
        end
        if cut and i > cut and maybe(0.3) then put 'source=encoder' end
        last_owner = i
      end
    end
    if l.by == i then latest[layers[l.from] and layers[l.from].ratio or l.ratio] = i end
    if l.window > 0 then
      local c, r = row_of(forms[i], w, heads_of[i])
      l.row = record_for(c, r, fields, 'window_record', ROW_DEFAULT[forms[i]] or 'v4.1-local', asked.window)
    end
    layers[i] = l
    local ratio = l.from == i and l.ratio ~= (RATIO[kind] or 1) and '/' .. l.ratio or ''
    texts[i] = kind .. ratio .. (#fields > 0 and '{' .. table.concat(fields, ',') .. '}' or '')
    if i == cut then texts[i] = texts[i] .. ' |' end
  end
  return table.concat(texts, ' '), w, next(asked) and asked or nil, layers
end

function TestRandom:test_random_layouts()
  math.randomseed(42)
  local kinds = { pool = 0, cut = 0, named = 0, shared = 0, mixed = 0 }
  for round = 1, 400 do
    local text, w, asked, layers = random_layout()
    local L = kv.layout(text)
    lu.assertEquals(kv.layout(tostring(L)), L, text)
    kinds.pool = kinds.pool + (text:find 'pool=%d' and text:find 'reindex' and 1 or 0)
    kinds.cut = kinds.cut + (text:find '|' and 1 or 0)
    kinds.named = kinds.named + (text:find 'of=' and 1 or 0)
    kinds.shared = kinds.shared + (text:find 'reuse' and 1 or 0)
    kinds.mixed = kinds.mixed + (asked and 1 or 0)
    local N = one { 1, 2, 3, math.random(4, 40), math.random(41, 200), 2 * math.random(20, 150) + 1 }
    local held = simulation.feed(layers, N)
    for _, access in ipairs { 'gather', 'mask' } do
      local r = kv.count(L:labelled { widths = w }, { context = N, records = asked, access = access })
      compare(r, layers, held, simulation.sets(layers, held, access == 'mask'),
        ('round %d: %s at %d, %s'):format(round, text, N, access))
    end
  end
  for what, n in pairs(kinds) do lu.assertTrue(n > 20, what .. ' was hardly drawn') end
end

-- Layers that look alike and share alike may still differ in the pool that their selector searched.
function TestRandom:test_layers_are_alike_only_with_their_selectors_owner()
  local L = kv.layout 'full{name=a} full{pool=1x1} reindex reuse{of=a} full reindex reuse{of=a}'
  local rows = {}
  local r = kv.count(L, { context = 1000 })
  for i = 1, #L do rows[i] = count.layer(r, i).rows end
  lu.assertEquals(rows, { 512, 512, 1, 1, 512, 512, 512 })
end

-- Rows of a shared cache and of the window stand in one softmax: what the owner changes, its readers follow.
function TestRandom:test_rows_follow_the_owner()
  local L = kv.layout 'mha{window=2} reuse full{head_dim=256} reuse'
  local r = kv.count(L:labelled { widths = { num_attention_heads = 4, num_key_value_heads = 2, head_dim = 64,
    sliding_window = 8, index_head_dim = 32, index_topk = 3 } }, { records = 'bf16' })
  lu.assertEquals(tostring(count.layer(r, 2).fixed), tostring(2 * 4 * 2 * 64 * 2))
  lu.assertEquals(tostring(count.layer(r, 4).fixed), tostring(8 * 256 * 2))
  check.fails({ 'layer 2 (layer_id 1)', '64', '512', 'layer 1 (layer_id 0)' }, kv.count,
    kv.layout 'full reuse{head_dim=64}')
end

-- --- (4) factors ----------------------------------------------------------------------------------------
TestFactors = {}

function TestFactors:test_the_product_is_the_bytes()
  local function product(L)
    local r = kv.count(L)
    local f = kv.factors(r)
    lu.assertEquals(f.width * f.layers * f.bytes / f.ratio, r.store.bytes_per_token, tostring(L))
    return f
  end
  for _, name in ipairs(kv.presets) do product(kv.preset(name)) end
  math.randomseed(5)
  for _ = 1, 50 do
    local text, w, _, layers = random_layout()
    local owns = false
    for i, l in ipairs(layers) do owns = owns or l.from == i end
    if owns then product(kv.layout(text):labelled { widths = w }) end
  end
  lu.assertNil(kv.factors(kv.count(kv.layout 'swa')))
end

-- The article's own factors: MLA narrows the row, V3.2 changes bytes and width, V4.1 layers and bytes.
function TestFactors:test_known_factors()
  local function of(name, records) return kv.factors(kv.count(kv.preset(name), { records = records })) end
  local f = of('mha')
  lu.assertEquals({ f.width, f.layers, f.bytes, f.ratio }, { exact(32768), exact(60), exact(2), exact(1) })
  f = of('v3.2')
  lu.assertEquals({ f.width, f.layers, f.bytes, f.ratio }, { exact(704), exact(61), exact(788, 704), exact(1) })
  f = of('v4.1-flash')
  lu.assertEquals({ f.width, f.layers, f.bytes, f.ratio }, { exact(640), exact(4), exact(356, 640), exact(8, 5) })
  f = of('v4-flash', 'bf16')
  lu.assertEquals(f.layers, exact(41))
  lu.assertEquals(f.bytes, exact(2))
end

-- --- (5) huge --------------------------------------------------------------------------------------------
TestHuge = {}

function TestHuge:test_a_million_layers_at_a_trillion_tokens()
  local began = os.clock()
  local r = kv.count(kv.layout('[full/2 reuse*5]*100000 swa*400000'), { context = 10 ^ 12 // 1 | 0 })
  lu.assertEquals(tostring(r.store.bytes_per_token), '17800000') -- 100,000 x 356 / 2
  lu.assertEquals(tostring(r.store.fixed_bytes), '67584000000')  -- 10^6 x 128 x 528
  -- 178 x 10^17, and the windows
  lu.assertEquals(tostring(r.store.total_bytes), '17800000067584000000')
  lu.assertEquals(tostring(r.read.selected_bytes), '88473600000')         -- 600,000 x 512 x 288
  lu.assertEquals(tostring(r.read.index_bytes), '3400000000000000000')    -- 100,000 x 5 x 10^11 x 68
  lu.assertEquals(tostring(r.read.total_bytes), '3400000156057600000')
  r = kv.count(kv.layout 'mha*1000000':labelled { widths = kv.preset('mha').widths }, { context = 1000000000000 })
  lu.assertEquals(tostring(r.store.total_bytes), '65536' .. ('0'):rep(18)) -- beyond 2^63
  lu.assertEquals(tostring(r.read.total_bytes), '65536' .. ('0'):rep(18))
  lu.assertTrue(os.clock() - began < 5, 'a million layers took ' .. os.clock() - began .. ' s')
end

function TestHuge:test_the_largest_context()
  local r = kv.count(kv.preset 'v4-flash', { context = math.maxinteger })
  -- floor((2^63 - 1) / 4) = 2305843009213693951 entries and floor((2^63 - 1) / 128) = 72057594037927935
  lu.assertEquals(tostring(r.read.index_bytes), tostring(exact(2305843009213693951) * (21 * 68)))
  lu.assertEquals(tostring(r.store.total_bytes),
    tostring(exact(2305843009213693951) * (21 * 652) + exact(72057594037927935) * (20 * 584) + 3214336))
end

-- --- (6) options ------------------------------------------------------------------------------------------
TestOptions = {}

function TestOptions:test_layout_as_text()
  lu.assertEquals(kv.count('swa*2 full/8').store.bytes_per_token, kv.count(kv.layout 'swa*2 full/8').store.bytes_per_token)
  check.fails({ 'column 1', 'ratio = 0' }, kv.count, 'full/0')
  check.fails({ 'expected a layout, its text or a layer', 'number' }, kv.count, 3)
  check.fails({ 'expected a layout, its text or a layer', 'nil' }, kv.measure)
end

function TestOptions:test_bad_options()
  local L = kv.preset 'v3.2'
  check.fails({ 'contxt', "'context'" }, kv.count, L, { contxt = 3 })
  for _, bad in ipairs { 0, -1, 1.5, 2 ^ 63, 0 / 0, 1 / 0, '3', {} } do
    check.fails({ 'context', 'whole number' }, kv.count, L, { context = bad })
  end
  check.fails({ 'access', 'gather or mask' }, kv.count, L, { access = 'both' })
  check.fails({ 'mian', "'main'" }, kv.count, L, { records = { mian = 'bf16' } })
  check.fails({ 'v3.2-mian', "'v3.2-main'" }, kv.count, L, { records = { main = 'v3.2-mian' } })
  check.fails({ 'hed_dim', "'head_dim'" }, kv.count, L, { widths = { hed_dim = 3 } })
  check.fails({ 'kv_lora_rank', 'abc' }, kv.count, L, { widths = { kv_lora_rank = 'abc' } })
end

check.main()
