-- test_pool.lua: pools, tables and counters as scripts see them.
local lu = require 'luaunit'
local check = require 'check'
local kv = require 'kvlab'

-- 8 channels of bf16 (16 bytes an entry), 4 entries in a page of 100 bytes.
local record = kv.record {
  name = 'pool-test', fields = { { channels = 8, number = 'bf16' } }, page = { entries = 4, align = 100 },
}

-- Rows whose elements say which entry they are: row i (from 0) of a call with `first` is first + i everywhere.
local function rows(first, n)
  return kv.arange(first, first + n - 1):to('float32'):reshape(n, 1):expand(n, 8)
end

-- The entry numbers that the rows of a tensor were made with.
local function numbers(t)
  local out = {}
  for i, row in t:rows() do out[i] = math.tointeger(row:get(1)) end
  return out
end

TestTable = {}

function TestTable:test_lists_give_back_what_they_were_given()
  local table = kv.pool(record:plan()):table()
  lu.assertEquals(#table, 0)
  lu.assertEquals(table:rows().shape, { 0, 8 })
  table:append(rows(0, 3)):append(rows(3, 7):reshape(1, 7, 8))
  lu.assertEquals(table:count(), 10)
  lu.assertEquals(numbers(table:rows()), { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 })
  lu.assertEquals(numbers(table:rows(4, 5)), { 3, 4 })
  lu.assertEquals(table:rows(4, 3).shape, { 0, 8 })
  lu.assertEquals(#table:pages(), 3)
end

function TestTable:test_rows_may_be_any_view()
  local table = kv.pool(record:plan()):table()
  local wide = kv.random { 8, 20, seed = 1 }
  table:append(wide:transpose():slice(1, 3, 17, 2))
  lu.assertTrue(table:rows():equal(record:plan():roundtrip(wide:transpose():slice(1, 3, 17, 2))))
end

function TestTable:test_forks_share_until_written()
  local pool = kv.pool(record:plan())
  local a = pool:table():append(rows(0, 6))
  local b = a:fork()
  lu.assertEquals(pool:stats().used, 2)
  lu.assertEquals(pool:stats().shared, 2)
  lu.assertEquals(pool:references(a:pages()[1]), 2)
  b:append(rows(100, 1))
  lu.assertEquals(a:pages()[1], b:pages()[1])
  lu.assertNotEquals(a:pages()[2], b:pages()[2])
  a:append(rows(200, 3))
  lu.assertEquals(numbers(a:rows()), { 0, 1, 2, 3, 4, 5, 200, 201, 202 })
  lu.assertEquals(numbers(b:rows()), { 0, 1, 2, 3, 4, 5, 100 })
  local c = a:share(7)
  lu.assertEquals(numbers(c:rows()), { 0, 1, 2, 3, 4, 5, 200 })
  lu.assertEquals(c:pages()[1], a:pages()[1])
  lu.assertNotEquals(c:pages()[2], a:pages()[2])
  lu.assertEquals(pool:references(a:pages()[1]), 3)
  a:free()
  b:free()
  lu.assertEquals(pool:stats().used, 2)
  lu.assertEquals(pool:stats().shared, 0)
end

function TestTable:test_stats()
  local pool = kv.pool(record:plan(), 10)
  local a = pool:table():append(rows(0, 6))
  local b <close> = a:fork()
  lu.assertEquals(b:stats(), { entries = 6, pages = 2, stored_bytes = 96, rollback_bytes = 0,
    unused_bytes = 32, alignment_bytes = 72, allocated_bytes = 200 })
  lu.assertEquals(pool:stats(), { max_pages = 10, made = 2, used = 2, free = 0, shared = 2, page_bytes = 100,
    page_entries = 4, entry_bytes = 16, allocated_bytes = 200 })
end

function TestTable:test_rings_keep_the_newest()
  local ring = kv.pool(record:plan()):table(7, 5) -- a window of 5, rolls back by 2
  ring:append(rows(0, 3)):append(rows(3, 20))
  lu.assertEquals(#ring, 23)
  lu.assertEquals(ring:first(), 17)
  lu.assertEquals(numbers(ring:rows()), { 16, 17, 18, 19, 20, 21, 22 })
  lu.assertEquals(numbers(ring:rows(19, 20)), { 18, 19 })
  local stats = ring:stats()
  lu.assertEquals({ stats.ring, stats.window, stats.entries, stats.pages }, { 7, 5, 7, 2 })
  lu.assertEquals({ stats.stored_bytes, stats.rollback_bytes, stats.unused_bytes }, { 5 * 16, 2 * 16, 16 })
  check.fails({ '16 entries', 'expected 0 or 21 to 23', 'window of 5' },
    function() ring:truncate(16) end)
  check.fails('expected 0 or 21 to 23', function() ring:truncate(20) end)
  local fork = ring:fork()
  ring:truncate(21):append(rows(50, 2))
  lu.assertEquals(numbers(ring:rows()), { 16, 17, 18, 19, 20, 50, 51 })
  lu.assertEquals(numbers(fork:rows()), { 16, 17, 18, 19, 20, 21, 22 })
  lu.assertEquals(#ring:truncate(0), 0)
  lu.assertEquals(ring:stats().allocated_bytes, 0)
end

function TestTable:test_truncate_gives_pages_back()
  local pool = kv.pool(record:plan())
  local table = pool:table():append(rows(0, 10)):reserve(9)
  lu.assertEquals(pool:stats().used, 5)
  table:truncate(5)
  lu.assertEquals(pool:stats().used, 2)
  table:append(rows(90, 1))
  lu.assertEquals(numbers(table:rows()), { 0, 1, 2, 3, 4, 90 })
  check.fails('7 entries of a table of 6', table.truncate, table, 7)
end

function TestTable:test_out_of_pages_leaves_everything_as_it_was()
  local pool = kv.pool(record:plan(), 3)
  local a, b = pool:table():append(rows(0, 7)), pool:table()
  check.fails({ 'out of pages', '2 more are needed', '1 of 3 are free', '4 entries' }, b.append, b, rows(0, 5))
  lu.assertEquals({ #a, #b, pool:stats().used }, { 7, 0, 2 })
  local fork, fork2 = a:fork(), a:fork()
  fork:append(rows(70, 1)) -- copies the partial page
  check.fails('out of pages', fork2.reserve, fork2, 1)
  check.fails('out of pages', fork2.append, fork2, rows(80, 1))
  check.fails('out of pages', a.share, a, 5)
  lu.assertEquals(numbers(fork2:rows()), { 0, 1, 2, 3, 4, 5, 6 })
  lu.assertEquals(pool:stats().shared, 2)
end

function TestTable:test_unreachable_tables_do_not_use_pages_up()
  local pool = kv.pool(record:plan(), 2)
  for i = 1, 50 do
    lu.assertEquals(numbers(pool:table():append(rows(i, 5)):rows(5, 5)), { i + 4 })
  end
end

TestReading = {}

function TestReading:test_counts_what_it_decodes()
  local table, counters = kv.pool(record:plan()):table():append(rows(0, 10)), kv.counters()
  local ids = kv.tensor({ 9, 3, 3, 4, 0 }, 'int32')
  lu.assertEquals(numbers(table:read(ids, 'selected', counters)), { 9, 3, 3, 4, 0 })
  lu.assertEquals(numbers(table:read(2, 8, 'index', counters)), { 1, 2, 3, 4, 5, 6, 7 })
  table:rows()
  lu.assertEquals(counters:get(), { selected_rows = 5, selected_bytes = 80, window_rows = 0, window_bytes = 0,
    index_rows = 7, index_bytes = 112 })
  counters:reset()
  lu.assertEquals(counters:get().index_bytes, 0)
end

function TestReading:test_entries_of_rings_are_named_by_position()
  local ring, counters = kv.pool(record:plan()):table(7, 5):append(rows(0, 23)), kv.counters()
  lu.assertEquals(numbers(ring:read(18, 22, 'window', counters)), { 17, 18, 19, 20, 21 })
  lu.assertEquals(numbers(ring:read(kv.tensor({ 22, 16 }, 'int32'), 'window', counters)), { 22, 16 })
  lu.assertEquals(counters:get().window_rows, 7)
  check.fails('slot -1', ring.read, ring, kv.tensor({ 15 }, 'int32'), 'window', counters)
  check.fails('entries 17 to 23', ring.read, ring, 16, 18, 'window', counters)
  lu.assertEquals(counters:get().window_rows, 7)
end

-- A damaged byte reaches the rows that hold it, and those alone: counted rows are the rows that are decoded.
function TestReading:test_damage()
  local table = kv.pool(record:plan()):table():append(rows(0, 6))
  for entry = 1, 6 do
    for byte = 1, 16 do
      table:poke(entry, byte, 0x41)
      local changed = table:rows():ne(rows(0, 6)):any(2)
      for i = 1, 6 do lu.assertEquals(changed:get(i), i == entry and 1 or 0) end
      table:poke(entry, byte, 0x41)
    end
  end
  lu.assertTrue(table:rows():equal(rows(0, 6)))
  local before = table:bytes(2)
  lu.assertEquals(#before, 16)
  table:poke(2, 3, 0x80)
  lu.assertEquals(table:bytes(2):byte(3), before:byte(3) ~ 0x80)
end

function TestReading:test_bytes_are_those_of_the_record()
  local x = kv.random { 3, 512, seed = 7 }
  local deployed = kv.record_named('v4.1-main'):plan()
  local table = kv.pool(deployed):table():append(x)
  for i = 1, 3 do
    local data, scale = deployed:encode(x[i]:totable())
    lu.assertEquals(table:bytes(i), data .. scale)
    lu.assertEquals(table:rows(i, i)[1]:totable(), deployed:decode(data, scale))
  end
  lu.assertTrue(deployed:roundtrip(x):equal(table:rows()))
  lu.assertEquals(deployed:roundtrip(x:reshape(1, 3, 1, 512)).shape, { 1, 3, 1, 512 })
  check.fails({ 'float32 {3, 511}', '{..., 512}' }, deployed.roundtrip, deployed, x:slice(2, 1, 511))
end

TestHostile = {}

function TestHostile:test_arguments()
  local pool = kv.pool(record:plan())
  local table, counters = pool:table():append(rows(0, 5)), kv.counters()
  local ids = kv.tensor({ 0 }, 'int32')
  check.fails('Plan', kv.pool, {})
  check.fails('at least 1 page', kv.pool, record:plan(), 0)
  check.fails('at least 1 page', kv.pool, record:plan(), -5)
  check.fails('expected 1 to', kv.pool, record:plan(), math.maxinteger)
  check.fails('at least 1 slot', pool.table, pool, 0)
  check.fails('a window of 5 in a ring of 4', pool.table, pool, 4, 5)
  check.fails('expected 1 to', pool.table, pool, math.maxinteger)
  check.fails({ 'float32 {2, 7}', '{n, 8}' }, table.append, table, kv.zeros(2, 7))
  check.fails('{2, 1, 8}', table.append, table, kv.zeros(2, 1, 8))
  check.fails('int32 {1, 8}', table.append, table, kv.zeros(1, 8, 'int32'))
  check.fails('Tensor', table.append, table, { 1, 2 })
  check.fails('entries 0 to 2', table.rows, table, 0, 2)
  check.fails('entries 1 to 6', table.rows, table, 1, 6)
  check.fails('entries 4 to 2', table.rows, table, 4, 2)
  check.fails('entries', table.rows, table, math.mininteger, math.maxinteger)
  check.fails('entries', table.rows, table, 1, math.mininteger)
  check.fails('entry 6 is not held', table.bytes, table, 6)
  check.fails('entry 0 is not held', table.bytes, table, 0)
  check.fails('entry', table.bytes, table, math.mininteger)
  check.fails('1 to 16', table.poke, table, 1, 17, 1)
  check.fails('1 to 16', table.poke, table, 1, 0, 1)
  check.fails('0 to 255', table.poke, table, 1, 1, 256)
  check.fails('0 or more', table.reserve, table, -1)
  check.fails('at most', table.reserve, table, math.maxinteger)
  check.fails('expected 0 to 5', table.truncate, table, -1)
  check.fails('expected 0 to 5', table.truncate, table, math.mininteger)
  check.fails('expected 0 to 5', table.share, table, 6)
  check.fails('invalid option', table.read, table, ids, 'some', counters)
  check.fails('Counters', table.read, table, ids, 'index')
  check.fails('int32', table.read, table, kv.zeros(2), 'index', counters)
  check.fails('row 5', table.read, table, kv.tensor({ 0, 5 }, 'int32'), 'index', counters)
  check.fails('row -1', table.read, table, kv.tensor({ -1 }, 'int32'), 'index', counters)
  check.fails('none of the 2 pages', pool.references, pool, 3)
  lu.assertEquals(numbers(table:rows()), { 0, 1, 2, 3, 4 })
end

function TestHostile:test_huge_reserve_is_refused_at_once()
  local wide = kv.record { name = 'pool-wide', fields = { { channels = 1 << 20, number = 'f32' } } }:plan()
  local table = kv.pool(wide):table()
  check.fails('do not fit', table.reserve, table, 1 << 30)
  lu.assertEquals(table:stats().allocated_bytes, 0)
end

function TestHostile:test_use_after_free()
  local pool = kv.pool(record:plan())
  local table = pool:table():append(rows(0, 3))
  pool:free()
  pool:close()
  check.fails('the pool was freed', pool.table, pool)
  check.fails('the pool was freed', pool.stats, pool)
  lu.assertEquals(tostring(pool), 'kvlab.Pool (freed)')
  table:append(rows(3, 9)) -- a table keeps its pool
  lu.assertEquals(#table, 12)
  table:free()
  table:free()
  for _, method in ipairs { 'append', 'fork', 'count', 'rows', 'stats', 'pages', 'first' } do
    check.fails('the table was freed', table[method], table, rows(0, 1))
  end
  check.fails('the table was freed', table.share, table, 0)
  check.fails('the table was freed', function() return #table end)
  lu.assertEquals(tostring(table), 'kvlab.Table (freed)')
  local gone = rows(0, 1):clone()
  gone:free()
  check.fails('the tensor was freed', function() kv.pool(record:plan()):table():append(gone) end)
end

function TestHostile:test_metatables_are_out_of_reach()
  for _, object in ipairs { kv.pool(record:plan()), kv.pool(record:plan()):table(), kv.counters() } do
    lu.assertEquals(type(getmetatable(object)), 'string')
    lu.assertFalse(pcall(setmetatable, object, {}))
  end
  check.fails('Table', kv.pool(record:plan()):table().append, kv.pool(record:plan()), rows(0, 1))
end

function TestHostile:test_tostring()
  local pool = kv.pool(record:plan())
  local table, ring = pool:table():append(rows(0, 5)), pool:table(6)
  lu.assertEquals(tostring(pool), 'kvlab.Pool: 2 pages of 100 bytes used, 0 shared')
  lu.assertEquals(tostring(table), 'kvlab.Table: 5 entries in 2 pages')
  lu.assertEquals(tostring(ring), 'kvlab.Table: 0 entries in 0 pages, a ring of 6 slots')
  lu.assertEquals(tostring(kv.counters()), 'kvlab.Counters: bytes read: 0 selected, 0 window, 0 index')
end

-- Pages are outside Lua: without telling the collector, tables that nobody reaches would pile up.
function TestHostile:test_the_collector_is_told()
  local wide = kv.record { name = 'pool-wide-2', fields = { { channels = 1 << 16, number = 'f32' } },
    page = { entries = 1 } }:plan()
  local row, most = kv.zeros(1, 1 << 16), 0
  for _ = 1, 400 do -- 256 KiB each
    kv.pool(wide):table():append(row)
    most = math.max(most, require('kvlab.core').base.live_bytes())
  end
  lu.assertTrue(most < 48 << 20, ('%.0f MiB at the most'):format(most / (1 << 20)))
end

check.main()
