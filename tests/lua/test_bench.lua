-- kvlab bench: that it runs and what it prints. How fast anything is, is not a test.
local lu = require 'luaunit'
local check = require 'check'
local core = require 'kvlab.core'
local kv = require 'kvlab'

local function kvlab(words) return check.sh('scripts/kvlab ' .. words .. ' </dev/null') end

TestBench = {}

-- One tiny bench with two numbers of threads: the fields, and that they agree.
function TestBench:test_json()
  local code, out, err = kvlab 'bench record-decode/bf16 --seconds 0.01 --threads 1,2 --json'
  lu.assertEquals(code, 0, err)
  local result = kv.json.decode(out)
  lu.assertEquals(#result.benches, 2)
  for i, row in ipairs(result.benches) do
    lu.assertEquals(row.name, 'record-decode/bf16')
    lu.assertEquals(row.threads, i)
    lu.assertEquals(row.unit, 'GB/s')
    lu.assertEquals(row.target, 0.3)
    for _, key in ipairs { 'value', 'limit', 'ratio', 'spread', 'cpu' } do
      lu.assertTrue(type(row[key]) == 'number' and row[key] > 0, key)
    end
    lu.assertAlmostEquals(row.value / row.limit, row.ratio, row.ratio * 1e-9)
    lu.assertTrue(row.spread >= 1)
  end
end

function TestBench:test_text_and_status()
  local code, out, err = kvlab 'bench record-encode/f32 --seconds 0.01 --threads 1'
  lu.assertEquals(code, 0, err)
  lu.assertStrContains(out, 'record-encode/f32')
  lu.assertTrue(out:find('ok', 1, true) ~= nil or out:find('under target', 1, true) ~= nil, out)
  lu.assertTrue(out:find('%d of 1 under target') ~= nil, out)
end

-- Every bench of the list has a name of its own; each record is decoded and encoded.
function TestBench:test_list()
  local code, out = kvlab 'bench --list'
  lu.assertEquals(code, 0)
  local seen = {}
  for line in out:gmatch('[^\n]+') do
    local name = line:match('^(%S+)')
    lu.assertNil(seen[name], name)
    seen[name] = true
  end
  for _, name in ipairs { 'matmul/512', 'v4.1-decode', 'index', 'mla-decode', 'causal', 'batch', 'train/csa', 'lua',
    'two-runs' } do
    lu.assertTrue(seen[name], name)
  end
  for _, name in ipairs(kv.records()) do
    lu.assertTrue(seen['record-decode/' .. name] and seen['record-encode/' .. name], name)
  end
end

function TestBench:test_bad_usage()
  for words, part in pairs { ['bench matmull'] = "did you mean 'matmul'", ['bench a b'] = 'one name',
    ['bench index --threads 0'] = '--threads', ['bench index --threads 300'] = '--threads',
    ['bench index --seconds 0'] = '--seconds' } do
    local code, out, err = kvlab(words)
    lu.assertEquals({ code, out }, { 2, '' }, words)
    lu.assertStrContains(err, part)
  end
end

-- A training bench says what it trained and how long a step took: work / value.
function TestBench:test_training()
  local code, out, err = kvlab 'bench train/nanogpt-char --seconds 0.01 --threads 1 --json'
  lu.assertEquals(code, 0, err)
  local row = kv.json.decode(out).benches[1]
  lu.assertEquals(row.parameters, 65 * 128 + 64 * 128 + 4 * 12 * 128 * 128 + 9 * 128)
  local tokens, layer = 12 * 64, 12 * 128 * 128
  local products = tokens * (4 * layer + 65 * 128) + 4 * 12 * (64 * 65 // 2) * 2 * 128
  lu.assertAlmostEquals(row.value * 1e9 * row.seconds, 6 * products, 1)
end

TestThreads = {}

function TestThreads:test_threads()
  local before = kv.threads()
  lu.assertEquals(kv.threads(3), 3)
  lu.assertEquals(kv.threads(), 3)
  check.fails('256', kv.threads, 257)
  check.fails('threads', kv.threads, -1)
  check.fails('number', kv.threads, 'many')
  lu.assertEquals(kv.threads(), 3)
  lu.assertEquals(kv.threads(0), before)
end

TestLimits = {}

-- What the limits do is what they say: otherwise ratios against them mean nothing.
function TestLimits:test_limits()
  core.base.blas_single_thread()
  local a, b, c = kv.random { 5, 5, seed = 1 }, kv.random { 5, 5, seed = 2 }, kv.zeros(5, 5)
  core.bench.sgemm(c, a, b)
  lu.assertTrue((c - a:matmul(b)):abs():max() < 1e-6)
  local x = kv.arange(1, 200000):to('float32')
  lu.assertAlmostEquals(core.bench.read(x), 100000 * 200001, 1e6)
  local y = kv.zeros(200000)
  core.bench.copy(y, x)
  lu.assertTrue((x - y):abs():max() == 0)
  check.fails('as many', core.bench.copy, y, kv.zeros(3))
  check.fails('square', core.bench.sgemm, c, a, kv.zeros(4, 4))
end

-- Rows decoded on several threads are those that the table says it has, and all of them are counted.
function TestLimits:test_decode()
  local plan = kv.record_named('v4.1-local'):plan { channels = 64 }
  local pool, counters = kv.pool(plan), kv.counters()
  local t = pool:table():append(kv.random { 3000, 64, seed = 1 })
  local rows = kv.zeros(3000, 64)
  core.bench.decode(rows, { table = t, kind = 'index', counters = counters })
  lu.assertTrue((rows - t:rows()):abs():max() == 0)
  lu.assertEquals(counters:get().index_bytes, 3000 * plan.bytes)
  check.fails('rows', core.bench.decode, kv.zeros(10, 63), { table = t, kind = 'index', counters = counters })
  check.fails('3000', core.bench.decode, kv.zeros(3001, 64), { table = t, kind = 'index', counters = counters })
  t:free() pool:free()
end

check.main()
