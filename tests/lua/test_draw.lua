-- Pictures of layouts and layers: every layer is named, nothing is wider than asked for, and what is drawn is what the
-- layer has.
local lu = require 'luaunit'
local check = require 'check'
local kv = require 'kvlab'
local random_layouts = require 'random_layouts'
local shape = require 'kvlab.shape'
local weights = require 'kvlab.weights'

local function width_of(text)
  local most = 0
  for line in text:gmatch('[^\n]+') do most = math.max(most, utf8.len(line)) end
  return most
end

-- The layers that the picture of a layout names, in rows and in notes about repetitions.
local function named(text)
  local seen = {}
  local function mark(first, last)
    for i = first, last do seen[i] = true end
  end
  for line in text:gmatch('[^\n]+') do
    local first, last = line:match('^  (%d+)%-(%d+) ')
    if not first then first = line:match('^  (%d+) ') end
    if not first then first, last = line:match('^  %.%.%..*layers (%d+)%-(%d+)$') end
    if first then mark(tonumber(first), tonumber(last or first)) end
  end
  return seen
end

TestDrawLayout = {}

local function check_layout(L, options)
  local text = L:draw(options)
  local where = tostring(L) .. '\n' .. text
  lu.assertTrue(width_of(text) <= options.width, where)
  local seen = named(text)
  for i = 1, #L do lu.assertTrue(seen[i], where) end
  return text
end

function TestDrawLayout:test_random_layouts()
  math.randomseed(7)
  for round = 1, 150 do
    local L = random_layouts.draw()
    local text = check_layout(L, { width = 100, ascii = round % 2 == 0 })
    check_layout(L, { width = 40 })
    for i = 1, #L do
      local owner = L:owner(i)
      if owner and owner ~= i then lu.assertStrContains(text, 'of ' .. owner) end
    end
  end
end

function TestDrawLayout:test_presets()
  local function rows(name)
    local text = check_layout(kv.preset(name), { width = 80, ascii = true })
    return text, select(2, text:gsub('\n  %d', ''))
  end
  for name, shown in pairs { mha = 1, v2 = 1, ['v3.2'] = 1, ['v4-flash'] = 4, ['v4.1-flash'] = 17 } do
    lu.assertEquals(select(2, rows(name)), shown, name)
  end
  lu.assertStrContains(rows 'v4-flash', 'the 2 rows above x20: layers 3-42')
  local v41 = rows 'v4.1-flash'
  lu.assertStrContains(v41, '4 make global KV, 8 select, 40 keep a window')
  lu.assertStrContains(v41, 'encoder above')
  lu.assertStrContains(v41, 'from encoder')
  lu.assertStrMatches(v41, '.*26%-28 +reuse x3 +128 +o of 21 +o of 25.*')
end

-- Two caches that are read in turn have a lane each.
function TestDrawLayout:test_lanes()
  local text = kv.layout('full/2{name=a} hca reuse{of=a} reuse'):draw { ascii = true }
  lu.assertStrContains(text, '|@ own')
  lu.assertStrContains((text:gsub(' +', ' ')), '4 reuse yes o of 2 o of 2')
  lu.assertStrMatches(text, '.*@  own, 1 per 2.*|@ own, 1 per 128.*o| of 1.* o of 2.*')
end

-- A million layers, and many different ones.
function TestDrawLayout:test_large()
  local L = kv.layout { kv.group { kv.full { ratio = 2 }, kv.reuse * 5 } * 2000 }
  local text = L:draw { width = 80 }
  lu.assertTrue(#text < 2000)
  check_layout(kv.layout { kv.full, kv.layout('full hca mha gqa'), kv.reuse { window = 3 } * 30 }, { width = 80 })
end

TestDrawLayer = {}

-- Every matrix of the layer has its box with its shape: the picture is taken from the list of weights.
local function check_layer(L, w, i)
  local where = ('%s, layer %d'):format(tostring(L), i)
  local text = L:draw { layer = i, widths = w, ascii = true, width = 100 }
  lu.assertTrue(width_of(text) <= 100, where .. '\n' .. text)
  local s = shape.of(L, i, w)
  for _, spec in ipairs(weights.of(s)) do
    local name = spec.name:gsub('%.weight$', '')
    if spec.name:find('%.ape$') then
      lu.assertStrContains(text, ('+ bias %d x %d'):format(spec.shape[1], spec.shape[2]), false, where)
    elseif #spec.shape == 2 then
      lu.assertStrContains(text, '# ' .. name .. ' ', false, where .. '\n' .. text)
      if name ~= 'wo_a' then
        lu.assertStrContains(text, ('# %d x %d '):format(spec.shape[2], spec.shape[1]), false, where .. name)
      end
    end
  end
  -- And none for what it has not.
  local has = {}
  for _, spec in ipairs(weights.of(s)) do has[spec.name] = true end
  local function only(words, condition)
    lu.assertEquals(text:find(words, 1, true) ~= nil, condition and true or false, where .. ': ' .. words .. '\n' .. text)
  end
  only('softmax with sink', has.attn_sink)
  only('inverse RoPE', s.form == 'entry' and s.get('qk_rope_head_dim', true))
  only('of each group', has['wo_a.weight'])
  only('local KV', s.window > 0)
  only('indexer:', s.topk)
  only('borrowed from', s.owner and not s.owns)
  only('ReLU', s.topk)
  only('Hadamard', s.topk and w.index_hadamard)
  only('a of the block before', s.owns and s.layer.overlap)
  only('from the output of the encoder', s.owns and L.cut and i > L.cut and s.layer.source ~= 'input')
  check.fails('unknown option', L.draw, L, { layer = i, widths = w, colour = true })
  lu.assertTrue(width_of(L:draw { layer = i, widths = w, width = 44 }) <= 44, where)
end

function TestDrawLayer:test_random_layouts()
  math.randomseed(11)
  for _ = 1, 60 do
    local L, w = random_layouts.draw()
    for i = 1, #L do check_layer(L, w, i) end
  end
end

function TestDrawLayer:test_presets()
  for _, name in ipairs { 'mha', 'v2', 'v2-lite', 'v3.2', 'v4-flash', 'v4.1-flash' } do
    local L = kv.preset(name)
    for _, entry in ipairs(L:classes()) do
      lu.assertTrue(width_of(L:draw { layer = entry.first, width = 80 }) <= 80, name)
    end
  end
  local mla = kv.preset 'v2':draw { layer = 1, ascii = true }
  for _, words in ipairs { 'three orders', 'expand:', 'absorb:', 'merged:', '1536 x 512', 'x 0.1147' } do
    lu.assertStrContains(mla, words)
  end
  local absorbed = kv.preset 'v2':draw { layer = 1, ascii = true, order = 'absorb' }
  lu.assertNotStrContains(absorbed, 'expand:')
  lu.assertStrContains(kv.preset 'v4-flash':draw { layer = 3, ascii = true }, 'RMSNorm of each head')
end

function TestDrawLayer:test_object_and_value()
  local w = { hidden_size = 8, num_attention_heads = 2, head_dim = 4 }
  lu.assertEquals(kv.attention(kv.mha, w):draw { ascii = true }:match('\n(.*)'),
    kv.mha:draw(w, { ascii = true }):match('\n(.*)'))
  check.fails({ 'reuse', 'borrows', 'L:draw' }, kv.reuse.draw, kv.reuse, w)
  check.fails({ 'layer = 3', '1 to 2' }, function() kv.layout('full reuse'):draw { layer = 3 } end)
  check.fails({ 'order', 'absorb' }, kv.mla.draw, kv.mla, kv.preset 'v2'.widths, { order = 'absorbe' })
  check.fails({ 'kv_lora_rank' }, kv.mla.draw, kv.mla, w)
end

check.main()
