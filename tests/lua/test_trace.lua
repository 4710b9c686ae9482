-- Traces: the sets that a decoded token saw agree with counters, with kv.count and with what layouts mean; prefill
-- grids with what sequences report; matrices from inside attention with each other and with the output.
local lu = require 'luaunit'
local check = require 'check'
local kv = require 'kvlab'
local random_layouts = require 'random_layouts'

local SMALL = { hidden_size = 16, num_attention_heads = 4, num_key_value_heads = 2, head_dim = 8, v_head_dim = 4,
  qk_nope_head_dim = 8, qk_rope_head_dim = 4, q_lora_rank = 12, kv_lora_rank = 8, sliding_window = 4,
  index_n_heads = 8, index_head_dim = 8, index_topk = 2, vocab_size = 16 }

local function ids(n, seed)
  return kv.random { n, dist = 'integer', low = 0, high = 15, seed = seed }
end

local function upto(n)
  local list = {}
  for at = 1, n do list[at] = at - 1 end
  return list
end

local function set_of(list)
  local set = {}
  for _, id in ipairs(list) do set[id] = true end
  return set
end

TestTrace = {}

-- The article's worked facts: HCA, and CSA with k = 2, in blocks of 4 with a window of 4 (Figures 14 and 19).
function TestTrace:test_article()
  local function rows(text, position)
    local t = kv.trace(text, { position = position })
    lu.assertTrue(t.equal)
    return t.layers[1]
  end
  local six, seven = rows('hca/4{window=4}', 6), rows('hca/4{window=4}', 7)
  lu.assertEquals(six.selected, { 0 })
  lu.assertEquals(six.window, { 3, 4, 5, 6 })
  lu.assertEquals(six.reads.selected_rows + six.reads.window_rows, 5)
  lu.assertEquals(seven.selected, { 0, 1 })
  lu.assertEquals(seven.window, { 4, 5, 6, 7 })
  lu.assertEquals(seven.reads.selected_rows + seven.reads.window_rows, 6)
  local csa = rows('csa{window=4,topk=2}', 11)
  lu.assertEquals(csa.scored, { 0, 1, 2 })
  lu.assertEquals(#csa.selected, 2)
  lu.assertEquals({ csa.reads.index_rows, csa.reads.selected_rows }, { 3, 2 })
end

-- One layer of a trace against the layout, the counters and the count.
local function check_layer(where, L, w, t, i)
  local one, owner = t.layers[i], L:owner(i)
  local N = t.context
  local n = owner and N // L[owner].ratio or 0
  lu.assertEquals(one.readable, upto(n), where .. ': readable')
  lu.assertEquals(one.owner, owner, where)
  lu.assertEquals(one.selector, L:selector(i), where)
  local W = L:window(i, w)
  lu.assertEquals(#one.window, math.min(W, N), where .. ': window')
  for k, at in ipairs(one.window) do lu.assertEquals(at, N - #one.window + k - 1, where .. ': window') end
  -- The sets are as large as the counters say.
  local r = one.reads
  lu.assertEquals({ #one.selected, #one.window, #one.scored }, { r.selected_rows, r.window_rows, r.index_rows }, where)
  -- Bytes are those of the count.
  for name, bytes in pairs(one.counted) do lu.assertEquals(r[name], bytes, where .. ': ' .. name) end
  lu.assertEquals(one.after - one.before, r.selected_bytes + r.window_bytes + r.index_bytes, where)
  lu.assertEquals(one.before, i == 1 and 0 or t.layers[i - 1].after, where)
  -- Ascending, and among what could be chosen.
  local allowed = set_of(one.readable)
  for k, id in ipairs(one.selected) do
    lu.assertTrue(allowed[id], where)
    lu.assertTrue(k == 1 or one.selected[k - 1] < id, where)
  end
  if L:selector(i) and L:selector(i) ~= i then
    lu.assertEquals(one.selected, t.layers[L:selector(i)].selected, where .. ': borrowed selection')
  end
  if L[i].select ~= 'topk' then
    lu.assertEquals(one.scored, {}, where)
    if L[i].select == 'all' then lu.assertEquals(one.selected, one.readable, where) end
    return
  end
  local k = L[i].topk or w.index_topk
  if L:pool(i) then -- it searches the owner's pool
    lu.assertEquals(one.scored, t.layers[owner].pool or {}, where .. ': scored')
  else
    lu.assertEquals(one.scored, one.readable, where .. ': scored')
  end
  lu.assertEquals(#one.selected, math.min(k, #one.scored), where)
  local pool = L[i].pool
  if pool and n > 0 then -- as many blocks as it may have, the newest among them
    local blocks = {}
    for _, id in ipairs(one.pool) do blocks[id // pool.block] = (blocks[id // pool.block] or 0) + 1 end
    local number = 0
    for _ in pairs(blocks) do number = number + 1 end
    lu.assertEquals(number, math.min(pool.blocks, -(-n // pool.block)), where .. ': pool')
    lu.assertNotNil(blocks[(n - 1) // pool.block], where .. ': pool')
  end
  -- What is selected scores at least as much as what is not.
  if n == 0 then return end
  local selected, worst, best = set_of(one.selected), math.huge, -math.huge
  for id, score in ipairs(one.scores:totable()) do
    if selected[id - 1] then worst = math.min(worst, score) else best = math.max(best, score) end
  end
  lu.assertTrue(worst >= best, where .. ': scores')
end

function TestTrace:test_random_layouts()
  math.randomseed(20260914)
  for round = 1, 60 do
    local L, w = random_layouts.draw()
    local n = math.random(1, 40)
    local where = ('round %d, %d tokens, %s'):format(round, n, tostring(L))
    local t = round % 2 == 0 and kv.trace(L, { tokens = ids(n, round), seed = round })
      or kv.trace(kv.model(L, {}, { seed = round }), { position = n - 1 })
    lu.assertTrue(t.equal, where)
    lu.assertEquals(t.read_bytes, t.counted_bytes, where)
    lu.assertEquals(#t.layers, #L)
    for i = 1, #L do check_layer(('%s, layer %d'):format(where, i), L, w, t, i) end
    -- The picture: a line for each layer, none longer than it may be.
    local text = t:draw { width = 70, ascii = true, layers = { 1, #L } }
    for line in text:gmatch('[^\n]+') do lu.assertTrue(#line <= 70, line) end
    lu.assertStrContains(text, 'kv.count')
  end
end

-- The same step outside of the trace selects and reads the same.
function TestTrace:test_is_the_step()
  local m = kv.model('swa csa full/2 reuse', SMALL, { seed = 5 })
  local tokens = ids(30, 3)
  local t = kv.trace(m, { tokens = tokens, records = 'f32' })
  local seq <close> = m:sequence { records = 'f32' }
  seq:prefill(tokens:slice(1, 1, 29))
  seq:reset()
  seq:decode(tokens:get(30))
  for i, one in ipairs(t.layers) do lu.assertEquals(one.reads, seq:reads().layers[i]) end
  -- and the layer alone selects for its last query what the trace of a model of it says
  local A = kv.attention(kv.csa, SMALL)
  local x = kv.random { 1, 30, 16, seed = 2 }
  local _, selected = A:full(x)
  local mask = A:mask(x)
  for k = 1, 2 do lu.assertEquals(mask:get(1, 30, 30 + selected:get(1, 30, k) + 1), 0) end
end

-- Released widths: the five models, through stand-ins.
function TestTrace:test_presets()
  for _, name in ipairs { 'v2', 'v3.2', 'v4-flash', 'v4.1-flash' } do
    local t = kv.trace(kv.preset(name), { position = 150 })
    lu.assertTrue(t.stand_ins and t.equal, name)
  end
  local t = kv.trace(kv.preset 'v4.1-flash':with(21, kv.full { pool = { blocks = 3, block = 8 } }), { position = 100,
    widths = { index_topk = 4 } })
  lu.assertEquals(#t.layers[21].pool, 2 * 8 + 5)
  lu.assertEquals(#t.layers[25].scored, 2 * 8 + 5)
  lu.assertStrContains(tostring(t), 'scored and in the pool')
end

-- Where a column stands for many positions it says what part of their entries is read.
function TestTrace:test_long_context()
  local t = kv.trace('full{window=4,topk=100} hca/128', { position = 999 })
  local text = t:draw { width = 80, ascii = true }
  local columns, every = text:match('1 full.-|([^\n]*)'), tonumber(text:match('times (%d+) positions'))
  lu.assertEquals(#columns, math.ceil(1000 / every))
  local state = set_of(t.layers[1].selected)
  for at = 0, #columns - 1 do
    local read, last = 0, math.min(999, (at + 1) * every - 1)
    for id = at * every, last do read = read + (state[id] and 1 or 0) end
    local char = columns:sub(at + 1, at + 1)
    lu.assertEquals(char, read == 0 and '-' or read == last - at * every + 1 and '#'
      or tostring(math.max(1, 10 * read // (last - at * every + 1))))
  end
  lu.assertEquals(text:match('2 hca.-|([^\n]*)'):match('^#*'), ('#'):rep(math.ceil(896 / every)))
  for line in text:gmatch('[^\n]+') do lu.assertTrue(#line <= 80, line) end
end

function TestTrace:test_bad_input()
  check.fails({ 'trace', 'tokens', 'position' }, kv.trace, 'swa', {})
  check.fails({ 'trace', 'number' }, kv.trace, 5, { position = 1 })
  check.fails({ 'trace: position', '-1' }, kv.trace, 'swa', { position = -1 })
  check.fails({ 'trace', 'postion', 'position' }, kv.trace, 'swa', { postion = 1 })
  check.fails({ 'widths', 'model' }, kv.trace, kv.model('mha', SMALL), { position = 1, widths = {} })
  check.fails({ 'million weights', 'smaller widths' }, kv.trace, 'swa', { tokens = { 1 } })
  check.fails({ 'layers', '1' }, function() kv.trace('swa', { position = 3 }):draw { layers = { 1, 2 } } end)
end

TestPrefill = {}

-- Figure 27: 8 positions, an encoder and a decoder of two layers, replay of 2.
function TestPrefill:test_grid()
  local p = kv.trace.prefill('swa full/2 | full reuse', { length = 8, replay = 2, widths = SMALL })
  lu.assertEquals({ p.evaluations, p.whole.evaluations }, { 2 * 8 + 2 * 2, 4 * 8 })
  local first = {}
  for i, one in ipairs(p.layers) do
    first[i] = one.first
    lu.assertEquals(one.last, 7)
  end
  lu.assertEquals(first, { 0, 0, 6, 6 })
  lu.assertEquals({ p.layers[2].entries, p.layers[3].entries }, { 4, 8 })
  lu.assertTrue(p.error > 1e-3)
  local text = p:draw { ascii = true }
  lu.assertStrContains(text, '|kkkkkk##')
  lu.assertStrContains(text, '|......##')
  lu.assertNil(kv.trace.prefill('swa | full', { length = 5, widths = SMALL }).error)
end

-- Replay is exact from 1 + the sum over the decoder of (window - 1) on.
function TestPrefill:test_bound()
  local function error_of(n)
    return kv.trace.prefill('swa full | full reuse', { length = 30, replay = n, widths = SMALL }).error
  end
  lu.assertTrue(error_of(7) < 1e-5)
  lu.assertTrue(error_of(4) > 1e-4)
end

function TestPrefill:test_bad_input()
  check.fails({ 'replay', 'encoder' }, kv.trace.prefill, 'swa', { length = 3, replay = 2, widths = SMALL })
  check.fails({ 'length', '0' }, kv.trace.prefill, 'swa', { length = 0 })
  check.fails({ 'tokens', 'length' }, kv.trace.prefill, 'swa', {})
end

TestInspect = {}

local LAYERS = { kv.mha, kv.gqa, kv.mqa, kv.mla, kv.dsa, kv.swa, kv.hca { ratio = 4 }, kv.csa, kv.full { ratio = 2 },
  kv.full, kv.gqa { ratio = 2, window = 3 }, kv.mla { ratio = 3, window = 2, select = 'topk', keys = 'entry' } }

-- Probabilities are the softmax of the scores (with the sink), and give the output when they weigh the values.
function TestInspect:test_probabilities()
  local x = kv.random { 2, 13, 16, seed = 3 }
  for _, l in ipairs(LAYERS) do
    for _, order in ipairs(l.form == 'latent' and { 'expand', 'absorb', 'merged' } or { false }) do
      local A = kv.attention(l, SMALL, { order = order or nil })
      local p, labels = A:probabilities(x)
      local scores, mask = A:scores(x), A:mask(x)
      lu.assertEquals({ p.shape[1], p.shape[2], p.shape[3] }, { 2, 4, 13 }, tostring(l))
      lu.assertEquals({ #labels.rows, #labels.columns }, { 13, p.shape[4] })
      local e = scores:exp()
      local sum = e:sum(4, true)
      if A.w.attn_sink then sum = sum + A.w.attn_sink:exp():reshape(1, 4, 1, 1) end
      lu.assertTrue((e / sum - p):abs():max() < 1e-6, tostring(l))
      lu.assertTrue(scores:gt(-math.huge):to('float32'):equal((mask:unsqueeze(2) + scores * 0):eq(0):to 'float32'))
      if not A.w.attn_sink then lu.assertAlmostEquals(p:sum(4):min(), 1, 1e-5) end
    end
  end
end

-- Against the definition: what a mask of a window, of blocks and of a selection lets through.
function TestInspect:test_mask()
  local A = kv.attention(kv.csa, SMALL)
  local x = kv.random { 1, 12, 16, seed = 4 }
  local mask = A:mask(x)
  local _, selected = A:full(x)
  for t = 0, 11 do
    local chosen = {}
    for k = 1, selected.shape[3] do chosen[selected:get(1, t + 1, k)] = true end
    for at = 0, 11 do lu.assertEquals(mask:get(1, t + 1, at + 1) == 0, at <= t and at > t - 4) end
    for b = 0, 2 do lu.assertEquals(mask:get(1, t + 1, 13 + b) == 0, chosen[b] or false) end
  end
  local scores = A:index_scores(x)
  for t = 0, 11 do
    for b = 0, 2 do lu.assertEquals(scores:get(1, t + 1, b + 1) > -math.huge, b < (t + 1) // 4) end
  end
end

-- The weights pool the candidates into what the compressor makes of them.
function TestInspect:test_pooling()
  local T, x = 11, kv.random { 2, 11, 16, seed = 5 }
  for _, l in ipairs { kv.hca { ratio = 4 }, kv.csa, kv.csa { ratio = 3 }, kv.full { ratio = 2 }, kv.gqa { ratio = 2 } } do
    local A = kv.attention(l, SMALL)
    local w, labels = A:pooling(x)
    local m, c = l.ratio, w.shape[4]
    local rows = m * (l.overlap and 2 or 1)
    lu.assertEquals({ w.shape[2], w.shape[3], #labels.rows }, { T // m, rows, rows }, tostring(l))
    lu.assertTrue((w:sum(3) - 1):abs():max() < 1e-6, tostring(l))
    if l.overlap then lu.assertEquals(w:select(2, 1):slice(2, 1, m):abs():max(), 0) end
    if l.form == 'entry' then
      local candidates = x:matmul(A.w['compressor.wkv.weight']:transpose())
      local gate = x:matmul(A.w['compressor.wgate.weight']:transpose())
      local pooled = kv.compressor { ratio = m, width = c, overlap = l.overlap, bias = A.w['compressor.ape'],
        batch = 2 }:push(candidates, gate)
      for b = 0, T // m - 1 do
        local sum
        for r = 1, rows do
          local t = b * m + r - 1 - (rows - m)
          if t >= 0 then
            local half = l.overlap and r <= m and { 1, c } or { rows - m > 0 and c + 1 or 1, -1 }
            local part = w:select(2, b + 1):select(2, r)
              * candidates:select(2, t + 1):slice(2, half[1], half[2])
            sum = sum and sum + part or part
          end
        end
        lu.assertTrue((sum - pooled:select(2, b + 1)):abs():max() < 1e-5, tostring(l))
      end
    end
  end
  local index = kv.attention(kv.csa, SMALL):pooling(x, 'index')
  lu.assertEquals({ index.shape[3], index.shape[4] }, { 8, 8 })
end

function TestInspect:test_bad_input()
  local A, x = kv.attention(kv.mla, SMALL), kv.zeros(1, 3, 16)
  check.fails({ 'pooling', 'mla', 'ratio' }, A.pooling, A, x)
  check.fails({ 'index_scores', 'mla' }, A.index_scores, A, x)
  check.fails({ 'x is number', '16' }, A.scores, A, 5)
  local B = kv.attention(kv.csa, SMALL)
  check.fails({ 'pooling', "'indx'", 'index' }, B.pooling, B, x, 'indx')
  check.fails({ '3 tokens', '4' }, B.pooling, B, x)
  check.fails({ '3 tokens', '4' }, B.index_scores, B, x)
  local m = kv.model('csa reuse', SMALL)
  check.fails({ 'layer 2', 'by itself' }, function() m.layers[2]:probabilities(x) end)
end

check.main()
