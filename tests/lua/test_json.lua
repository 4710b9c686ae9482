-- JSON: what is written, what is read, what is refused. The expected texts are worked out by hand from RFC
-- 8259.
local lu = require 'luaunit'
local check = require 'check'
local json = require 'kvlab.json'

TestEncode = {}

function TestEncode:test_values()
  local cases = {
    { 'x', '"x"' }, { true, 'true' }, { false, 'false' }, { nil, nil },
    { json.null, 'null' }, { {}, '{}' }, { json.array {}, '[]' }, { json.object {}, '{}' },
    { { 1, 2, 3 }, '[1,2,3]' }, { { { 1 }, {} }, '[[1],{}]' },
    { { b = 1, a = 2, ['c d'] = { x = true } }, '{"a":2,"b":1,"c d":{"x":true}}' },
    { json.object { { 'z', 1 }, { 'a', json.array { 'q' } }, { 'left out' }, { 'n', json.null } },
      '{"z":1,"a":["q"],"n":null}' },
    { 'a"b\\c/d\n\r\t\b\f\0\31\127', '"a\\"b\\\\c/d\\n\\r\\t\\b\\f\\u0000\\u001f\127"' },
    { 'é€😀', '"é€😀"' },
  }
  for _, case in ipairs(cases) do
    if case[2] then lu.assertEquals(json.encode(case[1]), case[2]) end
  end
end

function TestEncode:test_integers_are_exact()
  for _, text in ipairs { '0', '-1', '9223372036854775807', '-9223372036854775808', '9007199254740993' } do
    lu.assertEquals(json.encode(math.tointeger(tonumber(text)) or 0), text)
  end
  local big = setmetatable({ 'digits' }, { __tojson = function() return '18446744073709551616' end })
  lu.assertEquals(json.encode { total = big }, '{"total":18446744073709551616}')
end

function TestEncode:test_floats_round_trip_with_fewest_digits()
  local cases = {
    { 0.1, '0.1' }, { 1 / 3, '0.3333333333333333' }, { 3514.25, '3514.25' }, { 2.0, '2.0' }, { -0.0, '-0.0' },
    { 1e300, '1e+300' }, { 5e-324, '5e-324' }, { 0x1.8p-1070, '1.2e-322' },
    { 0x1p-1022, '2.2250738585072014e-308' },
    { 2 ^ 53, '9007199254740992.0' },
    { 0.1 + 0.2, '0.30000000000000004' }, { 0 / 0, 'null' }, { math.huge, 'null' }, { -math.huge, 'null' },
  }
  for _, case in ipairs(cases) do lu.assertEquals(json.encode(case[1]), case[2]) end
  math.randomseed(7)
  for _ = 1, 2000 do
    local x = string.unpack('<d', string.pack('<i8', math.random(0)))
    if x == x and x ~= math.huge and x ~= -math.huge then
      local back = json.decode(json.encode(x))
      lu.assertEquals(math.type(back), 'float')
      lu.assertEquals(string.pack('<d', back), string.pack('<d', x))
    end
  end
end

function TestEncode:test_indent()
  lu.assertEquals(json.encode({ a = { 1, { b = json.null } }, e = {}, f = json.array {} }, { indent = 2 }),
    '{\n  "a": [\n    1,\n    {\n      "b": null\n    }\n  ],\n  "e": {},\n  "f": []\n}')
  lu.assertEquals(json.encode({ 1 }, { indent = 0 }), '[\n1\n]')
end

function TestEncode:test_refused()
  local loop = {}
  loop.a = { loop }
  local deep = {}
  for _ = 1, 600 do deep = { deep } end
  local cases = {
    { { a = { b = { print } } }, 'cannot write a function at a.b.1' },
    { loop, 'a table contains itself at a.1' },
    { { 1, 2, x = 3 }, "a table is both a list of 2 and has the key 'x'" },
    { { [1] = 1, [5] = 5 }, 'without holes' },
    { { [1.5] = 1 }, 'a table has the key 1.5' },
    { { [true] = 1 }, 'a table has the key true' },
    { { name = 'a\xff' }, 'is not UTF-8 (byte 2) at name' },
    { deep, 'more than 512 levels' },
    { coroutine.create(print), 'cannot write a thread' },
    { setmetatable({}, { __tojson = function() return 3 end }), '__tojson returned number' },
  }
  for _, case in ipairs(cases) do check.fails({ 'json.encode: ', case[2] }, json.encode, case[1]) end
  check.fails('cannot write a nil', json.encode, nil)
  check.fails("unknown option 'indnt'; did you mean 'indent'?", json.encode, 1, { indnt = 2 })
  for _, bad in ipairs { -1, 17, 1.5, 'x' } do
    check.fails('indent = ' .. bad, json.encode, 1, { indent = bad })
  end
  check.fails("the key 'a' is there twice", json.object, { { 'a', 1 }, { 'a', 2 } })
  check.fails('entry 2 is not a pair', json.object, { { 'a', 1 }, 'b' })
  check.fails('expected a list of pairs, got nil', json.object)
  check.fails('expected a table, got string', json.array, 'x')
end

function TestEncode:test_shared_tables_are_no_cycles()
  local shared = { 1 }
  lu.assertEquals(json.encode { shared, shared }, '[[1],[1]]')
end

function TestEncode:test_array_copies()
  local list = { 1 }
  local array = json.array(list)
  list[2] = 2
  lu.assertEquals(json.encode(array), '[1]')
  lu.assertNil(getmetatable(list))
end

TestDecode = {}

function TestDecode:test_values()
  local cases = {
    { 'true', true }, { 'false', false }, { ' \t\r\n1 ', 1 }, { '"x"', 'x' }, { '[]', {} }, { '{}', {} },
    { '[1,[2,{"a":[]}]]', { 1, { 2, { a = {} } } } },
    { '{ "a" : 1 , "b" : [ 2 , 3 ] }', { a = 1, b = { 2, 3 } } },
    { '"\\"\\\\\\/\\b\\f\\n\\r\\t\\u0041\\u00e9\\u20AC"', '"\\/\b\f\n\r\tAé€' },
    { '"\\ud83d\\ude00 😀 \\u0000"', '😀 😀 \0' }, { '{"":{"":0}}', { [''] = { [''] = 0 } } },
  }
  for _, case in ipairs(cases) do lu.assertEquals(json.decode(case[1]), case[2], case[1]) end
  lu.assertTrue(rawequal(json.decode('[null]')[1], json.null))
  lu.assertEquals(tostring(json.null), 'null')
end

function TestDecode:test_numbers()
  local cases = {
    { '0', 0, 'integer' }, { '-12', -12, 'integer' }, { '9223372036854775807', math.maxinteger, 'integer' },
    { '-9223372036854775808', math.mininteger, 'integer' }, { '1.0', 1.0, 'float' },
    { '1e2', 100.0, 'float' },
    { '-0.5E-1', -0.05, 'float' }, { '9223372036854775808', 2.0 ^ 63, 'float' }, { '1E+2', 100.0, 'float' },
    { '1e-400', 0.0, 'float' },
  }
  for _, case in ipairs(cases) do
    local value = json.decode(case[1])
    lu.assertEquals({ value, math.type(value) }, { case[2], case[3] }, case[1])
  end
end

function TestDecode:test_refused_with_line_and_column()
  local cases = {
    { '', 1, 1, 'the end of the text' }, { '  ', 1, 3, 'the end of the text' },
    { '[1,2', 1, 5, "expected ',' or ']'" }, { '[1,]', 1, 4, 'expected a value' },
    { '[,1]', 1, 2, 'expected a value' },
    { '[1 2]', 1, 4, "expected ',' or ']', found '2'" }, { '{"a":1,}', 1, 8, 'expected a key' },
    { '{"a" 1}', 1, 6, "expected ':'" }, { '{a:1}', 1, 2, "expected a key in quotes, found 'a'" },
    { '{"a":1 "b":2}', 1, 8, "expected ',' or '}'" }, { '{"a":1,"a":2}', 1, 8, "the key 'a' is there twice" },
    { '{"a":null,"\\u0061":2}', 1, 11, "the key 'a' is there twice" },
    { '\n\n  {"é" 1}', 3, 8, "expected ':'" }, { '1 2', 1, 3, 'expected the end' },
    { '{}}', 1, 3, 'expected the end' },
    { '01', 1, 1, 'begins with 0' }, { '-01', 1, 1, 'begins with 0' }, { '1.', 1, 1, 'bad number' },
    { '.5', 1, 1, 'expected a value' }, { '+1', 1, 1, 'expected a value' }, { '-', 1, 1, 'expected a value' },
    { '1e', 1, 1, 'bad number' }, { '0x10', 1, 1, 'bad number' }, { '1.5.2', 1, 1, 'bad number' },
    { '1e400', 1, 1, 'out of range' }, { 'NaN', 1, 1, "found 'NaN'" },
    { 'Infinity', 1, 1, "found 'Infinity'" },
    { 'nul', 1, 1, "found 'nul'" }, { 'nulll', 1, 1, "found 'nulll'" }, { 'True', 1, 1, "found 'True'" },
    { "'a'", 1, 1, 'expected a value' }, { '// c\n1', 1, 1, 'expected a value' },
    { '"abc', 1, 1, 'no end' }, { '["a\nb"]', 1, 4, 'control character 10' },
    { '"a\tb"', 1, 3, 'control character 9' },
    { '"\\x41"', 1, 2, "unknown escape '\\x'" }, { '"\\u12G4"', 1, 2, 'four hexadecimal digits' },
    { '"\\u12', 1, 2, 'four hexadecimal digits' }, { '"\\', 1, 2, 'unknown escape' },
    { '"\\ud800"', 1, 2, 'surrogate' }, { '"\\udc00"', 1, 2, 'surrogate' },
    { '"\\ud800\\u0041"', 1, 2, 'surrogate' },
    { '"\\ud800\\ud800"', 1, 2, 'surrogate' },
    { '"a\xff"', 1, 3, 'invalid UTF-8' }, { '"\xc0\x80"', 1, 2, 'invalid UTF-8' }, -- overlong
    { '"\xed\xa0\x80"', 1, 2, 'invalid UTF-8' },
    { '\xef\xbb\xbf1', 1, 1, 'expected a value' }, -- surrogate, BOM
  }
  for _, case in ipairs(cases) do
    check.fails({ ('json.decode: line %d, column %d: '):format(case[2], case[3]), case[4] }, json.decode,
      case[1])
  end
  check.fails('expected a string, got nil', json.decode, nil)
end

function TestDecode:test_depth()
  lu.assertEquals(#json.decode(('['):rep(512) .. (']'):rep(512)), 1)
  check.fails({ 'line 1, column 513', 'more than 512 levels' }, json.decode, ('['):rep(513) .. (']'):rep(513))
  check.fails('more than 512 levels', json.decode, ('['):rep(1000000))
end

-- Every prefix of a document is refused, and so is every document with a byte replaced by an odd one - or
-- it is
-- read as something that is written and read again the same.
function TestDecode:test_damaged_documents()
  local text = json.encode { a = { 1, -2.5e-3, true, json.null }, ['é\n'] = { b = json.array {} },
    c = '😀"' }
  for stop = 0, #text - 1 do lu.assertFalse((pcall(json.decode, text:sub(1, stop)))) end
  for at = 1, #text do
    for _, byte in ipairs { '\0', '"', '\\', '{', ']', ',', '9', 'e', '\xff', ' ' } do
      local ok, value = pcall(json.decode, text:sub(1, at - 1) .. byte .. text:sub(at + 1))
      if ok then
        lu.assertEquals(json.encode(json.decode(json.encode(value))), json.encode(value))
      else
        lu.assertStrMatches(value, 'json.decode: line %d+, column %d+: .*')
      end
    end
  end
end

function TestDecode:test_round_trip()
  for _, text in ipairs { '[]', '{}', '[[],{},{"a":[]}]', '{"a":1,"b":2.0,"c":null,"d":[true,false,"x"]}' } do
    lu.assertEquals(json.encode(json.decode(text)), text)
  end
end

check.main()
