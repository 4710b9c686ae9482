-- test_tensor.lua: the Tensor object from Lua: making, viewing, reading, printing, freeing, and what
-- happens when it is handed nonsense.
local lu = require 'luaunit'
local check = require 'check'
local kv = require 'kvlab'
local core = require 'kvlab.core'

local function eq(t, values) lu.assertEquals(t:totable(), values) end

TestMake = {}

function TestMake.test_from_tables()
  local t = kv.tensor { { 1, 2, 3 }, { 4, 5, 6.5 } }
  lu.assertEquals(t.shape, { 2, 3 })
  lu.assertEquals({ t.ndim, t.size, #t, t.dtype }, { 2, 6, 2, 'float32' })
  eq(t, { { 1, 2, 3 }, { 4, 5, 6.5 } })
  lu.assertEquals(kv.tensor(2.5):item(), 2.5)
  lu.assertEquals(kv.tensor({}).shape, { 0 })
  lu.assertEquals(kv.tensor({ {}, {} }).shape, { 2, 0 })
  local ids = kv.tensor({ 1, 2.0, -3 }, 'int32')
  lu.assertEquals(math.type(ids[2]), 'integer')
  lu.assertEquals(math.type(t[1][1]), 'float')
  local copy = kv.tensor(t)
  copy:fill_(0)
  lu.assertEquals(t:get(1, 1), 1)
  lu.assertEquals(kv.tensor(t, 'int32'):get(2, 3), 6)
end

function TestMake.test_bad_tables()
  check.fails({ 'element {2} has 1 elements', 'have 2' }, kv.tensor, { { 1, 2 }, { 3 } })
  check.fails({ 'element {2}', 'number' }, kv.tensor, { { 1, 2 }, 3 })
  check.fails({ 'element {2}', 'table' }, kv.tensor, { 1, { 2 } })
  check.fails({ 'element {2}', 'string' }, kv.tensor, { 1, '2' })
  check.fails({ 'element {1, 2}', 'boolean' }, kv.tensor, { { 1, true } })
  check.fails('kv.stack', kv.tensor, { kv.tensor { 1 } })
  check.fails('int32 cannot hold', kv.tensor, { 1.5 }, 'int32')
  check.fails('int32 cannot hold', kv.tensor, { 2 ^ 31 }, 'int32')
  check.fails('int32 cannot hold', kv.tensor, { 0 / 0 }, 'int32')
  check.fails('float64', kv.tensor, { 1 }, 'float64')
  local cycle = {}
  cycle[1] = cycle
  check.fails('8 deep', kv.tensor, cycle)
  local row = {}
  for i = 1, 1000 do row[i] = 0 end
  local block = row
  for _ = 1, 6 do
    local outer = {}
    for i = 1, 1000 do outer[i] = block end
    block = outer
  end
  check.fails('too many elements', kv.tensor, block) -- 10^21 of them, in seven tables
  check.fails('number, table of numbers or Tensor', kv.tensor, nil)
end

function TestMake.test_constructors()
  eq(kv.zeros(2, 3), { { 0, 0, 0 }, { 0, 0, 0 } })
  eq(kv.zeros { 2 }, { 0, 0 })
  lu.assertEquals(kv.zeros(2, 'int32').dtype, 'int32')
  eq(kv.filled({ 2 }, -1.5), { -1.5, -1.5 })
  eq(kv.arange(4), { 0, 1, 2, 3 })
  eq(kv.arange(2, 5), { 2, 3, 4, 5 })
  eq(kv.arange(5, 1, -2), { 5, 3, 1 })
  eq(kv.arange(1, 0), {})
  eq(kv.arange(0, 1, 0.25), { 0, 0.25, 0.5, 0.75, 1 })
  lu.assertEquals({ kv.arange(3).dtype, kv.arange(0, 1, 0.5).dtype }, { 'int32', 'float32' })
  eq(kv.eye(2), { { 1, 0 }, { 0, 1 } })
  eq(kv.tril(2, 3), { { 1, 0, 0 }, { 1, 1, 0 } })
  eq(kv.tril(2, 3, 1), { { 1, 1, 0 }, { 1, 1, 1 } })
  check.fails({ '{1000000, 1000000}', 'GiB' }, kv.zeros, 1000000, 1000000)
  check.fails('too many elements', kv.zeros, math.maxinteger, 2)
  check.fails('0 or more', kv.zeros, -1)
  check.fails('more than 8 dimensions', kv.zeros, 1, 1, 1, 1, 1, 1, 1, 1, 1)
  check.fails('expected an integer', kv.zeros, 1.5)
  check.fails('expected an integer', kv.zeros, { 1, 'x' })
  check.fails('step', kv.arange, 1, 2, 0)
  check.fails('finite', kv.arange, 0 / 0)
  check.fails('too many', kv.arange, 1e300)
  check.fails('int32 cannot hold', kv.filled, { 1 }, 0.5, 'int32')
end

function TestMake.test_cat_and_stack()
  local a, b = kv.tensor { { 1, 2 } }, kv.tensor { { 3, 4 }, { 5, 6 } }
  eq(kv.cat({ a, b }), { { 1, 2 }, { 3, 4 }, { 5, 6 } })
  eq(kv.cat({ b, b }, -1), { { 3, 4, 3, 4 }, { 5, 6, 5, 6 } })
  eq(kv.stack({ kv.tensor { 1, 2 }, kv.tensor { 3, 4 } }), { { 1, 2 }, { 3, 4 } })
  eq(kv.stack({ kv.tensor { 1, 2 }, kv.tensor { 3, 4 } }, 2), { { 1, 3 }, { 2, 4 } })
  check.fails({ 'cat', '{2, 2}', '{1, 2}' }, kv.cat, { a, b }, 2)
  check.fails('expected a list', kv.cat, {})
  check.fails('element 2 is number', kv.cat, { a, 3 })
  local gone = kv.zeros(1, 2)
  gone:free()
  check.fails('freed tensor', kv.cat, { a, gone })
end

TestViews = {}

function TestViews.test_share_storage()
  local t = kv.arange(12):reshape(3, 4)
  local column = t:select(2, -1)
  eq(column, { 3, 7, 11 })
  column:fill_(0)
  lu.assertEquals(t:get(2, 4), 0)
  lu.assertTrue(column:shares(t))
  lu.assertFalse(column:is_contiguous())
  lu.assertFalse(column:contiguous():shares(t))
  eq(t:slice(1, 2), { { 4, 5, 6, 0 }, { 8, 9, 10, 0 } })
  eq(t:slice(2, 1, -1, 2), { { 0, 2 }, { 4, 6 }, { 8, 10 } })
  eq(t:slice(1, -1), { { 8, 9, 10, 0 } })
  lu.assertEquals(t:slice(1, 4).shape, { 0, 4 })
  lu.assertEquals(t:slice(1, 2, 1).shape, { 0, 4 })
  eq(t:transpose():select(1, 1), { 0, 4, 8 })
  lu.assertEquals(t:reshape(2, 3, 2):permute(3, 1, 2).shape, { 2, 2, 3 })
  lu.assertEquals(t:reshape { -1, 6 }.shape, { 2, 6 })
  lu.assertTrue(t:reshape(12):shares(t))
  lu.assertFalse(t:transpose():reshape(12):shares(t))
  lu.assertEquals(t:unsqueeze(1).shape, { 1, 3, 4 })
  lu.assertEquals(t:unsqueeze(-1).shape, { 3, 4, 1 })
  lu.assertEquals(t:unsqueeze(2):squeeze(2).shape, { 3, 4 })
  eq(kv.tensor { { 1 }, { 2 } }:expand(-1, 3), { { 1, 1, 1 }, { 2, 2, 2 } })
  lu.assertEquals(t:flatten().shape, { 12 })
  local view = t[1]
  t:free()
  eq(view, { 0, 1, 2, 0 }) -- the storage lives as long as a view
end

function TestViews.test_errors()
  local t = kv.zeros(3, 4)
  check.fails({ 'dimension 3', '1 .. 2' }, t.select, t, 3, 1)
  check.fails('dimension 0', t.select, t, 0, 1)
  check.fails({ 'index 5', '1 .. 4' }, t.select, t, 2, 5)
  check.fails('index 0', t.select, t, 1, 0)
  check.fails('first 5', t.slice, t, 1, 5)
  check.fails('last 9', t.slice, t, 1, 1, 9)
  check.fails('step', t.slice, t, 1, 1, 2, 0)
  check.fails('last 1', t.slice, t, 1, 3, 1)
  check.fails({ 'reshape', '{3, 4}', '{5}' }, t.reshape, t, 5)
  check.fails('{-1, -1}', t.reshape, t, -1, -1)
  check.fails('named twice', t.permute, t, 1, 1)
  check.fails('dimension 7', t.permute, t, 1, 7)
  check.fails({ 'expand', '{3, 4}', '{3, 5}' }, t.expand, t, 3, 5)
  check.fails('only 1 can be dropped', t.squeeze, t, 1)
  check.fails('repeats elements', t.expand(kv.zeros(1), 3).fill_, kv.zeros(1):expand(3), 1)
  check.fails('repeats elements', t.set, kv.zeros(1):expand(3), 1, 1)
  check.fails('no dimensions', function() return kv.tensor(1):select(1, 1) end)
end

TestElements = {}

function TestElements.test_get_and_set()
  local t = kv.zeros(2, 3)
  t:set(1, 2, 5):set(-1, -1, 7)
  eq(t, { { 0, 5, 0 }, { 0, 0, 7 } })
  t[1] = 1
  t[2] = kv.tensor { 1, 2, 3 }
  t[1][3] = 9
  eq(t, { { 1, 1, 9 }, { 1, 2, 3 } })
  t:transpose():copy_(kv.tensor { { 1, 2 }, { 3, 4 }, { 5, 6 } })
  eq(t, { { 1, 3, 5 }, { 2, 4, 6 } })
  local seen = {}
  for i, row in t:rows() do seen[i] = row:sum() end
  lu.assertEquals(seen, { 9, 12 })
  check.fails('1 indices for a tensor of 2', t.get, t, 1)
  check.fails({ 'index 3', '1 .. 2' }, t.get, t, 3, 1)
  check.fails('index', t.get, t, 0, 1)
  check.fails('integer', t.get, t, 1.5, 1)
  check.fails('number expected', t.get, t, {}, 1)
  check.fails('not one element', t.item, t)
  check.fails('int32', kv.arange(2).set, kv.arange(2), 1, 2 ^ 40)
  check.fails('{3} does not fit into shape {2}', t.copy_, kv.zeros(2), kv.zeros(3))
  check.fails("no field 'x'", function() t.x = 1 end)
  check.fails('index 4', function() return t[4] end)
  lu.assertNil(t.nothing)
  lu.assertNil(t[{}])
end

function TestElements.test_random_strides_read_right()
  for seed = 1, 50 do
    local t = kv.random { 3, 4, 5, seed = seed }
    local v = t:permute(3, 1, 2):slice(1, 1, -1, 2)
    local values = v:totable()
    for i = 1, 3 do
      for j = 1, 3 do
        for k = 1, 4 do
          if values[i][j][k] ~= t:get(j, k, 2 * i - 1) then lu.fail('seed ' .. seed) end
        end
      end
    end
    lu.assertTrue(kv.tensor(values):equal(v))
  end
end

function TestElements.test_equal()
  lu.assertTrue(kv.arange(3):equal(kv.tensor({ 0, 1, 2 }, 'int32')))
  lu.assertFalse(kv.arange(3):equal(kv.tensor { 0, 1, 2 })) -- another type
  lu.assertFalse(kv.zeros(2):equal(kv.zeros(2, 1)))
  lu.assertFalse(kv.tensor { 0 / 0 }:equal(kv.tensor { 0 / 0 }))
  local t = kv.zeros(1)
  lu.assertTrue(t == t)
  lu.assertFalse(t == kv.zeros(1)) -- == asks for the same object
end

TestPrint = {}

function TestPrint.test_forms()
  lu.assertEquals(tostring(kv.tensor { { 1, 2, 3 }, { 4, 50, 6 } }),
    'float32 {2, 3}\n{{ 1,  2,  3},\n { 4, 50,  6}}')
  lu.assertEquals(tostring(kv.tensor { 0.5, 1 }), 'float32 {2} {0.5, 1}')
  lu.assertEquals(tostring(kv.arange(3)), 'int32 {3} {0, 1, 2}')
  lu.assertEquals(tostring(kv.arange(100)), 'int32 {100} {0, 1, 2, ..., 97, 98, 99}')
  lu.assertEquals(tostring(kv.tensor(6)), 'float32 {} 6')
  lu.assertEquals(tostring(kv.tensor { 1 / 0, -1 / 0, 0 / 0 }), 'float32 {3} {inf, -inf, nan}')
  lu.assertStrContains(tostring(kv.zeros(0, 3)), 'no elements')
  local long = tostring(kv.zeros(20, 2))
  lu.assertStrContains(long, '...')
  local free = kv.zeros(1)
  free:free()
  lu.assertEquals(tostring(free), 'Tensor (freed)')
end

function TestPrint.test_never_long()
  for _, t in ipairs { kv.zeros(1000, 1000), kv.zeros(9, 9, 9, 9, 9, 9, 9, 1),
    kv.zeros(2, 2, 2, 2, 2, 2, 2, 2), kv.zeros(1):expand(2 ^ 40 // 1 | 0), kv.zeros(7, 7, 7) } do
    lu.assertTrue(#tostring(t) < 8000)
    local _, count = tostring(t):gsub('0[,}]', '')
    lu.assertTrue(count <= 256 + 8)
  end
end

TestLife = {}

function TestLife.test_free_and_close()
  collectgarbage()
  collectgarbage('stop') -- what other tests left must not go in the middle
  local before = core.base.live_bytes()
  local t = kv.zeros(1000)
  lu.assertTrue(core.base.live_bytes() > before)
  t:free()
  lu.assertEquals(core.base.live_bytes(), before)
  t:free()
  t:close()
  check.fails('freed', t.get, t, 1)
  check.fails('freed', function() return t + 1 end)
  check.fails('freed', function() return t.shape end)
  check.fails('freed', function() return #t end)
  check.fails('freed', function() t[1] = 2 end)
  do
    local u <close> = kv.zeros(1000)
    lu.assertEquals(#u, 1000)
  end
  collectgarbage('restart')
  collectgarbage()
  lu.assertEquals(core.base.live_bytes(), before)
end

-- Without telling the collector, 500 MiB would pile up: it sees 16 bytes an object.
function TestLife.test_temporaries_stay_small()
  for _, mode in ipairs { 'incremental', 'generational' } do
    local old = collectgarbage(mode)
    collectgarbage()
    local before, most = core.base.live_bytes(), 0
    local t = kv.zeros(512, 512)
    for _ = 1, 500 do
      t = t + 1
      most = math.max(most, core.base.live_bytes() - before)
    end
    lu.assertEquals(t:get(1, 1), 500)
    lu.assertTrue(most < 40 * 2 ^ 20, ('%s: %.1f MiB'):format(mode, most / 2 ^ 20))
    collectgarbage(old)
  end
  -- views are not new bytes: no collection is forced by taking many of them
  local big = kv.zeros(1024, 1024)
  local started = core.base.now()
  for _ = 1, 20000 do big:select(1, 1) end
  lu.assertTrue(core.base.now() - started < 5)
end

function TestLife.test_collector_stopped_stays_stopped()
  collectgarbage('stop')
  local dead = setmetatable({}, { __mode = 'k' })
  dead[{}] = true
  for _ = 1, 8 do kv.zeros(512, 512) end
  lu.assertNotNil(next(dead))
  lu.assertFalse(collectgarbage('isrunning'))
  collectgarbage('restart')
end

function TestLife.test_metatable_is_protected()
  local t = kv.zeros(1)
  lu.assertEquals(getmetatable(t), 'kvlab.Tensor')
  lu.assertFalse(pcall(setmetatable, t, {}))
end

-- A finalizer may free a tensor while a call is using it: an error or a result, never a crash.
function TestLife.test_finalizers_that_free()
  local mode = collectgarbage('incremental')
  local pause = collectgarbage('setpause', 0)
  local step = collectgarbage('setstepmul', 1000)
  for round = 1, 300 do
    local a, b = kv.random { 8, 8, seed = round }, kv.random { 8, 8, seed = -round }
    local function trap() return setmetatable({}, { __gc = function() a:free() b:free() end }) end
    for _ = 1, 3 do trap() end
    pcall(function()
      local _ = a + b
      _ = a:totable()
      _ = tostring(b)
      _ = a:topk(3)
      _ = kv.matmul(a, b)
      _ = a:select(1, 2)
      _ = a[1] + b[2]
      _ = kv.cat({ a, b })
      _ = kv.where(a, b, 1)
      _ = a.shape
      b:copy_(3)
      b[1] = 2
      _ = a:sum(1)
    end)
  end
  collectgarbage('setpause', pause)
  collectgarbage('setstepmul', step)
  collectgarbage(mode)
end

TestHostile = {}

-- Every function and method with arguments drawn from what nobody should pass.
function TestHostile.test_nonsense()
  local freed = kv.zeros(2)
  freed:free()
  local odd = {
    0, 1, -1, 2, 3, -7, 1.5, 0 / 0, 1 / 0, -1 / 0, 2 ^ 40 // 1 | 0, 2 ^ 53, math.maxinteger, math.mininteger,
    'x', '', '1', 'score', 'int32', true, false, {}, { 1 }, { { 1 } }, { -1, 2 },
    { math.maxinteger }, { 1, 2, 3, 4, 5, 6, 7, 8, 9 }, print, coroutine.create(print), io.stdout,
    kv.zeros(0), kv.zeros(3, 4), kv.zeros(2, 3, 4), kv.arange(3), kv.arange(12):reshape(3, 4),
    kv.tensor(1), kv.zeros(3, 4):transpose(), kv.zeros(1):expand(3), kv.tensor { 0 / 0, 1 / 0 },
    kv.tensor({ -1, 2147483647 }, 'int32'), kv.zeros(3, 0), freed, { kv.zeros(2), kv.zeros(2) },
  }
  odd[#odd + 1] = kv.zeros(1):expand(2 ^ 40 // 1 | 0) -- 10^12 elements that are one
  local huge = #odd
  local calls = {}
  local object = kv.zeros(3, 4)
  for _, part in ipairs { 'tensor', 'ops' } do
    for _, f in pairs(core[part]) do calls[#calls + 1] = f end
  end
  local names = { 'slice', 'select', 'transpose', 'permute', 'expand', 'reshape', 'flatten', 'squeeze', 'unsqueeze',
    'contiguous', 'clone', 'to', 'get', 'set', 'item', 'totable', 'equal', 'shares', 'rows', 'is_contiguous',
    'add', 'sub', 'mul', 'div', 'pow', 'minimum', 'maximum', 'eq', 'lt', 'neg', 'exp', 'relu', 'sum', 'mean', 'var',
    'max', 'min', 'argmax', 'argmin', 'any', 'all', 'softmax', 'log_softmax', 'logsumexp', 'cumsum', 'topk', 'gather',
    'scatter', 'scatter_add', 'index_select', 'matmul', 'fill_', 'copy_', 'add_', 'div_' }
  for _, name in ipairs(names) do
    lu.assertNotNil(object[name], name)
    calls[#calls + 1] = object[name]
  end
  local random = 12345
  local function draw(n)
    random = (random * 1103515245 + 12345) & 0x7fffffff
    return (random >> 8) % n + 1
  end
  local good = 0
  for _ = 1, 15000 do
    local f = calls[draw(#calls)]
    local a, b, c, d = odd[draw(#odd)], odd[draw(huge - 1)], odd[draw(huge - 1)], odd[draw(huge - 1)]
    if a == odd[huge] then b = odd[draw(huge - 1)] end
    if pcall(f, a, b, c, d) then good = good + 1 end
    pcall(f, a)
    pcall(f, a, b)
    if draw(50) == 1 then collectgarbage('step') end
  end
  lu.assertTrue(good > 100, tostring(good))
end

check.main()
