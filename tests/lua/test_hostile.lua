-- test_hostile.lua: what no sensible caller does. Nothing here may end the process, read beyond a storage or leak
-- (the suite also runs under AddressSanitizer); each is an error or does what it says. Found by scripts/fuzz and by
-- reading; the fuzzer looks for more of the kind.
local lu = require 'luaunit'
local check = require 'check'
local core = require 'kvlab.core'
local kv = require 'kvlab'

local record = kv.record { name = 'hostile', fields = { { channels = 8, number = 'bf16' } }, page = { entries = 4, align = 1 } }

-- Runs f while every allocation may run a finalizer that calls `act`.
local function with_finalizers(act, f)
  local on = true
  local function poison()
    setmetatable({}, { __gc = function()
      if not on then return end
      pcall(act)
      poison()
    end })
  end
  local mode = collectgarbage('incremental', 10, 1000, 10)
  collectgarbage() -- forgets what the mode before wanted to wait for
  poison()
  local ok, message = pcall(f)
  on = false
  collectgarbage('incremental', 200, 100, 13)
  if mode == 'generational' then collectgarbage('generational') end
  collectgarbage()
  return ok, message
end

-- Asserts that f works until a finalizer has freed the object, and then says so.
local function survives(make, f)
  local freed = 0
  for _ = 1, 8 do
    local object, calls = make(), 0
    local ok, message = with_finalizers(function()
      if calls > 2 then object:free() end
    end, function()
      for _ = 1, 20000 do
        calls = calls + 1
        f(object)
      end
    end)
    if not ok then
      freed = freed + 1
      lu.assertStrMatches(tostring(message), '.*freed.*')
    end
    pcall(function() object:free() end)
  end
  lu.assertTrue(freed > 0, 'no finalizer ran in the middle of a call')
end

TestFinalizers = {}

function TestFinalizers:test_a_compressor_freed_in_the_middle_of_a_push()
  local turned = kv.random { 2, 4, 3, seed = 1 }:transpose() -- it has to be copied, which allocates
  survives(function() return kv.compressor { ratio = 2, width = 4, batch = 2 } end,
    function(c) c:push(turned, turned) end)
  survives(function() return kv.compressor { ratio = 2, width = 4, batch = 2 } end, function(c) c:copy() end)
end

function TestFinalizers:test_a_tensor_freed_in_the_middle_of_a_kernel()
  survives(function() return kv.random { 3, 4, seed = 1 } end, function(t) return t + 1, t:softmax(), t:totable() end)
  survives(function() return kv.random { 1, 2, 2, 4, seed = 1 } end, function(t)
    return kv.attend { q = t, sources = { { key_rows = t, value_rows = t:transpose(2, 3):clone():transpose(2, 3) } } }
  end)
end

function TestFinalizers:test_a_table_freed_in_the_middle_of_a_read()
  local counters, q = kv.counters(), kv.random { 1, 1, 2, 8, seed = 1 }
  survives(function() return kv.pool(record:plan()):table():append(kv.random { 9, 8, seed = 2 }) end, function(t)
    return kv.attend { q = q, pos0 = 8, sources = { { table = t, kind = 'selected', counters = counters,
      key = { 1, 8 }, value = { 1, 8 } } } }
  end)
end

function TestFinalizers:test_a_file_closed_while_a_number_becomes_its_name()
  local path = os.tmpname()
  kv.safetensors.save(path, { ['1234567'] = kv.random { 2, seed = 1 } })
  for _, method in ipairs { 'has', 'info', 'load' } do
    local closed = false
    for _ = 1, 3 do
      local file = kv.safetensors.open(path)
      local ok, message = with_finalizers(function() file:close() end, function()
        for i = 1, 50000 do file[method](file, method == 'has' and i + 0.5 or 1234567) end
      end)
      if not ok then
        closed = true
        lu.assertStrContains(tostring(message), 'the file was closed')
      end
      file:close()
    end
    lu.assertTrue(closed, method)
  end
  os.remove(path)
end

function TestFinalizers:test_tables_of_a_source_cannot_be_swapped_by_a_metamethod()
  local counters, t = kv.counters(), kv.pool(record:plan()):table():append(kv.random { 9, 8, seed = 2 })
  local other, asked = kv.random { 9, 8, seed = 3 }, 0
  local source = setmetatable({}, { __index = function(_, key)
    asked = asked + 1
    if key == 'table' then return t end
    if key == 'kind' then t:truncate(2) return 'selected' end -- shorter than when it was looked at
    if key == 'counters' then return counters end
    if key == 'key' or key == 'value' then return { 1, 8 } end
    return nil
  end })
  local out = core.attend.attend(kv.random { 1, 1, 1, 8, seed = 1 }, { source }, nil, 1.0, 8, 0, false)
  lu.assertEquals(out.shape, { 1, 1, 1, 8 })
  lu.assertTrue(asked > 5)
  other:free()
end

-- --- views that kernels cannot take as they are -----------------------------------------------------

TestViews = {}

function TestViews:test_int32_where_float32_is_read()
  local q, ints = kv.random { 1, 2, 1, 8, seed = 1 }, kv.zeros(1, 8, 4, 'int32'):transpose()
  local function source(fields)
    fields.see = 'all'
    return { q = q, sources = { fields } }
  end
  check.fails({ 'rows', 'float32', 'int32' }, kv.attend, source { rows = ints, key = { 1, 8 }, value = { 1, 8 } })
  local heads = ints:reshape(1, 4, 1, 8)
  check.fails({ 'key_rows', 'float32', 'int32' }, kv.attend, source { key_rows = heads, value_rows = kv.zeros(1, 4, 1, 8) })
  check.fails({ 'value_rows', 'float32' }, kv.attend, source { key_rows = kv.zeros(1, 4, 1, 8), value_rows = heads })
  check.fails({ 'float32', 'int32' }, kv.attend, { q = ints:reshape(1, 4, 1, 8), sources = {}, value_width = 8 })
  check.fails({ 'rows', 'float32' }, kv.index, { q = q, w = kv.zeros(1, 2, 1), keys = { rows = ints }, k = 1 })
  check.fails({ 'pool', 'int32', 'float32' }, kv.index, { q = q, w = kv.zeros(1, 2, 1), keys = { rows = kv.zeros(1, 4, 8) },
    k = 1, pool = kv.zeros(1, 2, 3) })
  check.fails({ 'list', 'int32', 'float32' }, kv.attend, { q = q, sources = { { rows = kv.zeros(1, 4, 8), key = { 1, 8 },
    value = { 1, 8 }, see = 'list', list = kv.zeros(1, 2, 3) } } })
end

-- Rows that all are the same row, and views with gaps: the result of the copy, or an error; never a print of BLAS.
function TestViews:test_expanded_and_transposed_rows()
  local q = kv.random { 1, 16, 1, 8, seed = 1 }
  local function attend(rows)
    return kv.attend { q = q, pos0 = 20, sources = { { rows = rows, key = { 1, 8 }, value = { 1, 8 } } } }
  end
  local wide = kv.random { 1, 8, 20, seed = 2 }:transpose()
  lu.assertTrue(attend(wide):equal(attend(wide:clone())))
  local gaps = kv.random { 1, 20, 16, seed = 2 }:slice(3, 1, -1, 2)
  lu.assertTrue(attend(gaps):equal(attend(gaps:clone())))
  local same = kv.random { 1, 1, 8, seed = 3 }:expand(1, 20, 8)
  local ok, out = pcall(attend, same)
  lu.assertTrue(not ok and tostring(out):find('apart') ~= nil or ok and out:equal(attend(same:clone())))
  local repeated = kv.random { 1, 20, 1, seed = 4 }:expand(1, 20, 8)
  lu.assertTrue(attend(repeated):equal(attend(repeated:clone())))
  local x = kv.random { 1, 8, seed = 5 }:expand(16, 8)
  lu.assertTrue(x:matmul(x:transpose()):equal(x:clone():matmul(x:clone():transpose())))
  lu.assertTrue(kv.rms_norm(x):equal(kv.rms_norm(x:clone())))
  local keys = kv.random { 1, 1, 8, seed = 3 }:expand(1, 5, 8)
  ok = pcall(kv.index, { q = q, w = kv.zeros(1, 16, 1), keys = { rows = keys }, k = 2 })
  lu.assertTrue(ok == true or ok == false)
end

function TestViews:test_writing_through_repeated_elements()
  local t = kv.zeros(1, 3):expand(4, 3)
  check.fails('expand', t.set, t, 1, 1, 5)
  check.fails('expand', t.fill_, t, 1)
  check.fails('expand', t.copy_, t, 1)
  check.fails('expand', t.add_, t, 1)
end

function TestViews:test_more_tables_than_elements()
  check.fails('too large', function() return kv.zeros(1000000, 1000000, 0):totable() end)
  check.fails('too large', function() return kv.zeros(1):expand(1 << 40):totable() end)
  check.fails('too large', function() return kv.zeros(0, 1):expand(0, 1 << 40):transpose():totable() end)
  lu.assertEquals(kv.zeros(2, 0, 1 << 40):totable(), { {}, {} })
  lu.assertEquals(kv.zeros(0, 1 << 40):totable(), {})
end

-- --- sizes ------------------------------------------------------------------------------------------

TestSizes = {}

local huge = { 1 << 31, 1 << 40, 1000000000000, 1 << 60, math.maxinteger, math.mininteger, -1 }

function TestSizes:test_huge_and_negative_sizes_are_refused()
  local w, q = kv.zeros(1, 1, 1), kv.zeros(1, 1, 1, 8)
  for _, n in ipairs(huge) do
    check.fails('', kv.zeros, n, n)
    check.fails('', kv.eye, n)
    check.fails('', kv.compressor, { ratio = n, width = n })
    check.fails('', kv.compressor, { ratio = 2, width = n, overlap = true })
    check.fails('', kv.compressor, { ratio = 2, width = 4, rollback = n })
    check.fails('', kv.compressor, { ratio = 2, width = 4, batch = n })
    check.fails('', kv.compressor, { ratio = n, width = n, bias = kv.zeros(2, 4) })
    check.fails('', kv.attend, { q = q, sources = {}, value_width = n })
    check.fails('', kv.attend, { q = q, sources = { { rows = kv.zeros(1, 2, 8), key = { 1, n }, value = { 1, 8 } } } })
    check.fails('', kv.attend, { q = q, sources = { { rows = kv.zeros(1, 2, 8), key = { 1, 8 }, value = { 1, 8 }, kv_heads = n } } })
    check.fails('', kv.rope_freqs, { channels = n })
    check.fails('', function() kv.pool(record:plan()):table(n, n) end)
    check.fails('', function() kv.pool(record:plan()):table():reserve(n) end)
    check.fails('', function() kv.index { q = q, w = w, keys = { rows = kv.zeros(1, 2, 8) }, build = { block = n, blocks = n } } end)
    check.fails('', core.record.compile, { { channels = n, number = 'bf16' } }, 1, 1, 'x')
    check.fails('', core.record.compile, { { channels = 8, number = 'bf16', pad = n } }, 1, 1, 'x')
    check.fails('', core.record.compile, { { channels = 8, number = 'bf16' } }, n, 1, 'x')
  end
end

function TestSizes:test_positions_beyond_all_counting()
  local x, freqs = kv.zeros(1, 4096, 2), kv.rope_freqs { channels = 2 }
  lu.assertEquals(kv.rope(x, freqs, { pos0 = 1 << 50, stride = 1 << 40 }).shape, { 1, 4096, 2 })
  check.fails('position', kv.rope, x, freqs, { pos0 = math.maxinteger })
  check.fails('stride', kv.rope, x, freqs, { stride = math.maxinteger })
  check.fails('apart', kv.rope, kv.zeros(1 << 24, 2):unsqueeze(1), freqs, { pos0 = 1 << 50, stride = 1 << 40 })
  local q = kv.zeros(1, 2, 1, 8)
  local far = kv.attend { q = q, pos0 = 1 << 50, sources = { { rows = kv.zeros(1, 3, 8), key = { 1, 8 }, value = { 1, 8 },
    pos0 = 1 << 60 } } }
  lu.assertEquals(far:sum(), 0.0) -- nothing is visible yet
  check.fails('pos0', kv.attend, { q = q, sources = { { rows = kv.zeros(1, 3, 8), key = { 1, 8 }, value = { 1, 8 },
    pos0 = math.maxinteger } } })
end

function TestSizes:test_no_entries_and_no_k()
  local q, w = kv.random { 1, 2, 2, 4, seed = 1 }, kv.random { 1, 2, 2, seed = 2 }
  local found = kv.index { q = q, w = w, keys = { rows = kv.zeros(1, 0, 4) }, k = 5, scores = true, build = { block = 2, blocks = 3 } }
  lu.assertNil(found.top)
  lu.assertEquals(found.pool:max(), -1)
  lu.assertEquals(kv.index { q = q, w = w, keys = { rows = kv.zeros(1, 3, 4) }, k = 0 }, {})
  local out = kv.attend { q = q, sources = { { rows = kv.zeros(1, 0, 4), key = { 1, 4 }, value = { 1, 4 } },
    { rows = kv.zeros(1, 3, 4), key = { 1, 4 }, value = { 1, 4 }, see = 'list', list = kv.zeros(1, 2, 0, 'int32') } } }
  lu.assertEquals(out:sum(), 0.0)
end

function TestSizes:test_ids_out_of_range()
  local q = kv.zeros(1, 1, 1, 4)
  for _, id in ipairs { -2, 3, (1 << 31) - 1, -(1 << 31) } do
    local list = kv.filled({ 1, 1, 1 }, id, 'int32')
    check.fails({ 'list', tostring(id) }, kv.attend, { q = q, sources = { { rows = kv.zeros(1, 3, 4), key = { 1, 4 },
      value = { 1, 4 }, see = 'list', list = list } } })
    check.fails({ 'pool', tostring(id) }, kv.index, { q = q, w = kv.zeros(1, 1, 1), keys = { rows = kv.zeros(1, 3, 4) },
      pos0 = 9, k = 1, pool = list })
    local t = kv.pool(record:plan()):table():append(kv.zeros(3, 8))
    check.fails('', t.read, t, list:flatten(), 'selected', kv.counters())
    check.fails('', kv.embedding, kv.zeros(3, 4), list)
  end
end

function TestSizes:test_numbers_that_are_none()
  local q = kv.random { 1, 3, 1, 4, seed = 1 }
  for _, scale in ipairs { 0 / 0, 1 / 0, -1 / 0, 1e308, 0.0 } do
    local out = kv.attend { q = q, scale = scale, sources = { { rows = kv.random { 1, 3, 4, seed = 2 }, key = { 1, 4 }, value = { 1, 4 } } } }
    lu.assertEquals(out.shape, { 1, 3, 1, 4 })
  end
  lu.assertEquals(kv.filled({ 5 }, 0 / 0):topk(2):totable(), { -1, -1 })
  check.fails('', kv.rope_freqs, { channels = 8, theta = 0 / 0 })
  check.fails('', kv.rope_freqs, { channels = 8, yarn = { factor = 0 / 0, context = -1 } })
  check.fails('', kv.arange, 0 / 0)
  check.fails('', kv.arange, 0, 1 / 0)
end

-- --- lives ------------------------------------------------------------------------------------------

TestLives = {}

function TestLives:test_the_bias_of_a_compressor_may_be_freed()
  local bias, rows = kv.random { 2, 4, seed = 1 }, kv.random { 1, 4, 4, seed = 2 }
  local a = kv.compressor { ratio = 2, width = 4, bias = bias }
  local b = kv.compressor { ratio = 2, width = 4, bias = bias:clone() }
  bias:free()
  local copy = a:copy()
  a:free()
  lu.assertTrue(copy:push(rows):equal(b:push(rows)))
  check.fails('freed', a.push, a, rows)
  check.fails('freed', a.copy, a)
end

-- f() with 0, 1, 2, ... allocations of the core allowed: every refusal is an error, gives back what was taken and
-- leaves `state()` as it was. (A pool may keep a page that it made: grows.)
local function sweep(what, f, state, grows)
  local before = state and state()
  for n = 0, 200 do
    collectgarbage() collectgarbage()
    local live = core.base.live_bytes()
    core.base.fail_after(n)
    local ok, message = pcall(f)
    core.base.fail_after(-1)
    if ok then
      lu.assertTrue(n > 0, what .. ' takes no memory')
      return
    end
    message = tostring(message)
    lu.assertNotStrContains(message, 'nil value')
    collectgarbage() collectgarbage()
    if not grows then lu.assertEquals(core.base.live_bytes(), live, ('%s, allocation %d: %s'):format(what, n, message)) end
    if state then lu.assertEquals(state(), before, what) end
  end
  lu.fail(what .. ' never succeeded')
end

function TestLives:test_every_refused_allocation()
  local x, q = kv.random { 2, 3, 4, seed = 1 }, kv.random { 2, 3, 2, 4, seed = 2 }
  local turned, ids = kv.random { 2, 4, 3, seed = 1 }:transpose(), kv.zeros(2, 3, 2, 'int32')
  local turned_ids = kv.zeros(2, 2, 3, 'int32'):transpose()
  local plan, path = record:plan(), os.tmpname()
  local pool = kv.pool(plan)
  local t = pool:table():append(kv.random { 6, 8, seed = 3 })
  local fork, counters = t:fork(), kv.counters()
  local function source(fields)
    fields.key, fields.value = { 1, 4 }, { 1, 4 }
    return fields
  end
  kv.safetensors.save(path, { x = x })
  local file = kv.safetensors.open(path)
  sweep('tensor', function() return kv.zeros(2, 2) end)
  sweep('from a table', function() return kv.tensor { { 1, 2 }, { 3, 4 } } end)
  sweep('cat', function() return kv.cat({ x, turned }, 2) end)
  sweep('views', function() return x:unsqueeze(1):transpose():slice(1, 1, 1), turned:reshape(24), x[1] end)
  sweep('arithmetic', function() return x + 1, turned * turned, x:softmax(1), x:topk(2), x:var(2), x:sum() end)
  sweep('in place', function() x:add_(turned):sub_(turned) end)
  sweep('by ids', function() return x:index_select(2, ids:select(1, 1):select(2, 1)), kv.embedding(x[1], turned_ids) end)
  sweep('matmul', function() return x:matmul(turned:transpose()), q[1][1]:matmul(q[2][1]:transpose()) end)
  sweep('norms', function() return kv.rms_norm(turned, kv.zeros(4)), kv.layer_norm(x), kv.hadamard(turned) end)
  sweep('rope', function() return kv.rope(turned, kv.rope_freqs { channels = 4 }) end)
  sweep('attend', function()
    return kv.attend { q = q, lse = true, sources = { source { rows = turned }, source { rows = x, see = 'list', list = turned_ids } } }
  end)
  sweep('attend to a table', function()
    return kv.attend { q = kv.zeros(1, 2, 1, 8), pos0 = 4, sources = { { table = t, kind = 'selected', counters = counters, key = { 1, 8 },
      value = { 1, 8 } } } }
  end, function() return counters:get().window_rows end)
  sweep('index', function() return kv.index { q = q, w = kv.zeros(2, 3, 2), keys = { rows = turned }, k = 2, scores = true,
    build = { block = 2, blocks = 2 } } end)
  sweep('record', function() return kv.record { name = 'r', fields = { { channels = 4, number = 'bf16' } } }:plan():roundtrip(turned) end)
  sweep('pool', function() return kv.pool(plan):table(4, 2):append(kv.zeros(9, 8)) end)
  sweep('append', function() fork:append(kv.zeros(300, 8)) end, function() return { fork:count(), t:count(), pool:stats().used } end,
    'grows')
  sweep('fork', function() return t:fork(), t:share(5) end, function() return t:stats() end)
  sweep('read', function() return t:rows(), t:read(1, 3, 'window', counters), t:read(ids:select(1, 1):select(2, 1), 'index', counters) end)
  local c = kv.compressor { ratio = 2, width = 4, batch = 2, bias = turned[1]:slice(1, 1, 2), overlap = false, rollback = 3 }
  sweep('compressor', function() return kv.compressor { ratio = 2, width = 4, batch = 2, bias = x[1]:slice(1, 1, 2) } end)
  sweep('push', function() return c:push(turned, turned) end, function() return c:position() end)
  sweep('copy', function() return c:copy() end, function() return c:position() end)
  sweep('open', function() return kv.safetensors.open(path) end)
  sweep('load', function() return file:load('x') end)
  sweep('compare', function() return file:compare('x', turned) end)
  sweep('save', function() kv.safetensors.save(path, { x = turned }) end, function() return file:info('x') end)
  os.remove(path)
end

-- Cancelled in the middle of a batch, all sequences of it stay where they were: otherwise a later push would
-- write more entries than there is room for.
function TestLives:test_a_batch_stays_in_step()
  local c = kv.compressor { ratio = 4, width = 8, batch = 3 }
  local rows = kv.random { 3, 7, 8, seed = 1 }
  c:push(rows:slice(2, 1, 3))
  lu.assertEquals(c:position(), 3)
  check.fails('', c.push, c, kv.zeros(3, 2, 9))
  check.fails('', c.push, c, kv.zeros(2, 2, 8))
  check.fails('', c.rollback, c, 1)
  lu.assertEquals(c:position(), 3)
  lu.assertEquals(c:push(rows:slice(2, 4, 7)).shape, { 3, 1, 8 })
end

function TestLives:test_everything_says_that_it_was_freed()
  local pool = kv.pool(record:plan())
  local t, x, c = pool:table(), kv.zeros(1, 1, 1, 8), kv.compressor { ratio = 2, width = 4 }
  pool:free()
  lu.assertEquals(t:append(kv.zeros(2, 8)):count(), 2) -- a table keeps its pool
  for _, object in ipairs { t, x, c } do object:free() object:free() end
  check.fails('freed', pool.table, pool)
  check.fails('freed', t.count, t)
  check.fails('freed', function() return #t end)
  check.fails('freed', x.sum, x)
  check.fails('freed', c.position, c)
  check.fails('freed', kv.attend, { q = x, sources = {}, value_width = 8 })
  check.fails('freed', kv.attend, { q = kv.zeros(1, 1, 1, 8), sources = { { table = t, kind = 'selected', counters = kv.counters(),
    key = { 1, 8 }, value = { 1, 8 } } } })
  check.fails('freed', kv.attend, { q = kv.zeros(1, 1, 1, 8), sources = { { rows = x, key = { 1, 8 }, value = { 1, 8 } } } })
end

function TestLives:test_nobody_reaches_the_finalizers()
  local objects = { kv.zeros(1), kv.pool(record:plan()), kv.pool(record:plan()):table(), kv.counters(), record:plan(),
    kv.compressor { ratio = 2, width = 4 }, kv.rope_freqs { channels = 4 } }
  for _, object in ipairs(objects) do
    lu.assertNotEquals(type(getmetatable(object)), 'table')
    check.fails('', setmetatable, object, {})
  end
  for _, object in ipairs(objects) do
    for _, other in ipairs(objects) do
      for _, method in ipairs { 'free', 'close', 'count', 'push', 'append', 'sum', 'get', 'encode' } do
        local ok, f = pcall(function() return object[method] end)
        if ok and type(f) == 'function' and type(object) == type(other) and other ~= object and method ~= 'get' then
          local same, got = pcall(f, other)
          if same then lu.assertEquals(tostring(other):match('^[%w.]+'), tostring(object):match('^[%w.]+'), tostring(got)) end
        end
      end
    end
  end
end

check.main()
