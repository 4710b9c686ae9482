-- test_primitives.lua: norms, rope, attend, compress and the indexer from Lua: shapes, options and
-- properties. Values against double precision are in the C tests of each kernel.
local lu = require 'luaunit'
local check = require 'check'
local kv = require 'kvlab'

local function gap(a, b) return (a - b):abs():max() end

TestNorm = {}

function TestNorm.test_norms()
  local x, w = kv.random { 2, 3, 8, seed = 1 }, kv.random { 8, seed = 2 }
  local rms = x / (x * x):mean(-1, true):add(1e-6):sqrt()
  lu.assertTrue(gap(kv.rms_norm(x), rms) < 1e-6)
  lu.assertTrue(gap(kv.rms_norm(x, w), rms * w) < 2e-6)
  local centred = x - x:mean(-1, true)
  local normal = centred / x:var(-1, true):add(1e-5):sqrt()
  lu.assertTrue(gap(kv.layer_norm(x, w, w, 1e-5), normal * w + w) < 2e-6)
  lu.assertTrue(gap(kv.rms_norm(x:transpose()), kv.rms_norm(x:transpose():clone())) == 0)
  lu.assertTrue(gap(kv.hadamard(kv.hadamard(x)), x) < 1e-6)
  lu.assertEquals(kv.hadamard(kv.tensor { 1, 0 }):totable()[1], kv.hadamard(kv.tensor { 1, 0 }):totable()[2])
  check.fails({ 'weight', '{3}', '8 channels' }, kv.rms_norm, x, kv.zeros(3))
  check.fails('power of two', kv.hadamard, kv.zeros(3))
  check.fails('Tensor', kv.rms_norm, 3)
end

TestRope = {}

function TestRope.test_rotations()
  local x = kv.random { 2, 5, 3, 8, seed = 1 }
  local turned = kv.rope(x, { n = 4, pos0 = 7 })
  lu.assertEquals(turned.shape, x.shape)
  lu.assertTrue(gap(turned:slice(4, 1, 4), x:slice(4, 1, 4)) == 0) -- the first channels pass
  lu.assertTrue(gap(kv.rope(turned, { n = 4, pos0 = 7, inverse = true }), x) < 1e-6)
  local by_list = kv.rope(x, { n = 4, pos = kv.arange(7, 11) })
  lu.assertTrue(gap(by_list, turned) == 0)
  local flat = kv.rope(kv.tensor { { 1, 0 } }, { pos0 = 1 }) -- one radian
  lu.assertAlmostEquals(flat:totable()[1], { math.cos(1), math.sin(1) }, 1e-6)
  check.fails({ 'pos', '{3}', '5 tokens' }, kv.rope, x, { pos = kv.arange(3) })
  check.fails('even', kv.rope, x, { n = 3 })
  check.fails("did you mean 'theta'", kv.rope, x, { thta = 1 })
  check.fails('0 .. 8', kv.rope, x, { n = 10 })
  check.fails('2 .. 4', kv.rope, kv.zeros(3))
end

TestAttend = {}

-- softmax(scale q k) v with a mask, by tensor operations, for one head
local function plain(q, k, v, visible, scale)
  local scores = kv.where(visible, q:matmul(k:transpose()) * scale, -1 / 0)
  return scores:softmax():matmul(v), scores:logsumexp()
end

function TestAttend.test_against_operations()
  local q, k, v = kv.random { 6, 4, 8, seed = 1 }, kv.random { 6, 2, 8, seed = 2 }, kv.random { 6, 2, 5, seed = 3 }
  local out, lse = kv.attend { q = q, sources = { { key = k, value = v } }, lse = true }
  lu.assertEquals({ out.shape, lse.shape }, { { 6, 4, 5 }, { 6, 4 } })
  for h = 1, 4 do
    local kvh = (h + 1) // 2
    local want, want_lse = plain(q:select(2, h), k:select(2, kvh), v:select(2, kvh), kv.tril(6), 8 ^ -0.5)
    lu.assertTrue(gap(out:select(2, h), want) < 1e-6)
    lu.assertTrue(gap(lse:select(2, h), want_lse) < 1e-5)
  end
end

function TestAttend.test_rules()
  local q, k = kv.random { 2, 6, 2, 8, seed = 1 }, kv.random { 2, 6, 1, 8, seed = 2 }
  local causal = kv.attend { q = q, sources = { { key = k } } }
  local window = kv.attend { q = q, sources = { { key = k, see = 'window', window = 6 } } }
  lu.assertTrue(gap(causal, window) == 0)
  local list = kv.filled({ 2, 6, 6 }, -1, 'int32')
  for t = 1, 6 do list:select(2, t):slice(2, 1, t):copy_(kv.arange(t)) end
  lu.assertTrue(gap(kv.attend { q = q, sources = { { key = k, see = 'list', list = list } } }, causal) < 1e-6)
  -- a source in two halves is one source
  local halves = { { key = k:slice(2, 1, 3) }, { key = k:slice(2, 4), pos0 = 3 } }
  lu.assertTrue(gap(kv.attend { q = q, sources = halves }, causal) < 1e-6)
  -- a sink takes away weight; without one nothing visible gives zeros
  local sink = kv.attend { q = q, sources = { { key = k } }, sink = kv.filled({ 2 }, 100) }
  lu.assertTrue(sink:abs():max() < 1e-6)
  local none = kv.attend { q = q, sources = { { key = k, see = 'blocks', ratio = 7 } } }
  lu.assertEquals(none:abs():max(), 0)
end

function TestAttend.test_errors()
  local q, k = kv.zeros(6, 4, 8), kv.zeros(6, 2, 8)
  local function fails(parts, source, more)
    local opts = { q = q, sources = { source } }
    for key, value in pairs(more or {}) do opts[key] = value end
    check.fails(parts, kv.attend, opts)
  end
  fails("did you mean 'value'", { key = k, vlue = k })
  fails({ 'key', '{6, 2, 7}' }, { key = kv.zeros(6, 2, 7) })
  fails({ 'value', '{5, 2, 8}' }, { key = k, value = kv.zeros(5, 2, 8) })
  fails('multiple of 3', { key = kv.zeros(6, 3, 8) })
  fails('window is missing', { key = k, see = 'window' })
  fails('window is 0', { key = k, see = 'window', window = 0 })
  fails('see is all of it', { key = k, see = 'all of it' })
  fails('list is a nil', { key = k, see = 'list' })
  fails('names row 6', { key = k, see = 'list', list = kv.filled({ 6, 1 }, 6, 'int32') })
  fails({ 'list', '{5, 1}' }, { key = k, see = 'list', list = kv.zeros(5, 1, 'int32') })
  fails('int32', { key = k, see = 'list', list = kv.zeros(6, 1) })
  fails({ 'sink', '{3}' }, { key = k }, { sink = kv.zeros(3) })
  fails('expected an integer', { key = k }, { pos0 = 0 / 0 })
  fails('ring of 7', { key = k, ring = 7 })
  fails('no key', {})
  check.fails('sources', kv.attend, { q = q })
  check.fails('q is missing', kv.attend, { sources = { { key = k } } })
  check.fails('table', kv.attend, 3)
end

TestCompress = {}

function TestCompress.test_streams()
  local c, z = kv.random { 11, 8, seed = 1 }, kv.random { 11, 8, seed = 2 }
  local bias = kv.random { 3, 8, seed = 3 }
  local whole = kv.compress(c, z, { ratio = 3, overlap = true, bias = bias })
  lu.assertEquals(whole.shape, { 3, 4 })
  local state <close> = kv.compressor { ratio = 3, width = 4, overlap = true, bias = bias, rollback = 2 }
  local parts = {}
  for _, range in ipairs { { 1, 1 }, { 2, 5 }, { 6, 6 }, { 7, 11 } } do
    parts[#parts + 1] = state:push(c:slice(1, range[1], range[2]), z:slice(1, range[1], range[2]))
  end
  lu.assertTrue(kv.cat(parts):equal(whole))
  local fork = state:copy()
  fork:rollback(2)
  lu.assertEquals({ fork:position(), state:position() }, { 9, 11 })
  check.fails('take back', fork.rollback, fork, 1)
  lu.assertEquals(kv.compress(c, nil, { ratio = 1 }):equal(c), true)
  lu.assertTrue(gap(kv.compress(c, nil, { ratio = 11 }), c:mean(1, true)) < 1e-6)
  fork:free()
  check.fails('freed', fork.push, fork, c)
  check.fails({ 'c has shape {11, 8}', '4' }, state.push, kv.compressor { ratio = 2, width = 4 }, c)
  check.fails({ 'bias', '{3, 8}' }, kv.compress, c, z, { ratio = 2, bias = bias })
  check.fails('ratio is missing', kv.compress, c, z, {})
  check.fails({ '{11, 8}', '{5, 8}' }, kv.compress, c, kv.zeros(5, 8), { ratio = 2 })
  check.fails("did you mean 'ratio'", kv.compress, c, z, { ration = 2 })
end

TestIndex = {}

function TestIndex.test_scores_and_selection()
  local q, w, key = kv.random { 6, 2, 4, seed = 1 }, kv.random { 6, 2, seed = 2 }, kv.random { 6, 4, seed = 3 }
  local scores = kv.index.scores { q = q, w = w, key = key }
  -- sum over heads of w max(0, q . key), where the key is visible
  local dots = q:transpose(1, 2):matmul(key:transpose()):relu() -- (heads, queries, entries)
  local want = (dots * w:transpose():unsqueeze(3)):sum(1)
  lu.assertTrue(gap(kv.where(kv.tril(6), scores, 0), kv.where(kv.tril(6), want, 0)) < 1e-5)
  lu.assertTrue(kv.where(kv.tril(6), -1 / 0, scores):max() == -1 / 0)
  lu.assertTrue(kv.index.select { q = q, w = w, key = key, k = 3 }:equal(scores:topk(3, 'index')))
  local pool = kv.index.pool { q = q, w = w, key = key, block = 2, blocks = 2 }
  lu.assertEquals(pool.shape, { 6, 4 })
  lu.assertEquals(pool[6]:eq(5):any(), true) -- the newest block is always in
  local chosen = kv.index.select { q = q, w = w, key = key, k = 6, pool = pool }
  lu.assertEquals(chosen:slice(2, 1, 4):equal(pool), true)
  check.fails('k is missing', kv.index.select, { q = q, w = w, key = key })
  check.fails({ 'key', '{6, 3}' }, kv.index.scores, { q = q, w = w, key = kv.zeros(6, 3) })
  check.fails({ 'w', '{6, 3}' }, kv.index.scores, { q = q, w = kv.zeros(6, 3), key = key })
  check.fails('entry 6', kv.index.select, { q = q, w = w, key = key, k = 1, pool = kv.filled({ 6, 1 }, 6, 'int32') })
  check.fails("unknown key 'kk'", kv.index.select, { q = q, w = w, key = key, kk = 1 })
end

TestHostile = {}

-- Options drawn from what nobody should pass, sizes that nearly fit: an error or a result.
function TestHostile.test_nonsense()
  local freed = kv.zeros(4)
  freed:free()
  local odd = { 0, 1, 2, 3, -1, 1.5, 0 / 0, 1 / 0, 2 ^ 40 // 1 | 0, math.maxinteger, math.mininteger, 'list', 'window', 'blocks',
    'all', true, false, {}, { 1 }, print, freed, kv.zeros(0), kv.zeros(3, 2, 4), kv.zeros(3, 1, 4), kv.zeros(2, 3, 2, 4),
    kv.zeros(3, 4), kv.zeros(3, 2), kv.zeros(4), kv.zeros(2), kv.zeros(0, 2, 4), kv.zeros(3, 2, 0), kv.zeros(3, 0, 4),
    kv.zeros(1, 1, 4):expand(3, 2, 4), kv.zeros(4, 2, 3):transpose(1, 3), kv.zeros(3, 2, 'int32'), kv.arange(3),
    kv.filled({ 3, 2 }, -1, 'int32'), kv.filled({ 3, 2 }, 2147483647, 'int32'), kv.filled({ 3, 4 }, 0 / 0), kv.tensor(1),
    kv.zeros(1):expand(2 ^ 40 // 1 | 0) }
  local fit = kv.random { 3, 2, 4, seed = 1 }
  local keys = { 'q', 'w', 'key', 'value', 'see', 'window', 'ratio', 'list', 'pos0', 'ring', 'sink', 'scale', 'lse', 'pool',
    'k', 'block', 'blocks', 'theta', 'n', 'first', 'half_split', 'inverse', 'pos', 'stride', 'yarn', 'factor', 'context',
    'overlap', 'bias', 'width', 'rollback' }
  local core = require 'kvlab.core'
  local random = 99
  local function draw(n)
    random = (random * 1103515245 + 12345) & 0x7fffffff
    return (random >> 8) % n + 1
  end
  local function some() return odd[draw(#odd)] end
  local function table_of(fixed, count)
    local t = {}
    for key, value in pairs(fixed) do t[key] = value end
    for _ = 1, draw(count) - 1 do t[keys[draw(#keys)]] = some() end
    return t
  end
  local good = 0
  local function try(...) if pcall(...) then good = good + 1 end end
  for _ = 1, 3000 do
    local source = table_of({ key = fit }, 4)
    try(core.attend.attend, table_of({ q = fit, sources = { source, table_of({ key = fit }, 3) } }, 4))
    try(core.attend.index, ({ 'scores', 'select', 'pool' })[draw(3)],
      table_of({ q = fit, w = kv.zeros(3, 2), key = kv.zeros(3, 4), k = 2, block = 2, blocks = 2 }, 4))
    try(core.norm.rope, draw(3) == 1 and some() or fit, table_of({}, 4))
    try(core.norm.rms_norm, some(), some(), 1e-6)
    try(core.norm.layer_norm, some(), some(), some(), 1e-6)
    try(core.norm.hadamard, some())
    try(core.compress.compress, draw(3) == 1 and some() or kv.zeros(3, 4), draw(2) == 1 and some() or nil,
      table_of({ ratio = draw(4) }, 3))
    local ok, c = pcall(core.compress.compressor, table_of({ ratio = 2, width = 2 }, 3))
    if ok then
      try(c.push, c, draw(2) == 1 and some() or kv.zeros(3, 2), draw(2) == 1 and some() or nil)
      try(c.rollback, c, some())
      try(c.copy, c)
      c:free()
    end
  end
  lu.assertTrue(good > 1000, tostring(good))
end

check.main()
