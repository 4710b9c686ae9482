-- test_ops.lua: what is computed on tensors, from Lua: values by hand, properties, and errors that show
-- shapes. The bounds against double precision are in tests/c/test_ops.c.
local lu = require 'luaunit'
local check = require 'check'
local kv = require 'kvlab'
local core = require 'kvlab.core'

local function eq(t, values) lu.assertEquals(t:totable(), values) end
local function near(t, values, margin) lu.assertAlmostEquals(t:totable(), values, margin or 1e-6) end

TestElementwise = {}

function TestElementwise.test_arithmetic()
  local a, row = kv.tensor { { 1, 2 }, { 3, 4 } }, kv.tensor { 10, 20 }
  eq(a + row, { { 11, 22 }, { 13, 24 } })
  eq(row - a, { { 9, 18 }, { 7, 16 } })
  eq(a * 2, { { 2, 4 }, { 6, 8 } })
  eq(1 / kv.tensor { 2, 4 }, { 0.5, 0.25 })
  eq(a ^ 2, { { 1, 4 }, { 9, 16 } })
  eq(-a, { { -1, -2 }, { -3, -4 } })
  eq(a:minimum(2.5), { { 1, 2 }, { 2.5, 2.5 } })
  eq(a:maximum(row:unsqueeze(2)), { { 10, 10 }, { 20, 20 } })
  check.fails({ 'add', '{2, 2}', '{3}' }, function() return a + kv.zeros(3) end)
  check.fails('Tensor or number expected, got string', function() return a + '1' end)
  check.fails('got nil', function() return a * nil end)
end

function TestElementwise.test_types()
  local i = kv.arange(3)
  lu.assertEquals((i + 1).dtype, 'int32')
  lu.assertEquals((i + 1.0).dtype, 'float32')
  lu.assertEquals((i / 2).dtype, 'float32')
  lu.assertEquals((i + kv.zeros(3)).dtype, 'float32')
  lu.assertEquals(i:lt(2).dtype, 'int32')
  lu.assertEquals((i + 2147483648).dtype, 'float32') -- does not fit into int32
  check.fails('more than int32 holds', function() return kv.tensor({ 2147483647 }, 'int32') + 1 end)
  eq(i:to('float32') / 2, { 0, 0.5, 1 })
end

function TestElementwise.test_compare_and_where()
  local t = kv.tensor { 1, 2, 3 }
  eq(t:lt(2), { 1, 0, 0 })
  eq(t:le(2), { 1, 1, 0 })
  eq(t:gt(2), { 0, 0, 1 })
  eq(t:ge(2), { 0, 1, 1 })
  eq(t:eq(2), { 0, 1, 0 })
  eq(t:ne(2), { 1, 0, 1 })
  eq(kv.where(t:gt(1), t, 0), { 0, 2, 3 })
  eq(kv.where(kv.tril(2):eq(1), 0, -1 / 0), { { 0, -1 / 0 }, { 0, 0 } })
  check.fails({ 'where', '{3}', '{2}' }, kv.where, t, t, kv.zeros(2))
end

function TestElementwise.test_unary()
  near(kv.tensor { 0, 1 }:exp(), { 1, math.exp(1) })
  near(kv.tensor { 1, 4 }:sqrt(), { 1, 2 })
  near(kv.tensor { 1, 4 }:rsqrt(), { 1, 0.5 })
  near(kv.tensor { 1, math.exp(2) }:log(), { 0, 2 })
  eq(kv.tensor { -1, 2 }:relu(), { 0, 2 })
  eq(kv.tensor { -1, 2 }:abs(), { 1, 2 })
  near(kv.tensor { 0, 3 }:sigmoid(), { 0.5, 1 / (1 + math.exp(-3)) })
  near(kv.tensor { 0, 3 }:silu(), { 0, 3 / (1 + math.exp(-3)) })
  near(kv.tensor { 0, 1 }:gelu(), { 0, 0.8413447 })
  near(kv.tensor { 0, 1 }:tanh(), { 0, 0.7615942 })
  eq(kv.arange(3):neg(), { 0, -1, -2 })
end

function TestElementwise.test_in_place()
  local t = kv.tensor { { 1, 2 }, { 3, 4 } }
  lu.assertTrue(t:add_(1) == t)
  t:mul_(2):sub_(kv.tensor { 1, 0 }):div_(2)
  eq(t, { { 1.5, 3 }, { 3.5, 5 } })
  t[1]:fill_(0)
  eq(t, { { 0, 0 }, { 3.5, 5 } })
  t:add_(t:transpose())
  eq(t, { { 0, 3.5 }, { 3.5, 10 } })
  check.fails('target', t.add_, t, kv.zeros(2, 2, 2))
  check.fails('target', kv.arange(2).add_, kv.arange(2), 0.5)
end

TestReduce = {}

function TestReduce.test_values()
  local t = kv.tensor { { 1, 5, 3 }, { 4, 2, 6 } }
  lu.assertEquals({ t:sum(), t:mean(), t:max(), t:min() }, { 21, 3.5, 6, 1 })
  eq(t:sum(1), { 5, 7, 9 })
  eq(t:sum(-1), { 9, 12 })
  eq(t:sum(2, true), { { 9 }, { 12 } })
  eq(t:mean(1), { 2.5, 3.5, 4.5 })
  near(t:var(2), { 8 / 3, 8 / 3 })
  eq(t:max(2), { 5, 6 })
  eq(t:argmax(), { 1, 2 }) -- ids count from 0
  eq(t:argmin(1), { 0, 1, 0 })
  lu.assertEquals(kv.tensor { 1, 1 }:argmax():item(), 0)
  lu.assertEquals({ t:gt(5):any(), t:gt(5):all(), t:gt(0):all() }, { true, false, true })
  eq(t:gt(4):any(2), { 1, 1 })
  lu.assertEquals(math.type(kv.arange(4):sum()), 'integer')
  lu.assertEquals(kv.zeros(0):sum(), 0)
  lu.assertEquals(t:cumsum(2):totable(), { { 1, 6, 9 }, { 4, 6, 12 } })
  check.fails({ 'dimension 3', '1 .. 2' }, t.sum, t, 3)
  check.fails('no elements', t.max, kv.zeros(0))
  check.fails('more than int32', t.sum, kv.filled({ 3 }, 2000000000, 'int32'))
end

TestRows = {}

function TestRows.test_softmax()
  near(kv.tensor { 0, math.log(3) }:softmax(), { 0.25, 0.75 })
  near(kv.tensor { { 0, 0 }, { math.log(3), 0 } }:softmax(1), { { 0.25, 0.5 }, { 0.75, 0.5 } })
  near(kv.tensor { 0, math.log(3) }:log_softmax(), { math.log(0.25), math.log(0.75) })
  lu.assertAlmostEquals(kv.tensor { 1000, 1000 }:logsumexp():item(), 1000 + math.log(2), 1e-4)
  eq(kv.filled({ 2 }, -1 / 0):softmax(), { 0, 0 })
  lu.assertEquals(kv.filled({ 2 }, -1 / 0):logsumexp():item(), -1 / 0)
  -- adding a constant changes nothing; permuted inputs give permuted outputs
  local x, p = kv.random { 3, 50, seed = 1 }, kv.permutation(50, 2)
  lu.assertTrue((x + 3):softmax():sub(x:softmax()):abs():max() < 1e-6)
  lu.assertTrue(x:index_select(2, p):softmax():sub(x:softmax():index_select(2, p)):abs():max() < 1e-7)
end

function TestRows.test_topk()
  local ids, scores = kv.tensor { 1, 7, 7, -1 / 0, 0 / 0, 3 }:topk(3)
  eq(ids, { 1, 2, 5 })
  eq(scores, { 7, 7, 3 })
  eq(kv.tensor { 3, 1, 9 }:topk(2), { 2, 0 })
  eq(kv.tensor { 3, 1, 9 }:topk(2, 'index'), { 0, 2 })
  ids, scores = kv.tensor { -1 / 0, 4 }:topk(3)
  eq(ids, { 1, -1, -1 })
  eq(scores, { 4, -1 / 0, -1 / 0 })
  lu.assertEquals(kv.zeros(2, 3):topk(0).shape, { 2, 0 })
  check.fails('k = -1', ids.topk, ids, -1)
  check.fails('invalid option', ids.topk, ids, 1, 'sorted')
end

TestIds = {}

function TestIds.test_gather_and_scatter()
  local t = kv.tensor { { 1, 2, 3 }, { 4, 5, 6 } }
  local ids = kv.tensor({ { 2, 0 }, { 1, 1 } }, 'int32')
  eq(t:gather(2, ids), { { 3, 1 }, { 5, 5 } })
  eq(kv.zeros(2, 3):scatter(2, ids, kv.tensor { { 7, 8 }, { 9, 10 } }), { { 8, 0, 7 }, { 0, 10, 0 } })
  eq(kv.zeros(2, 3):scatter_add(2, ids, kv.tensor { { 7, 8 }, { 9, 10 } }), { { 8, 0, 7 }, { 0, 19, 0 } })
  eq(t:index_select(1, kv.tensor({ 1, 1, 0 }, 'int32')), { { 4, 5, 6 }, { 4, 5, 6 }, { 1, 2, 3 } })
  lu.assertEquals(kv.embedding(t, ids:minimum(1)).shape, { 2, 2, 3 })
  eq(kv.embedding(t, kv.tensor({ 1 }, 'int32')), { { 4, 5, 6 } })
  check.fails({ 'gather', 'id 3', '0 .. 2' }, t.gather, t, 2, kv.filled({ 2, 1 }, 3, 'int32'))
  check.fails({ 'id -1' }, kv.embedding, t, kv.tensor({ -1 }, 'int32'))
  check.fails('int32', kv.embedding, t, kv.tensor { 1 })
  check.fails({ 'gather', '{3, 1}', '{2, 3}' }, t.gather, t, 2, kv.zeros(3, 1, 'int32'))
end

TestMatmul = {}

function TestMatmul.test_shapes()
  local a, b = kv.tensor { { 1, 2 }, { 3, 4 } }, kv.tensor { { 5, 6 }, { 7, 8 } }
  eq(kv.matmul(a, b), { { 19, 22 }, { 43, 50 } })
  eq(a:matmul(b:transpose()), { { 17, 23 }, { 39, 53 } })
  eq(a:matmul(kv.tensor { 1, 1 }), { 3, 7 })
  lu.assertEquals(kv.matmul(kv.zeros(5, 1, 2, 3), kv.zeros(4, 3, 7)).shape, { 5, 4, 2, 7 })
  local x, w = kv.random { 2, 3, 4, seed = 1 }, kv.random { 4, 5, seed = 2 }
  lu.assertTrue(x:matmul(w)[2]:sub(x[2]:matmul(w)):abs():max() < 1e-6)
  check.fails('matmul: inner sizes differ: {3, 2} x {4, 5}', kv.matmul, kv.zeros(3, 2), kv.zeros(4, 5))
  check.fails('do not broadcast: {2, 1, 1} x {3, 1, 1}', kv.matmul, kv.zeros(2, 1, 1), kv.zeros(3, 1, 1))
  check.fails('need a dimension', function() return kv.matmul(kv.tensor(1), a) end)
end

TestRandom = {}

function TestRandom.test_seeds()
  local a = kv.random { 3, 4, seed = 1 }
  lu.assertTrue(a:equal(kv.random { 3, 4, seed = 1 }))
  lu.assertFalse(a:equal(kv.random { 3, 4, seed = 2 }))
  lu.assertTrue(kv.random { 12, seed = 1 }:equal(a:reshape(12)))
  local u = kv.random { 1000, seed = 1, dist = 'uniform', low = 2, high = 3 }
  lu.assertTrue(u:min() >= 2 and u:max() < 3)
  local n = kv.random { 1000, seed = 1, dist = 'integer', low = -1, high = 1 }
  lu.assertEquals({ n:min(), n:max(), n.dtype }, { -1, 1, 'int32' })
  lu.assertEquals(kv.permutation(100, 7):to('float32'):sum(), 4950)
  check.fails('seed is nil', kv.random, { 3 })
  check.fails({ "'sed'", "did you mean 'seed'" }, kv.random, { 3, sed = 1 })
  check.fails({ "'low'", 'normal' }, kv.random, { 3, seed = 1, low = 1 })
  check.fails('uniformly', kv.random, { 3, seed = 1, dist = 'uniformly' })
  check.fails('low is nil', kv.random, { 3, seed = 1, dist = 'integer' })
  check.fails('finite', kv.random, { 3, seed = 1, std = 0 / 0 })
  check.fails('table', kv.random, 3)
end

TestInterrupt = {}

-- Ctrl-C in the middle of a long product is the error "interrupted", soon.
function TestInterrupt.test_ctrl_c()
  local script = [[
    local kv, core = require 'kvlab', require 'kvlab.core'
    local a = kv.random { 3000, 3000, seed = 1 }
    core.base.catch_interrupts()
    os.execute('(sleep 0.3; kill -INT $PPID) &')
    local start = core.base.now()
    local _, why = pcall(function()
      repeat kv.matmul(a, a) until core.base.now() - start > 30
    end)
    core.base.clear_interrupt()
    print(why, core.base.now() - start < 1.5, kv.matmul(kv.eye(1), kv.eye(1)):item())
  ]]
  local name = check.write(script, '.lua')
  local _, out, err = check.sh(('lua5.4 %s'):format(name))
  os.remove(name)
  lu.assertStrContains(out .. err, 'interrupted\ttrue\t1.0')
end

check.main()
