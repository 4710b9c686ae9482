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

function TestDrawLayer:test_parts()
  local L = kv.preset 'v4-flash'
  local all = { 'query', 'cache', 'keys', 'indexer', 'window', 'attention', 'output' }
  local function draw(parts) return L:draw { layer = 3, ascii = true, width = 80, parts = parts } end
  lu.assertEquals(draw(all), draw(nil))
  local titles = { query = '  query', cache = '  global KV', keys = '  index keys', indexer = '  indexer:',
    window = '  local KV', attention = '  attention over', output = '  output' }
  for _, part in ipairs(all) do
    local text = draw { part }
    for name, title in pairs(titles) do
      lu.assertEquals(text:find('\n' .. title, 1, true) ~= nil, name == part, part .. ' ' .. name .. '\n' .. text)
    end
  end
  check.fails("parts: this layer has no 'keys'", L.draw, L, { layer = 4, parts = { 'keys' } })
  check.fails("parts: 'kys' is unknown; did you mean 'keys'?", L.draw, L, { layer = 3, parts = { 'kys' } })
  check.fails('parts: expected a list of query, cache', L.draw, L, { layer = 3, parts = 'keys' })
  check.fails('an empty one', L.draw, L, { layer = 3, parts = {} })
  check.fails('parts is of one layer', L.draw, L, { parts = { 'keys' } })
end

-- --- files --------------------------------------------------------------------------------------------------------

TestDrawFile = {}

local gnuplot = require 'kvlab.plot.gnuplot'

-- The texts of an SVG, each where it stands, and how many closed frames it has.
local function svg_of(path)
  local file <close> = assert(io.open(path, 'rb'))
  local svg = file:read('a')
  local words = {}
  for text in svg:gmatch('<text>(.-)</text>') do words[#words + 1] = text:gsub('<[^>]*>', '') end
  return table.concat(words, ' '), select(2, svg:gsub(' Z', ''))
end

-- Characters that are lines in a file, and closed shapes for which each stands: frames, of weights twice.
local FRAMES = { ['┌'] = 1, ['┏'] = 1, ['╔'] = 2 }
for _, code in utf8.codes '─│┐└┘━┃┓┗┛═║╗╚╝╌╎▶' do FRAMES[utf8.char(code)] = 0 end

-- Every word of the text is in the file, and every frame.
function TestDrawFile:test_layouts_and_layers()
  lu.skipIf(not gnuplot.installed(), 'gnuplot is not installed')
  local path = os.tmpname() .. '.svg'
  local v2, v4 = kv.preset 'v2', kv.preset 'v4.1-flash'
  local cases = { { function(o) return v4:draw(o) end }, { function(o) o.layer = 25 return v4:draw(o) end },
    { function(o) o.layer, o.order = 1, 'absorb' return v2:draw(o) end },
    { function(o) return kv.hca:draw(nil, o) end },
    { function(o) return kv.attention(kv.mqa, { hidden_size = 8, num_attention_heads = 2, head_dim = 4 }):draw(o) end } }
  for i, case in ipairs(cases) do
    local text = case[1] { width = 100, ascii = false }
    lu.assertEquals(case[1] { file = path }, path)
    local words, closed = svg_of(path)
    local frames = 0
    local plain = text:gsub(utf8.charpattern, function(c)
      frames = frames + (FRAMES[c] or 0)
      return FRAMES[c] and ' ' or nil
    end)
    for word in plain:gmatch('%S+') do
      word = word:gsub('&', '&amp;'):gsub('<', '&lt;'):gsub('>', '&gt;')
      lu.assertStrContains(words, word, false, ('case %d'):format(i))
    end
    lu.assertEquals(closed, frames, ('case %d'):format(i))
  end
  os.remove(path)
end

function TestDrawFile:test_the_command()
  local path = os.tmpname() .. '.svg'
  local code, _, err = check.sh('lua5.4 scripts/kvlab layout v2 --file x.gif')
  lu.assertEquals(code, 2)
  lu.assertStrContains(err, '.svg, .png or .pdf')
  lu.skipIf(not gnuplot.installed(), 'gnuplot is not installed')
  for options, word in pairs { ['--layer 1'] = 'kv_a_proj_with_mqa', ['--draw'] = 'mla', [''] = 'mla' } do
    local status, out = check.sh(('lua5.4 scripts/kvlab layout v2 %s --file %s'):format(options, path))
    lu.assertEquals({ status, out }, { 0, path .. '\n' })
    lu.assertStrContains(svg_of(path), word)
  end
  os.remove(path)
end

function TestDrawFile:test_pixels_and_wrong_names()
  local L = kv.layout 'full reuse'
  check.fails({ 'draw: file = x.gif', '.svg, .png or .pdf' }, L.draw, L, { file = 'x.gif' })
  check.fails({ 'draw: file = 7' }, L.draw, L, { layer = 1, file = 7 })
  check.fails({ 'ascii is of text' }, L.draw, L, { file = 'x.svg', ascii = true })
  lu.skipIf(not gnuplot.installed(), 'gnuplot is not installed')
  local path = os.tmpname() .. '.png'
  lu.assertEquals(L:draw { file = path, layer = 2 }, path)
  local file <close> = assert(io.open(path, 'rb'))
  lu.assertEquals(file:read(4), '\137PNG')
  os.remove(path)
  check.fails({ 'draw: file' }, L.draw, L, { file = '/no/such/folder/x.svg' })
end

check.main()
