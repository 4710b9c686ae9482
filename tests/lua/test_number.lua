-- test_number.lua: kv.number. Every code is tested in C; here the public face and its errors.
local lu = require 'luaunit'
local check = require 'check'
local kv = require 'kvlab'

TestNumber = {}

function TestNumber:test_names_and_info()
  local names = kv.number.names()
  lu.assertEquals(table.concat(names, ' '), 'f32 bf16 fp16 e4m3 e5m2 e2m1 ue8m0 ue4m3 int8 int4 uint4')
  names[1] = 'changed'
  lu.assertEquals(kv.number.names()[1], 'f32')
  local info = kv.number.info('e4m3')
  lu.assertEquals({ info.bits, info.bytes, info.bias, info.max, info.min_normal, info.min_subnormal },
    { 8, 1.0, 7, 448.0, 0.015625, 2.0 ^ -9 })
  lu.assertEquals({ info.has_inf, info.has_nan, info.label }, { false, true, 'E4M3' })
  lu.assertEquals(kv.number.info('e2m1').bytes, 0.5)
end

function TestNumber:test_one_value()
  local function case(name, x, code, opts)
    lu.assertEquals(kv.number.encode(name, x, opts), code, name .. ' of ' .. x)
  end
  case('e4m3', 448, 0x7e)
  case('e4m3', 465, 0x7e)
  case('e4m3', 465, 0x7f, { saturate = false })
  case('e4m3', 464, 0x7e, { saturate = false })
  case('e4m3', -0.0, 0x80)
  case('e4m3', 17, 0x58)
  case('e4m3', 19, 0x5a)
  case('e4m3', 0 / 0, kv.number.encode('e4m3', 0 / 0))
  case('e5m2', 61440, 0x7c, { saturate = false })
  case('e2m1', 2.5, 4)
  case('e2m1', 3.5, 5, { ties = 'down' })
  case('bf16', 1, 0x3f80)
  case('fp16', 65504, 0x7bff)
  case('fp16', math.huge, 0x7c00)
  case('f32', 1, 0x3f800000)
  case('int8', -128, 0x80)
  case('int8', 2.5, 3, { ties = 'away' })
  case('ue8m0', 3, 129, { round = 'up' })
  case('ue8m0', 3, 128, { round = 'floor' })
  case('ue8m0', 2.9, 128)
  case('ue8m0', 3, 128)                    -- a tie, to the even code
  case('ue8m0', 3, 129, { ties = 'away' }) -- what torch does
  lu.assertEquals(kv.number.decode('e4m3', 0x7e), 448.0)
  lu.assertEquals(kv.number.decode('ue8m0', 0), 2.0 ^ -127)
  lu.assertEquals(kv.number.decode('int4', 0), -8.0)
  local nan = kv.number.decode('e4m3', 0x7f)
  lu.assertTrue(nan ~= nan)
end

function TestNumber:test_errors()
  check.fails({ "number: 'e4m4' is unknown", "did you mean 'e4m3'?" }, kv.number.encode, 'e4m4', 1)
  check.fails("'e4m4'", kv.number.info, 'e4m4')
  check.fails({ 'nil', 'expected f32, bf16' }, kv.number.decode, nil, 1)
  check.fails('x is a string', kv.number.encode, 'e4m3', 'one')
  check.fails({ "unknown key 'tie'", "'ties'" }, kv.number.encode, 'e4m3', 1, { tie = 'even' })
  check.fails("'evn'", kv.number.encode, 'e4m3', 1, { ties = 'evn' })
  check.fails('round', kv.number.encode, 'e4m3', 1, { round = 'up' })
  check.fails('code 256 is not one of', kv.number.decode, 'e4m3', 256)
  check.fails('code 16 is not one of', kv.number.decode, 'e2m1', 16)
  check.fails('code -1', kv.number.decode, 'f32', -1)
  check.fails('expected a whole number', kv.number.decode, 'e4m3', 1.5)
  check.fails('expected a whole number', kv.number.decode, 'e4m3', '1')
end

check.main()
