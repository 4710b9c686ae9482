-- Published KV-cache sizes (tests/cases/kv_cases.lua) against what kvlab counts.
local lu = require 'luaunit'
local check = require 'check'
local kv = require 'kvlab'

local cases = dofile(check.root .. '/tests/cases/kv_cases.lua')

-- Keys and values in formats of their own, as users of llama.cpp mix them. q8_0 and q4_0 as in kvlab's records.
local function q8_0(channels)
  return { channels = channels, number = 'int8', ties = 'away', place = 'before', block = 32,
    scale = { number = 'fp16', group = 32, rule = 'raw', quotient = 'reciprocal' } }
end
local function q4_0(channels)
  return { channels = channels, number = 'int4', ties = 'up', place = 'before', block = 32, order = 'halves',
    scale = { number = 'fp16', group = 32, rule = 'signed', quotient = 'reciprocal' } }
end
kv.record { name = 'k-q8_0-v-fp16', fields = { q8_0 'key', { channels = 'value', number = 'fp16' } } }
kv.record { name = 'k-q8_0-v-q4_0', fields = { q8_0 'key', q4_0 'value' } }
-- ik_llama.cpp's q8_KV: 192 signed bytes and 8 B of scale and sum for each of 16 heads.
kv.record { name = 'k-q8_KV-v-fp16', fields = {
  { channels = 'key', number = 'int8', pad = 16 * 4, scale = { number = 'f32', group = 192, rule = 'raw' } },
  { channels = 'value', number = 'fp16' } } }

local function layout_of(case)
  if case.preset then return kv.preset(case.preset) end
  return kv.layout(case.layout):labelled { name = case.id, widths = case.widths }
end

local function count(case, L)
  local records = case.records
  if case.record then records = { main = case.record, index = case.record, window = case.record } end
  return kv.count(L, { context = case.context, records = records })
end

TestCases = {}

for _, case in ipairs(cases) do
  TestCases['test_' .. case.id] = function()
    local r = count(case, layout_of(case))
    local found = 0
    local function same(name, got)
      if case[name] ~= nil then
        found = found + 1
        lu.assertEquals(tostring(got), tostring(case[name]), case.id .. ' ' .. name .. ', ' .. case.url)
      end
    end
    same('total', r.store.total_bytes * (case.times or 1))
    same('slope', r.store.bytes_per_token)
    same('fixed', r.store.fixed_bytes)
    same('read', r.read.total_bytes)
    same('keys', r.read.index_bytes) -- every indexer scores all of its keys
    local positions = 0
    for _, c in ipairs(r.classes) do positions = positions + c.count * (c.rows + c.window_rows) end
    same('positions', positions)
    if case.ratio then
      local other = count(case, kv.layout(case.against):labelled { widths = case.widths })
      local by = case.by == 'total' and 'total_bytes' or 'bytes_per_token'
      same('ratio', ('%%.%df'):format(case.digits):format((other.store[by] / r.store[by]):tonumber()))
    end
    lu.assertTrue(found > 0, case.id .. ' says nothing to check')
  end
end

function TestCases:test_there_are_many()
  lu.assertTrue(#cases >= 50)
end

check.main()
