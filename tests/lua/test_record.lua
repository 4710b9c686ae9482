-- test_record.lua: the byte-exact pages and blocks of deployed formats, user-defined records, bad ones.
local lu = require 'luaunit'
local check = require 'check'
local golden = require 'golden'
local kv = require 'kvlab'

local hex = golden.hex

TestGolden = {}

function TestGolden:test_the_tools()
  lu.assertEquals(golden.lcg_bf16(1000, 6),
    { 0.98828125, 3.859375, 0.22265625, 1.4765625, 2.796875, -1.3359375 })
  lu.assertEquals(golden.sha256('abc'), 'ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad')
  lu.assertEquals(golden.sha256(''), 'e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855')
  lu.assertEquals(golden.sha256(('a'):rep(119)):sub(1, 16), '31eba51c313a5c08')
end

-- Zeroed pages of 64 entries; slots 0, 1 and 63 come from seeds 1000, 1001, 1063, slot 2 is a zero vector.
-- The figures come from an implementation in exact rational arithmetic.
local pages = {
  { 'v3.2-main', nil, 41984, '6e7e5d727af2ee78', '', '', '3e66fff5d7332c31' },
  { 'v3.2-main-pow2', nil, 41984, '6877566c73ebe771', '', '', '05fac1f9183c9d0a' },
  { 'index-fp8', nil, 8448, '6e7e5d727af2ee78', '0000103c', 'adac6f34', 'b1d6ab4da2cef9c9' },
  { 'v4-main', nil, 37440, '6877566c73ebe771', '7979797979797900', '6969696969696900', 'e6c1a837a5ddf05f' },
  { 'v4.1-local', nil, 33792, '6877566c73ebe771', '7979797979797979', '7272727272727272',
    '496e737270eda4ee' },
  { 'v4.1-local', { floor = { amax = 1e-4 } }, 33792, '6877566c73ebe771', '7979797979797979',
    '6969696969696969', '0b5170d88e625644' },
  { 'v4.1-main', nil, 18432, '7341c66bfe11593c', '3232323232323232', '0101010101010101', '40105cdad03ce335' },
  { 'index-fp4', nil, 4352, '6230b54aec10382b', '7f7f7f7f', '01010101', 'b67b77be78082cdf' },
  { 'index-fp4', { floor = { scale = 1e-4 } }, 4352, '6230b54aec10382b', '7f7f7f7f', '72727272',
    'f676980061fd51e3' },
  { 'index-fp4', { floor = { scale = 1e-4 }, ties = 'down' }, 4352, '6230b54aec10302b', '7f7f7f7f',
    '72727272', '833de50316c974b4' },
}

function TestGolden:test_pages()
  for _, case in ipairs(pages) do
    local name, changes, size, data0, scale0, scale2, digest = table.unpack(case, 1, 7)
    local record = kv.record_named(name)
    if changes then record = record:with(changes) end
    local plan = record:plan()
    local rows = { [3] = golden.zeros(plan.channels) }
    for _, slot in ipairs { 0, 1, 63 } do rows[slot + 1] = golden.lcg_bf16(1000 + slot, plan.channels) end
    local page = plan:encode_page(rows)
    lu.assertEquals(#page, size, name)
    local base = plan.page_entries * plan.data_bytes
    lu.assertEquals(hex(page:sub(1, 8)), data0, name)
    lu.assertEquals(hex(page:sub(base + 1, base + math.min(8, plan.scale_bytes))), scale0, name)
    local at = base + 2 * plan.scale_bytes
    lu.assertEquals(hex(page:sub(at + 1, at + math.min(8, plan.scale_bytes))), scale2, name)
    lu.assertEquals(golden.sha256(page):sub(1, 16), digest, name .. ', all of it')
    -- what is in the page is what a single entry gives
    local data, scale = plan:encode(rows[64])
    lu.assertEquals(plan:decode_page(page, 64), plan:decode(data, scale), name)
    lu.assertEquals(plan:decode_page(page, 3), rows[3], name .. ', the zero vector')
  end
end

-- Blocks printed by ggml's own reference code for the first values of seed 1000.
function TestGolden:test_ggml_blocks()
  local blocks = {
    { 'q8_0', 32, 'c827217f07315cd4e14db785060df935d41d5f037bec1dde2378e890ce31cdf276a2' },
    { 'q4_0', 32, 'b8b72680089562ab6a039dffb857b8951be6' },
    { 'q4_1', 32, '0f3880c3d98ff86a9d5596fc631048a8477be529' },
    { 'mxfp4', 32, '7e740771a547cd4c76beffd152d9a57df4' },
    { 'nvfp4', 64, '32323232e3f71114965ccb36a6f0c74ac39b73e75455ebbbfedefabf2ef31937ec1f5665' },
  }
  for _, block in ipairs(blocks) do
    local name, n, expected = table.unpack(block)
    local plan = kv.record_named(name):plan { channels = n }
    local data, scale = plan:encode(golden.lcg_bf16(1000, n))
    lu.assertEquals(hex(data), expected, name)
    lu.assertEquals(scale, '', name)
  end
end

-- The decoded values of one block, from its bytes and the definition of the block.
function TestGolden:test_ggml_values()
  local row = golden.lcg_bf16(1000, 32)
  local plan = kv.record_named('q4_0'):plan { channels = 32 }
  local data = plan:encode(row)
  local d = kv.number.decode('fp16', (('<I2'):unpack(data)))
  local values = plan:decode(data)
  for j = 1, 16 do
    local byte = data:byte(2 + j)
    lu.assertEquals(values[j], ((byte & 15) - 8) * d)
    lu.assertEquals(values[j + 16], ((byte >> 4) - 8) * d)
  end
end

-- Bytes of an all-zero group under every floor in use (the only thing that floors decide).
function TestGolden:test_floors()
  local function zero_byte(record)
    local plan = record:plan()
    local _, scale = plan:encode(golden.zeros(plan.channels))
    return scale:byte(1)
  end
  local v4, fp4 = kv.record_named('v4-main'), kv.record_named('index-fp4')
  lu.assertEquals(zero_byte(v4), 105)
  lu.assertEquals(zero_byte(v4:with { floor = { amax = 1e-8 } }), 92)
  lu.assertEquals(zero_byte(v4:with { floor = { scale = 1e-4 } }), 114)
  lu.assertEquals(zero_byte(fp4), 1)
  lu.assertEquals(zero_byte(fp4:with { floor = { amax = 1e-4 } }), 112)
  lu.assertEquals(zero_byte(fp4:with { floor = { scale = 1e-4 } }), 114)
end

-- Relative root mean square errors on Gaussian data, from the same source as the pages.
function TestGolden:test_errors_on_gaussian_rows()
  math.randomseed(7)
  local function gauss()
    return math.sqrt(-2 * math.log(1 - math.random())) * math.cos(2 * math.pi * math.random())
  end
  for _, case in ipairs { { 'v4.1-main', 0.0905 }, { 'index-fp4', 0.136 }, { 'v4.1-local', 0.022 } } do
    local plan = kv.record_named(case[1]):plan()
    local num, den = 0, 0
    for _ = 1, 40 do
      local row = {}
      for i = 1, plan.channels do row[i] = gauss() end
      local back = plan:decode(plan:encode(row))
      for i, x in ipairs(row) do num, den = num + (x - back[i]) ^ 2, den + x ^ 2 end
    end
    lu.assertAlmostEquals(math.sqrt(num / den), case[2], 0.25 * case[2], case[1])
  end
end

TestNamed = {}

function TestNamed:test_bytes_and_pages()
  local sizes = {
    { 'heads-bf16', nil, 65536, 65536 * 64 }, { 'mla-bf16', nil, 1152, 73728 },
    { 'v4-bf16', nil, 1024, 65536 },
    { 'index-bf16', nil, 256, 16384 }, { 'v3.2-main', nil, 656, 41984 },
    { 'v3.2-main-pow2', nil, 656, 41984 },
    { 'index-fp8', nil, 132, 8448 }, { 'v4-main', nil, 584, 37440 }, { 'v4-main-fp8', nil, 512, 32768 },
    { 'v4.1-local', nil, 528, 33792 }, { 'v4.1-main', nil, 288, 18432 }, { 'index-fp4', nil, 68, 4352 },
    { 'f32', 100, 400, 25600 }, { 'bf16', 100, 200, 12800 }, { 'fp16', 7, 14, 896 },
    { 'q8_0', 128, 136, 8704 }, { 'q4_0', 128, 72, 4608 }, { 'q4_1', 128, 80, 5120 },
    { 'mxfp4', 128, 68, 4352 }, { 'nvfp4', 128, 72, 4608 },
  }
  local seen = {}
  for _, case in ipairs(sizes) do
    local name, width, bytes, page = table.unpack(case, 1, 4)
    local plan = kv.record_named(name):plan(width and { channels = width })
    lu.assertEquals({ plan.bytes, plan.page_bytes }, { bytes, page }, name)
    lu.assertEquals(plan.bytes, plan.data_bytes + plan.scale_bytes)
    seen[name] = true
    lu.assertNotNil(kv.record_named(name).about, name)
    lu.assertNotNil(kv.record_named(name).source, name)
  end
  for _, name in ipairs(kv.records()) do
    if kv.record_named(name).about then lu.assertTrue(seen[name], name .. ' is not in this table') end
  end
end

function TestNamed:test_page_rules()
  local function page(name, entries, align)
    local plan = kv.record_named(name):with { page = { entries = entries, align = align } }:plan()
    return plan.page_bytes, plan.page_padding
  end
  lu.assertEquals({ page('v4-main', 2) }, { 1728, 560 })
  lu.assertEquals({ page('v4-main', 256) }, { 149760, 256 })
  lu.assertEquals({ page('v4-main', 64, 1) }, { 37376, 0 })
  lu.assertEquals({ page('v4.1-local', 32) }, { 16896, 0 })
  lu.assertEquals({ page('v4.1-main', 128) }, { 36864, 0 })
  lu.assertEquals({ page('index-fp8', 64, 576) }, { 8640, 192 })
  lu.assertEquals({ page('index-fp4', 64, 576) }, { 4608, 256 })
end

function TestNamed:test_other_widths()
  local v4 = kv.record_named('v4-main')
  lu.assertEquals(v4:plan { channels = 160, rotary = 32 }.bytes, 128 + 64 + 2 + 1)
  lu.assertEquals(v4:plan { channels = 128, rotary = 0 }.bytes, 128 + 2 + 1)
  lu.assertEquals(kv.record_named('heads-bf16'):plan { key = 256, value = 128 }.bytes, 768)
  lu.assertEquals(kv.record_named('mla-bf16'):plan { channels = 96, rotary = 32 }.bytes, 192)
  check.fails("record 'v4-main', field 1: group 64 does not divide 96 channels; 48 and 96 do",
    v4.plan, v4, { channels = 128, rotary = 32 })
  check.fails("record 'v4-main': plan needs rotary", v4.plan, v4, { channels = 128 })
  check.fails("plan needs channels", v4.plan, v4, { rotary = 32 })
  check.fails('its other fields take 64 channels, plan was asked for 32', v4.plan, v4,
    { channels = 32, rotary = 64 })
  check.fails({ "unknown key 'chanels'", "'channels'" }, v4.plan, v4, { chanels = 32 })
  check.fails('channels is -1', v4.plan, v4, { channels = -1 })
  check.fails('channels is 1.5', v4.plan, v4, { channels = 1.5 })
  check.fails('plan needs channels', kv.record_named('q8_0').plan, kv.record_named('q8_0'))
  check.fails('group 32 does not divide', function() kv.record_named('f32'):with { fields = {
    { channels = 40, number = 'e4m3', scale = { number = 'fp16', group = 32 } } } }:plan() end)
end

function TestNamed:test_formula()
  local function formula(name, dims) return kv.record_named(name):formula(dims) end
  lu.assertEquals(formula('v4-main'),
    '448 x 1 B (E4M3) + scale 7 x 1 B (UE8M0, one per 64) + padding 1 B + 64 x 2 B (BF16)'
    .. ' = 448 + 7 + 1 + 128 = 584 B')
  lu.assertEquals(formula('v3.2-main'),
    '512 x 1 B (E4M3) + scale 4 x 4 B (FP32, one per 128) + 64 x 2 B (BF16) = 512 + 16 + 128 = 656 B')
  lu.assertEquals(formula('v4.1-main'),
    '512 x 0.5 B (E2M1) + scale 32 x 1 B (E4M3, one per 16) = 256 + 32 = 288 B')
  lu.assertEquals(formula('index-bf16'), '128 x 2 B (BF16) = 256 B')
  lu.assertEquals(formula('q4_1', { channels = 32 }),
    '32 x 0.5 B (UINT4) + scale 1 x 2 B (FP16, one per 32) + minimum 1 x 2 B (FP16, one per 32)'
    .. ' = 16 + 2 + 2 = 20 B')
  for _, name in ipairs(kv.records()) do
    local record = kv.record_named(name)
    local dims = not record.natural and { channels = 128 } or nil
    local ok, terms = pcall(record.terms, record, dims)
    if ok then
      local sum = 0
      for _, term in ipairs(terms) do sum = sum + term.bytes end
      lu.assertEquals(sum, record:plan(dims).bytes, name)
    end
  end
  local terms = kv.record_named('v4-main'):terms()
  lu.assertEquals(terms[2],
    { label = 'scale', count = 7, bytes_each = 1, number = 'ue8m0', per = 64, bytes = 7 })
end

TestUser = {}

local function mine(changes)
  local spec = { name = 'mine', fields = { { channels = 40, number = 'e5m2',
    scale = { number = 'fp16', group = 8, rule = 'nearest' } } }, page = { entries = 64, align = 1 } }
  for key, value in pairs(changes or {}) do spec[key] = value end
  return spec
end

function TestUser:test_an_odd_record()
  local record = kv.record(mine())
  lu.assertEquals(record.name, 'mine')
  lu.assertIs(kv.record_named('mine'), record)
  lu.assertStrContains(table.concat(kv.records(), ' '), 'mine')
  local plan = record:plan()
  lu.assertEquals({ plan.bytes, plan.data_bytes, plan.scale_bytes, plan.channels }, { 50, 40, 10, 40 })
  lu.assertEquals({ plan.page_entries, plan.page_bytes, plan.page_padding }, { 64, 3200, 0 })
  lu.assertEquals(tostring(plan), 'kvlab.Plan mine: 40 channels in 50 bytes')
  lu.assertEquals(tostring(record),
    'kvlab.Record mine: 40 x 1 B (E5M2) + scale 5 x 2 B (FP16, one per 8) = 40 + 10 = 50 B')
  local row = golden.lcg_bf16(1, 40)
  local data, scale = plan:encode(row)
  lu.assertEquals({ #data, #scale }, { 40, 10 })
  -- by hand: the scale is fp16(amax / 57344), an element e5m2(x / scale)
  for g = 0, 4 do
    local amax = 0
    for i = 1, 8 do amax = math.max(amax, math.abs(row[8 * g + i])) end
    local code = (('<I2'):unpack(scale, 2 * g + 1))
    lu.assertEquals(code, kv.number.encode('fp16', amax / 57344))
    local s = kv.number.decode('fp16', code)
    for i = 8 * g + 1, 8 * g + 8 do
      lu.assertEquals(data:byte(i), kv.number.encode('e5m2', row[i] / s))
    end
  end
  local back = plan:decode(data, scale)
  for i, x in ipairs(row) do lu.assertTrue(math.abs(back[i] - x) <= 0.14 * math.abs(x) + 1e-3) end
  local page = plan:encode_page { [1] = row, [64] = row }
  lu.assertEquals(#page, 3200)
  lu.assertEquals(page:sub(1, 40), data)
  lu.assertEquals(page:sub(63 * 40 + 1, 64 * 40), data)
  lu.assertEquals(page:sub(64 * 40 + 1, 64 * 40 + 10), scale)
  lu.assertEquals(page:sub(41, 63 * 40), ('\0'):rep(62 * 40))
  lu.assertEquals(plan:decode_page(page, 64), back)
  lu.assertEquals(plan:decode_page(page, 2), golden.zeros(40))
end

function TestUser:test_plans_are_shared_and_records_do_not_change()
  local record = kv.record(mine { name = 'mine-2' })
  local plan = record:plan()
  lu.assertTrue(rawequal(plan, record:plan()))
  check.fails({ 'cannot be changed', 'with' }, function() record.name = 'x' end)
  record.fields[1].channels = 80 -- a copy
  lu.assertEquals(record.fields[1].channels, 40)
  check.fails({ "no field 'feilds'", "'fields'" }, function() return record.feilds end)
  lu.assertEquals(getmetatable(record), false)
  lu.assertEquals(getmetatable(plan), false)
end

function TestUser:test_with()
  local record = kv.record_named('v4-main')
  local copy = record:with { name = 'v4-small-pages', page = { entries = 2 } }
  lu.assertEquals(copy:plan().page_bytes, 1728)
  lu.assertIs(kv.record_named('v4-small-pages'), copy)
  lu.assertEquals(copy.page, { entries = 2, align = 576 })
  lu.assertEquals(record.page, { entries = 64, align = 576 })
  lu.assertEquals(record:with { floor = { scale = 1 } }.name, 'v4-main-with-floor')
  lu.assertEquals(record:with { floor = { scale = 1 } }.fields[1].scale.floor, { scale = 1 })
  check.fails('with', record.with, record, { colour = 'red' })
  check.fails("call it with a colon", record.with, { page = {} })
end

function TestUser:test_words_of_width()
  local record = kv.record { name = 'mixed', fields = {
    { channels = 'rotary', number = 'fp16' }, { channels = 'rest', number = 'int4', order = 'halves',
      scale = { number = 'bf16', group = 4, rule = 'signed' }, place = 'after' },
    { channels = 3, number = 'f32', pad = 5 } } }
  local plan = record:plan { channels = 19, rotary = 4 }
  lu.assertEquals(plan.bytes, 4 * 2 + 12 // 2 + 3 * 2 + 3 * 4 + 5)
  lu.assertEquals(tostring(record), 'kvlab.Record mixed: any width')
  local row = golden.lcg_bf16(5, 19)
  local data, scale = plan:encode(row)
  lu.assertEquals(scale, '')
  lu.assertEquals(data:sub(-5), '\0\0\0\0\0')
  local back = plan:decode(data)
  lu.assertEquals({ table.unpack(back, 1, 4) }, { table.unpack(row, 1, 4) })
  lu.assertEquals({ table.unpack(back, 17, 19) }, { table.unpack(row, 17, 19) })
end

function TestUser:test_nan_and_inf()
  local plan = kv.record_named('v4-main'):plan()
  local row = golden.lcg_bf16(3, 512)
  local _, clean = plan:encode(row)
  row[1], row[2], row[3], row[500] = 0 / 0, math.huge, -math.huge, 0 / 0
  local data, scale = plan:encode(row)
  lu.assertEquals(hex(data:sub(2, 3)), '7efe')
  lu.assertEquals(data:byte(1) & 0x7f, 0x7f)
  lu.assertEquals(scale, clean) -- the largest of the group is finite and elsewhere
  local back = plan:decode(data, scale)
  lu.assertTrue(back[1] ~= back[1] and back[500] ~= back[500])
  lu.assertEquals(back[2], -back[3])
  lu.assertTrue(back[2] < math.huge)
end

function TestUser:test_bad_specs()
  local function bad(parts, spec) check.fails(parts, kv.record, spec) end
  local function field(f) return mine { fields = { f } } end
  local function scale(s)
    return field { channels = 40, number = 'e5m2', scale = s }
  end
  bad("record 'mine', field 1: group 7 does not divide 40 channels; 5 and 8 do",
    scale { number = 'fp16', group = 7 })
  bad({ "record 'mine', field 1: scale: unknown key 'grp'", "'group'" }, scale { number = 'fp16', grp = 8 })
  bad({ "field 1: unknown key 'chanels'", "did you mean 'channels'?" },
    field { chanels = 40, number = 'e5m2' })
  bad({ "unknown key 'feilds'", "'fields'" }, { name = 'mine', feilds = {} })
  bad({ "number: 'e5m3' is unknown", 'did you mean' }, field { channels = 40, number = 'e5m3' })
  bad('number: nil is unknown', field { channels = 40 })
  bad({ "rule: 'nearst' is unknown", "'nearest'" }, scale { number = 'fp16', rule = 'nearst' })
  bad("place: 'inside' is unknown", field { channels = 40, number = 'e5m2', place = 'inside' })
  bad('channels is 0, expected a whole number, 1 or more', field { channels = 0, number = 'e5m2' })
  bad('channels is 2.5', field { channels = 2.5, number = 'e5m2' })
  bad('channels is nil', field { number = 'e5m2' })
  bad({ "channels: 'rst' is unknown", "'rest'" }, field { channels = 'rst', number = 'e5m2' })
  bad('group is 0', scale { number = 'fp16', group = 0 })
  bad("group is '8'", scale { number = 'fp16', group = '8' })
  bad('int8 cannot be the number of a scale', scale { number = 'int8', group = 8 })
  bad("'signed' is for int4 and int8", scale { number = 'fp16', group = 8, rule = 'signed' })
  bad('floor amax is -1', scale { number = 'fp16', floor = { amax = -1 } })
  bad('floor scale is inf', scale { number = 'fp16', floor = { scale = math.huge } })
  bad("floor: unknown key 'max'", scale { number = 'fp16', floor = { max = 1 } })
  bad('floor: expected a table', scale { number = 'fp16', floor = 1 })
  bad('scale: expected a table', scale('fp16'))
  bad('group 5 is odd', field { channels = 40, number = 'e2m1', scale = { number = 'fp16', group = 5 } })
  bad('block 12 does not divide 40', field { channels = 40, number = 'e5m2', block = 12 })
  bad('expected 1 to 16777216', field { channels = 2 ^ 40, number = 'e5m2' })
  bad('channels is 1e+300', field { channels = 1e300, number = 'e5m2' })
  bad('pad is -1', field { channels = 40, number = 'e5m2', pad = -1 })
  bad("scale_pad 1 needs scales with place 'split'", field { channels = 40, number = 'e5m2', scale_pad = 1 })
  bad("2 fields have channels = 'rest'", mine { fields = {
    { channels = 'rest', number = 'f32' }, { channels = 'rest', number = 'f32' } } })
  bad('page: entries is 0', mine { page = { entries = 0 } })
  bad('page: align is -4', mine { page = { align = -4 } })
  bad('page: 1099511627776 entries', mine { page = { entries = 1 << 40 } })
  bad("page: unknown key 'size'", mine { page = { size = 64 } })
  bad('fields must be a list', { name = 'mine' })
  bad('fields must be a list', mine { fields = {} })
  bad('field 1: expected a table', mine { fields = { 'e4m3' } })
  bad('name is nil', { fields = {} })
  bad("name is 'a b'", mine { name = 'a b' })
  bad('about must be a string', mine { about = 1 })
  bad('kv.record: expected a table, not a string', 'mine')
  bad({ "record 'v4-main' is built in", 'with' }, mine { name = 'v4-main' })
  check.fails({ "no record named 'v4-mian'", "did you mean 'v4-main'?" }, kv.record_named, 'v4-mian')
  check.fails('kv.records() lists them', kv.record_named, 'something else entirely')
  check.fails('nil', kv.record_named, nil)
end

-- Everything that comes from Lua is checked before it reaches a pointer.
function TestUser:test_bounds()
  local plan = kv.record(mine { name = 'bounds' }):plan()
  local row = golden.lcg_bf16(1, 40)
  local data, scale = plan:encode(row)
  for n = 0, 41 do
    if n ~= 40 then
      check.fails(('data has %d bytes, expected 40'):format(n), plan.decode, plan, ('x'):rep(n), scale)
    end
  end
  check.fails('scale has 9 bytes, expected 10', plan.decode, plan, data, scale:sub(1, 9))
  check.fails('string expected', plan.decode, plan, data)
  check.fails('page has 3199 bytes, expected 3200', plan.decode_page, plan, ('x'):rep(3199), 1)
  local page = plan:encode_page {}
  lu.assertEquals(page, ('\0'):rep(3200))
  for _, slot in ipairs { 0, 65, -1, 1.5, 2 ^ 53, math.mininteger, math.maxinteger, 'x', {} } do
    check.fails('is not one of the page', plan.decode_page, plan, page, slot)
    check.fails('is not one of the page', plan.encode_page, plan, { [slot] = row })
  end
  check.fails('row has 39 numbers, expected 40', plan.encode, plan, { table.unpack(row, 1, 39) })
  check.fails('row 7 has 1 numbers, expected 40', plan.encode_page, plan, { [7] = { 1 } })
  check.fails('row must be a table of 40 numbers, not a string', plan.encode, plan, 'x')
  row[5] = 'five'
  check.fails('row[5] is a string', plan.encode, plan, row)
  row[5] = {}
  check.fails('row[5] is a table', plan.encode, plan, row)
  check.fails("a plan has no field 'size'", function() return plan.size end)
  check.fails('kvlab.Plan', plan.encode, io.stdout, row)
  check.fails('kvlab.Plan', plan.encode, nil, row)
  local huge = kv.record { name = 'huge', fields = { { channels = 1 << 24, number = 'f32' } },
    page = { entries = 1 << 24 } }:plan()
  lu.assertEquals(huge.page_bytes, 1 << 50)
  check.fails('is too large for a string', huge.encode_page, huge, {})
  check.fails('page has 0 bytes', huge.decode_page, huge, '', 1)
end

check.main()
