-- test_tape.lua: gradients of the tape against central differences, ownership, and errors.
--
-- Differences are of float32 forwards, so the step is large and the inputs of order 1: with a step of 1e-2 the error
-- of a smooth function is about 1e-4, that of rounding about 1e-5 of a sum of a few dozen numbers.
local lu = require 'luaunit'
local check = require 'check'
local core = require 'kvlab.core'
local kv = require 'kvlab'
local ops = require 'kvlab.ops'

local function draw(seed, ...) return kv.random { seed = seed, std = 0.8, ... } end

-- The sum of f(inputs...) times fixed weights, as a number; and its gradients by the tape.
local function weighted(out)
  local w = kv.random { seed = 99, table.unpack(out.shape) }
  return (out * w):sum()
end

-- Checks the gradients of f at a number of places of every input against central differences.
local function assert_gradients(name, f, inputs)
  local tape <close> = kv.tape()
  local vars = {}
  for i, t in ipairs(inputs) do vars[i] = tape:var(t) end
  tape:backward(weighted(f(table.unpack(vars))))
  local function at(flat, j, x)
    local before = flat[j]
    flat:set(j, x)
    local y = weighted(f(table.unpack(inputs)))
    flat:set(j, before)
    return y
  end
  for i, t in ipairs(inputs) do
    local flat, g = t:reshape(-1), vars[i].grad:reshape(-1)
    local step = 1e-2
    for j = 1, t.size, math.max(1, t.size // 7) do
      local x = flat[j]
      local difference = (at(flat, j, x + step) - at(flat, j, x - step)) / (2 * step)
      lu.assertAlmostEquals(g[j], difference, 4e-3 * math.max(1, math.abs(difference)),
        ('%s: input %d, element %d'):format(name, i, j))
    end
  end
end

TestGradients = {}

function TestGradients:test_shapes()
  local x = { draw(1, 3, 4, 2) }
  assert_gradients('reshape', function(a) return a:reshape(2, -1) * 2 end, x)
  assert_gradients('transpose', function(a) return a:transpose(1, -1) end, x)
  assert_gradients('permute', function(a) return a:permute(2, 3, 1) end, x)
  assert_gradients('slice', function(a) return a:slice(2, 2, -1) + a:slice(2, 1, 3) end, x)
  assert_gradients('select', function(a) return a:select(2, -1) end, x)
  assert_gradients('expand', function(a) return a:unsqueeze(1):expand(5, 3, 4, 2) end, x)
  assert_gradients('contiguous', function(a) return a:transpose(1, 2):contiguous():unsqueeze(1):squeeze(1):flatten() end, x)
  assert_gradients('cat', function(a, b) return ops.cat({ a, b, a }, 2) end, { draw(1, 2, 3), draw(2, 2, 2) })
  assert_gradients('gather', function(a) return a:gather(2, kv.tensor({ { 0, 0 }, { 2, 1 } }, 'int32')) end,
    { draw(1, 2, 3) })
end

function TestGradients:test_operators()
  local two = { draw(1, 3, 4), draw(2, 3, 4) + 3 }
  local row = { draw(1, 3, 4), draw(2, 4) + 3 }
  for _, pair in ipairs { two, row } do
    assert_gradients('+', function(a, b) return a + b end, pair)
    assert_gradients('-', function(a, b) return a - b end, pair)
    assert_gradients('*', function(a, b) return a * b end, pair)
    assert_gradients('/', function(a, b) return a / b end, pair)
  end
  assert_gradients('numbers', function(a) return 2 * a / 4 - 1 + (3 - a) + -a end, { draw(1, 3, 4) })
  assert_gradients('x + x', function(a) return a + a end, { draw(1, 5) })
  assert_gradients('x * x', function(a) return a * a end, { draw(1, 5) })
  assert_gradients('^', function(a) return a ^ 3 end, { draw(1, 5) })
  local positive = { draw(1, 3, 4):abs() + 0.5, draw(2, 4) }
  assert_gradients('Var ^ Var', function(a, b) return a ^ b end, positive)
  assert_gradients('number ^ Var', function(a) return 2 ^ a end, { draw(1, 5) })
end

-- Where only the right side is a Var: the tensor on the left asks it.
function TestGradients:test_tensor_on_the_left()
  local t = draw(7, 3, 4):abs() + 0.5
  for _, x in ipairs { draw(1, 3, 4) + 3, draw(1, 4) + 3 } do
    assert_gradients('t + x', function(a) return t + a end, { x })
    assert_gradients('t - x', function(a) return t - a end, { x })
    assert_gradients('t * x', function(a) return t * a end, { x })
    assert_gradients('t / x', function(a) return t / a end, { x })
    assert_gradients('t ^ x', function(a) return t ^ a end, { x })
  end
  local at_zero = kv.tensor { 0, 2 }
  local tape = kv.tape()
  local x = tape:var(kv.tensor { 2, 2 })
  tape:backward((at_zero ^ x):sum())
  lu.assertAlmostEquals(x.grad[2], 4 * math.log(2), 1e-5)
  lu.assertEquals(x.grad[1], 0)
  check.fails('Tensor or number', function() return at_zero + {} end)
  check.fails('Tensor or number', function() return at_zero * setmetatable({}, { __add = function() end }) end)
end

function TestGradients:test_choices()
  local a, b = draw(1, 3, 4), draw(2, 3, 4)
  local condition = a:gt(b)
  assert_gradients('where', function(x, y) return kv.where(condition, x, y) end, { a, b })
  assert_gradients('where, broadcast', function(y) return kv.where(condition, 1, y) end, { draw(2, 4) })
  assert_gradients('maximum', function(x, y) return x:maximum(y) end, { a, b })
  assert_gradients('minimum', function(x, y) return x:minimum(y) * x:minimum(0.1) end, { a, draw(3, 4) })
  local apart = { kv.permutation(12, 1):reshape(3, 4):to 'float32' * 0.3 }
  for _, name in ipairs { 'max', 'min' } do
    assert_gradients(name, function(x) return x[name](x, 1) end, apart)
    assert_gradients(name .. ', kept', function(x) return x[name](x, -1, true) end, apart)
    assert_gradients(name .. ' of all', function(x)
      return kv.is_var(x) and x[name](x):reshape(1) or kv.tensor { x[name](x) }
    end, apart)
  end
  assert_gradients('index_select', function(x) return x:index_select(-1, kv.tensor({ 3, 0, 3 }, 'int32')) end, { a })
  assert_gradients('cumsum', function(x) return x:cumsum(1) * x:cumsum() end, { a })
  assert_gradients('logsumexp', function(x) return x:logsumexp(1) end, { a })
  assert_gradients('logsumexp, last', function(x) return x:logsumexp() end, { a })
  local tape = kv.tape() -- equal elements share
  local x, y = tape:var(kv.tensor { 1, 3, 3 }), tape:var(kv.tensor { 1, 2, 3 })
  tape:backward(x:max() + (x:maximum(y)):sum())
  lu.assertEquals(x.grad:totable(), { 0.5, 1.5, 1 })
  lu.assertEquals(y.grad:totable(), { 0.5, 0, 0.5 })
end

function TestGradients:test_functions()
  local x = { draw(3, 4, 5) }
  for _, name in ipairs { 'neg', 'exp', 'tanh', 'sigmoid', 'silu', 'gelu', 'softmax', 'log_softmax' } do
    assert_gradients(name, function(a) return a[name](a) end, x)
  end
  local away = { kv.tensor { -2, -1, -0.5, 0.5, 1, 2 } } -- from the corner at 0
  assert_gradients('relu', function(a) return a:relu() end, away)
  assert_gradients('abs', function(a) return a:abs() end, away)
  for _, name in ipairs { 'log', 'sqrt', 'rsqrt' } do
    assert_gradients(name, function(a) return a[name](a) end, { kv.tensor { 0.8, 1, 1.5, 2 } })
  end
  assert_gradients('sum', function(a) return a:sum(1) end, x)
  assert_gradients('mean', function(a) return a:mean(2, true) end, x)
  assert_gradients('swiglu', ops.swiglu, { draw(1, 3, 4), draw(2, 3, 4) })
end

function TestGradients:test_layers()
  local function parts(f)
    return function(x)
      local first, rest = ops.split(x, 2, 2)
      return f(first, rest, x)
    end
  end
  local one = { draw(1, 3, 5) }
  assert_gradients('split', parts(function(a, b) return a:sum(2) + b:pow(2):sum(2) end), one)
  assert_gradients('split and whole', parts(function(a, b, x) return (x * x):sum(2) * b:sum(2) + a:sum(2) end), one)
  assert_gradients('first of split', parts(function(a) return a * a end), one)
  assert_gradients('rest of split', parts(function(_, b) return b * b end), one)
  assert_gradients('linear', ops.linear, { draw(1, 2, 5, 4), draw(2, 3, 4) })
  assert_gradients('two of one input', function(x, w) return ops.linear(x, w) + ops.linear(x, w * 2) end,
    { draw(1, 2, 5, 4), draw(2, 3, 4) })
  assert_gradients('matmul', ops.matmul, { draw(1, 5, 4), draw(2, 4, 3) })
  assert_gradients('matmul of a batch', ops.matmul, { draw(1, 3, 5, 4), draw(2, 3, 4, 2) })
  assert_gradients('matmul, broadcast', ops.matmul, { draw(1, 1, 5, 4), draw(2, 3, 4, 2) })
  assert_gradients('rms_norm', ops.rms_norm, { draw(1, 3, 8), draw(2, 8) })
  assert_gradients('layer_norm', ops.layer_norm, { draw(1, 3, 8), draw(2, 8), draw(3, 8) })
  assert_gradients('hadamard', ops.hadamard, { draw(1, 3, 8) })
  local freqs = kv.rope_freqs { channels = 4 }
  assert_gradients('rope', function(x) return ops.rope(x, freqs, { pos0 = 3, stride = 2 }) end, { draw(1, 1, 3, 2, 6) })
  local ids = kv.tensor({ { 1, 3 }, { 1, 0 } }, 'int32')
  assert_gradients('embedding', function(w) return ops.embedding(w, ids) end, { draw(1, 4, 3) })
  local labels = kv.tensor({ 2, -1, 0 }, 'int32')
  assert_gradients('cross_entropy', function(x) return ops.cross_entropy(x, labels, 2):reshape(1) end, { draw(1, 3, 4) })
  assert_gradients('head_loss', function(x, w) return (ops.head_loss(x, w, labels, 2)):reshape(1) end,
    { draw(1, 3, 5), draw(2, 4, 5) })
end

-- Window and selected entries in one softmax, K = V rows; and keys and values apart.
function TestGradients:test_attend()
  local list = kv.tensor({ { { -1, -1 }, { 0, -1 }, { 0, 1 }, { 1, -1 } } }, 'int32')
  assert_gradients('attend', function(q, rows, entries, sink)
    return (ops.attend { q = q, sink = sink, scale = 0.5, sources = {
      { rows = rows, kv_heads = 1, key = { 1, 4 }, value = { 1, 4 }, see = 'window', window = 2 },
      { rows = entries, kv_heads = 1, key = { 1, 4 }, value = { 1, 4 }, see = 'list', list = list } } })
  end, { draw(1, 1, 4, 2, 4), draw(2, 1, 4, 4), draw(3, 1, 2, 4), draw(4, 2) })
  assert_gradients('attend apart', function(q, k, v)
    return (ops.attend { q = q, scale = 0.5, sources = { { key_rows = k, value_rows = v, see = 'causal' } } })
  end, { draw(1, 1, 4, 2, 4), draw(2, 1, 4, 1, 4), draw(3, 1, 4, 1, 3) })
end

function TestGradients:test_compressor()
  for _, overlap in ipairs { false, true } do
    local row = overlap and 6 or 3
    assert_gradients('compressor', function(c, z, bias)
      local o = { ratio = 2, width = 3, overlap = overlap, bias = bias, batch = 2 }
      return (ops.is_var(c) and ops.tape_compressor(o) or ops.compressor(o)):push(c, z)
    end, { draw(1, 2, 7, row), draw(2, 2, 7, row), draw(3, 2, row) })
  end
end

-- The mean is over the queries that see an entry: with ratio 3, three of five.
function TestGradients:test_index_loss_of_entries()
  local q, w, keys = draw(1, 2, 5, 2, 4), draw(2, 2, 5, 2), draw(3, 2, 1, 4)
  local target = kv.random { 2, 5, 1, seed = 4, dist = 'uniform' } * 0 + 1
  for _, set in ipairs { false, kv.filled({ 2, 5, 1 }, 0, 'int32') } do
    local half = target * 0.5 -- of one entry: KL(0.5 || 1) = 0.5 ln 0.5 for each query that sees it
    local o = { q = q, w = w, keys = keys, pos0 = 0, ratio = 3, set = set or nil, target = half }
    lu.assertAlmostEquals(ops.index_loss(o):item(), 0.5 * math.log(0.5), 1e-6)
    o.pos0 = 2
    lu.assertAlmostEquals(ops.index_loss(o):item(), 0.5 * math.log(0.5), 1e-6)
  end
end

-- KL of the scores of 2 heads against a target, by what the forward of kv.index says.
function TestGradients:test_index_loss()
  local q, w, keys = draw(1, 1, 5, 2, 4), draw(2, 1, 5, 2), draw(3, 1, 5, 4)
  local target = kv.random { 1, 5, 5, seed = 4, dist = 'uniform' } * kv.tril(5, 5)
  target = target / target:sum(3, true)
  local function by_definition(a, b, c)
    local scores = kv.index { q = a, w = b, keys = { rows = c }, scores = true }.scores
    local parts = target * ((target + 1e-30):log() - scores:log_softmax())
    return kv.where(target:gt(0), parts, 0):sum() / 5
  end
  assert_gradients('index_loss', function(a, b, c)
    if not ops.is_var(a) then return kv.tensor { by_definition(a, b, c) } end
    local loss = ops.index_loss { q = a, w = b, keys = c, pos0 = 0, ratio = 1, target = target }
    lu.assertAlmostEquals(loss:item(), by_definition(q, w, keys), 1e-5)
    return loss:reshape(1)
  end, { q, w, keys })
end

-- A quantiser's gradient is that of the identity.
function TestGradients:test_straight_through()
  local plan = kv.record_named(kv.records()[1]):plan { channels = 8 }
  local tape = kv.tape()
  local x = tape:var(draw(1, 1, 3, 8))
  local y = ops.roundtrip(plan, x)
  lu.assertFalse(y.value:equal(x.value))
  tape:backward((y * 3):sum())
  lu.assertTrue(x.grad:equal(kv.ones(1, 3, 8) * 3))
end

TestTape = {}

function TestTape:test_own_operation()
  local tape = kv.tape()
  local x = tape:var(kv.tensor { 1, 2, 3 })
  local cube = tape:op { inputs = { x }, value = x.value ^ 3, backward = function(g) return x.value ^ 2 * 3 * g end }
  tape:backward((cube * 2):sum())
  lu.assertEquals(x.grad:totable(), { 6, 24, 54 })
  tape = kv.tape()
  x = tape:var(kv.tensor { 1, 2, 3 })
  local wrong = tape:op { inputs = { x }, value = kv.ones(3), backward = function() return kv.ones(2) end }
  check.fails({ 'backward of op gave {2}', 'expected a tensor {3}' }, tape.backward, tape, wrong:sum())
end

-- The caller's tensors stay, everything else is gone when the tape is consumed or closed.
function TestTape:test_ownership()
  local w = draw(1, 64, 64)
  collectgarbage() collectgarbage()
  local before = core.base.live_bytes()
  collectgarbage 'stop'
  local tape = kv.tape()
  local x = tape:var(w)
  local y = x
  for _ = 1, 6 do y = ops.linear(ops.rms_norm(y), x) + y end
  local loss = y:mean()
  lu.assertTrue(core.base.live_bytes() > before + 12 * w.size * 4)
  tape:backward(loss)
  lu.assertTrue(core.base.live_bytes() <= before + 2 * w.size * 4, 'the weight, its gradient, small things')
  lu.assertTrue(loss.value:item() == loss.value:item())
  lu.assertErrorMsgContains('consumed', function() return x + x end)
  check.fails('consumed already', tape.backward, tape, loss)
  do
    local other <close> = kv.tape()
    local a = other:var(w)
    y = a * a
  end
  check.fails('freed', function() return y.value:sum() end)
  collectgarbage 'restart'
end

function TestTape:test_gradients_are_added_to_what_is_given()
  local g = kv.ones(2)
  local tape = kv.tape()
  local x = tape:var(kv.tensor { 3, 4 }, g)
  tape:backward((x * x):sum(), 0.5)
  lu.assertEquals(g:totable(), { 4, 5 })
end

function TestTape:test_errors()
  local tape, other = kv.tape(), kv.tape()
  local x, y = tape:var(kv.ones(2)), other:var(kv.ones(2))
  check.fails('different tapes', function() return x + y end)
  check.fails({ 'from {2}', 'one element' }, tape.backward, tape, x)
  check.fails('of this tape', tape.backward, tape, y)
  check.fails('expected a float32 tensor', tape.var, tape, kv.tensor({ 1 }, 'int32'))
  check.fails('grad is not', tape.var, tape, kv.ones(2), kv.ones(3))
  check.fails('needs { inputs', tape.op, tape, { inputs = {} })
  check.fails("unknown key 'input'", tape.op, tape, { input = {} })
end

-- Kernels of gradients check what they get: a wrong shape, type or place never reaches memory.
function TestTape:test_kernels_check_arguments()
  local g, x = core.grad, kv.ones(2, 3)
  local int, wide, strided = kv.tensor({ 1, 2 }, 'int32'), kv.ones(2, 4), kv.ones(3, 2):transpose(1, 2)
  check.fails('d_out of the shape of x', g.rms_norm, wide, x, nil, 1e-6, nil, nil)
  check.fails('without gaps', g.rms_norm, x, x, nil, 1e-6, strided, nil)
  check.fails('gradient', g.layer_norm, x, x, nil, 1e-6, nil, kv.ones(2), nil)
  check.fails('float32', g.unary, 'relu', int, x)
  check.fails('without gaps', g.unary, 'relu', wide, x)
  check.fails('without gaps', g.swiglu_grad, strided, x, x)
  check.fails('up of the shape', g.swiglu, x, wide)
  check.fails('must be 0', g.embedding, kv.ones(2, 3), int, kv.zeros(2, 3))
  check.fails('{out, in}', g.weight, x, wide, kv.ones(3))
  check.fails('as many rows', g.weight, kv.ones(5, 3), wide, kv.ones(3, 4))
  check.fails('as many rows', g.input, kv.ones(5, 3), kv.ones(3, 4), kv.ones(4, 4))
  check.fails('d_out {B', g.compress, kv.ones(1, 3, 2), 2, false, nil, kv.ones(1, 4, 2), kv.ones(1, 4, 2))
  check.fails('labels', g.head_loss, x, kv.ones(4, 3), kv.tensor({ 1 }, 'int32'), 1)
  check.fails({ 'label', '7' }, g.head_loss, x, kv.ones(4, 3), kv.tensor({ 7, 0 }, 'int32'), 1)
  local four = kv.ones(1, 2, 1, 3)
  check.fails('lse', g.attend, four, four, x, four, {}, nil, 1, 0)
  check.fails('no such source', g.mass, kv.ones(1, 2, 1, 3), {}, kv.ones(1, 2, 1), 1, 0, 1, nil, true)
  check.fails('target', g.index, kv.ones(1, 2, 1, 3), kv.ones(1, 2, 1), kv.ones(1, 2, 3), 0, 1, nil, kv.ones(1, 2, 5), 1)
  check.fails({ '9' }, g.index, kv.ones(1, 2, 1, 3), kv.ones(1, 2, 1), kv.ones(1, 2, 3), 0, 1,
    kv.tensor({ { { 9 }, { 9 } } }, 'int32'), kv.ones(1, 2, 1), 1)
  check.fails('without gaps', core.optim.adamw, x, x, x, strided, 0.1, 0.9, 0.9, 1e-8, 0, 1, 1)
  check.fails('no tensor', core.optim.global_norm, { x, 3 })
end

-- Any arguments at all: an error or a result, never a crash. Shapes are small and often fit by chance.
function TestTape:test_kernels_survive_any_arguments()
  math.randomseed(5)
  local function size() return math.random(0, 3) end
  local function any(depth)
    local which = math.random(14)
    if which == 1 then return nil
    elseif which == 2 then return math.random(-2, 5)
    elseif which == 3 then return ({ 'relu', 'silu', 1.5, true, 1 << 62, 0 / 0, -1e300, {} })[math.random(8)]
    elseif which == 4 then
      return kv.random { size(), size(), math.random(1, 3), seed = 1, dist = 'integer', low = -3, high = 4 }
    elseif which == 5 then return kv.random { math.random(1, 3), seed = 1, dist = 'integer', low = -2, high = 3 }
    elseif which == 6 then return kv.ones(math.random(1, 3))
    elseif which == 7 and depth < 2 then
      return { { rows = any(2), key = { 1, 2 }, value = { 1, 2 }, see = ({ 'list', 'causal', 'window' })[math.random(3)],
        list = any(2), d_rows = any(2), key_rows = math.random(4) == 1 and any(2) or nil, value_rows = any(2) } }
    end
    local sizes = {}
    for i = 1, math.random(4) do sizes[i] = math.random(4) == 1 and size() or 2 end
    local t = kv.ones(sizes)
    return math.random(6) == 1 and #sizes > 1 and t:transpose(1, 2) or t
  end
  local function o(...) return kv.ones(...) end
  local ids = kv.tensor({ 1, 0 }, 'int32')
  local set = kv.tensor({ { { 0, -1 }, { 1, 0 } } }, 'int32')
  local function rows(more)
    local source = { rows = o(1, 2, 3), key = { 1, 2 }, value = { 2, 3 }, d_rows = o(1, 2, 3), see = 'list', list = set }
    for name, value in pairs(more) do source[name] = value end
    return source
  end
  local function sources() return { rows {}, rows { see = 'window', list = any(2), [math.random(3)] = any(2) } } end
  local function valid()
    return { -- calls that work, before an argument or two are replaced
      rms_norm = { o(2, 3), o(2, 3), o(3), 1e-6, o(2, 3), o(3) },
      layer_norm = { o(2, 3), o(2, 3), o(3), 1e-6, o(2, 3), o(3), o(3) },
      unary = { 'gelu', o(2, 3), o(2, 3) }, swiglu = { o(2, 3), o(2, 3) },
      swiglu_grad = { o(2, 3), o(2, 3), o(2, 3) }, embedding = { o(2, 3), ids, o(4, 3) },
      weight = { o(4, 2), o(4, 3), o(2, 3) }, input = { o(4, 2), o(2, 3), o(4, 3) },
      compress = { o(1, 2, 2), 2, true, o(2, 4), o(1, 5, 4), o(1, 5, 4), o(1, 5, 4), o(1, 5, 4), o(2, 4) },
      attend = { o(1, 2, 2, 2), o(1, 2, 2, 2), o(1, 2, 2), o(1, 2, 2, 2), sources(), o(2), 1, 0, o(1, 2, 2, 2), o(2) },
      mass = { o(1, 2, 2, 2), sources(), o(1, 2, 2), 1, 0, 1, set, true },
      index = { o(1, 2, 2, 3), o(1, 2, 2), o(1, 2, 3), 1, 1, set, o(1, 2, 2), 1, o(1, 2, 2, 3), o(1, 2, 2), o(1, 2, 3) },
      head_loss = { o(2, 3), o(4, 3), ids, 1, o(2, 3), o(4, 3) }, cross_entropy = { o(2, 3), ids, 1 },
      adamw = { o(3), o(3), o(3), o(3), 0.1, 0.9, 0.9, 1e-8, 0, 1, 1 }, global_norm = { { o(3), o(2) } },
      clip_scale = { 1, 2 }, scale = { { o(3) }, 2 },
    }
  end
  local worked, failed = 0, 0
  for _ = 1, 400 do
    for name, args in pairs(valid()) do
      for _ = 1, math.random(0, 2) do args[math.random(11)] = any(1) end
      local ok = pcall(core.grad[name] or core.optim[name], table.unpack(args, 1, 11))
      if ok then worked = worked + 1 else failed = failed + 1 end
    end
  end
  for name in pairs(core.grad) do lu.assertNotNil(valid()[name], name) end
  lu.assertTrue(worked > 2000 and failed > 500, ('%d worked, %d failed'):format(worked, failed))
end

check.main()
