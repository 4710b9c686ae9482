-- kv.help: reading declarations, finding what is meant, and the text that comes out.
local lu = require 'luaunit'
local check = require 'check'
local declarations = require 'kvlab.declarations'
local help = require 'kvlab.help'
local kv = require 'kvlab'

local META = [[
---@meta
local Thing, part = {}, {}

--- Things are made of parts.
---@within Thing

--- Plans the thing. Slowly.
---
--- Errors: n is not positive.
--- Examples:
---   kv.one(1)  --> 1
---   kv.two()
--- More text.
---@param n integer  how many
---@param options? table<string, integer>  more of them
---@param ... any
---@return integer count  of plans
---@return fun(a, b) f
function Thing:plan(n, options, ...) end

---@class ignored
local x = 3

--- A function of the class.
function Thing.zeros() end

---@within kv.json
--- Shadows nothing.
function part.other() end
]]

TestParse = {}

function TestParse:test_entries()
  local entries, places = declarations.parse(META, 'meta/x.lua')
  lu.assertEquals(#entries, 3)
  local plan = entries[1]
  lu.assertEquals(plan.name, 'Thing:plan')
  lu.assertEquals(plan.line, 19)
  lu.assertEquals(plan.parameters, { 'n', 'options', '...' })
  lu.assertEquals(plan.doc, { 'Plans the thing. Slowly.', '', 'Errors: n is not positive.', 'More text.' })
  lu.assertEquals(plan.examples, { { code = 'kv.one(1)', expected = '1' }, { code = 'kv.two()' } })
  lu.assertEquals(plan.params, {
    { name = 'n', type = 'integer', text = 'how many', optional = false },
    { name = 'options', type = 'table<string, integer>', text = 'more of them', optional = true },
    { name = '...', type = 'any', text = '', optional = false } })
  lu.assertEquals(plan.returns, { { type = 'integer', text = 'count  of plans' },
    { type = 'fun(a, b)', text = 'f' } })
  lu.assertEquals(entries[2].name, 'Thing.zeros')
  lu.assertEquals(entries[3].name, 'kv.json.other')
  lu.assertEquals(places, { Thing = { 'Things are made of parts.' }, ['kv.json'] = {} })
end

function TestParse:test_a_function_needs_a_place()
  check.fails('meta/x.lua:2: a declaration before ---@within',
    declarations.parse, '---@meta\nfunction a.b() end', 'meta/x.lua')
end

function TestParse:test_a_value()
  local text = '---@within kv\n--- A thing.\n---@type Thing\nkv.thing = ...\n--- No entry.\nkv.other = ...'
  local entries = declarations.parse(text, 'meta/x.lua')
  lu.assertEquals(#entries, 1)
  lu.assertEquals({ entries[1].name, entries[1].type, entries[1].parameters, entries[1].doc },
    { 'kv.thing', 'Thing', {}, { 'A thing.' } })
  lu.assertEquals(declarations.signature(entries[1]), 'kv.thing: Thing')
end

-- Calls f(help, why) with a second copy of the module that reads other declarations; why: what is wrong with them.
local function with_meta(files, f)
  local dir = os.tmpname()
  os.remove(dir)
  os.execute('mkdir ' .. dir)
  for name, text in pairs(files) do
    local file <close> = assert(io.open(dir .. '/' .. name, 'w'))
    file:write(text)
  end
  local own = {}
  for _, name in ipairs { 'kvlab.declarations', 'kvlab.topics', 'kvlab.help' } do
    own[name], package.loaded[name] = package.loaded[name], nil
  end
  local other = require 'kvlab.declarations'
  other.meta_dir = function() return dir end
  local good, why = pcall(other.index)
  local ok, problem = pcall(f, good and require 'kvlab.help', why)
  for name, module in pairs(own) do package.loaded[name] = module end
  os.execute('rm -r ' .. dir)
  if not ok then error(problem, 0) end
end

TestLookup = {}

function TestLookup:test_by_value_and_name()
  lu.assertEquals(help.lookup(kv.json.encode).name, 'kv.json.encode')
  lu.assertEquals(help.lookup(kv.json), 'kv.json')
  for _, name in ipairs { 'kv.json.encode', 'json.encode', 'encode' } do
    local entry = help.lookup(name)
    if name ~= 'encode' or entry then lu.assertEquals(entry.name, 'kv.json.encode') end
  end
  lu.assertEquals(help.lookup('json'), 'kv.json')
  lu.assertNil(help.lookup('nosuch'))
  lu.assertNil(help.lookup(print))
  lu.assertNil(help.lookup({}))
end

function TestLookup:test_objects_by_their_class()
  with_meta({ ['x.lua'] = META, ['ignored.txt'] = 'x' }, function(copy)
    local thing = setmetatable({}, { __name = 'kvlab.Thing', __metatable = false })
    lu.assertEquals(copy.lookup(thing), 'Thing')
    lu.assertEquals(copy.lookup('Thing:plan').name, 'Thing:plan')
    lu.assertEquals(copy.lookup('Thing.plan').name, 'Thing:plan')
    lu.assertEquals(copy.lookup('plan').name, 'Thing:plan')
    lu.assertEquals(copy.text(thing), 'Thing\n  Things are made of parts.\n'
      .. '  plan(n, options, ...)       Plans the thing.\n  zeros()                     A function of the class.')
  end)
end

function TestLookup:test_one_function_has_one_entry()
  with_meta({ ['a.lua'] = META, ['b.lua'] = META }, function(copy, why)
    lu.assertFalse(copy)
    lu.assertEquals(why, 'meta/b.lua:19: Thing:plan is also in meta/a.lua')
  end)
end

TestText = {}

function TestText:test_entry()
  with_meta({ ['x.lua'] = META }, function(copy)
    lu.assertEquals(copy.text('plan'), [[
Thing:plan(n, options, ...) -> integer, fun(a, b)
  Plans the thing. Slowly.

  Errors: n is not positive. More text.
  n          integer: how many
  options    table<string, integer>?: more of them
  ...        any
  returns    integer: count of plans
  returns    fun(a, b): f

  kv.one(1)  --> 1
  kv.two()]])
  end)
end

function TestText:test_map_fits_a_screen()
  local text = help.text()
  local count = 0
  for line in text:gmatch('[^\n]*') do
    lu.assertTrue(utf8.len(line) <= 79, line)
    count = count + 1
  end
  lu.assertTrue(count <= 23, tostring(count)) -- and the prompt below
  for _, word in ipairs { 'json', 'v4.1-flash', 'KV cache', 'cache mla rope', 'kv layout records' } do
    lu.assertStrContains(text, word)
  end
  lu.assertEquals(help.text(kv), text)
  lu.assertEquals(help.text(nil), text)
end

function TestText:test_every_word_of_the_map_has_a_page()
  for word in help.text():gmatch('\n  (%l+) ') do
    lu.assertNotStrContains(help.text(word), 'Nothing is called', false, word)
  end
  for _, name in ipairs(help.names()) do
    lu.assertNotStrContains(help.text(name), 'Nothing is called', false, name)
  end
end

function TestText:test_things_that_are_no_functions()
  local cases = {
    { kv.csa, 'Owns one entry for 4 tokens' },
    { kv.layout 'swa csa', 'Layout\n' },
    { kv.record_named 'f32', 'record f32\n' },
    { kv.tensor { 1 }, 'Tensor\n' },
    { 'csa', "help 'lesson csa'" },
    { 'lesson csa', "lesson 'csa'" },
    { 'preset v3.2', '61 layers' },
    { 'kvlab sweep', 'sweep' },
    { 'sliding window', 'local KV' },
    { 'errors', 'unknown layer kind' },
    { "attempt to index a nil value (global 'L')", 'What stands before the dot' },
    { 'count: something that no list has', 'This message comes from kv.count:' },
    { string.rep, "string.rep is Lua's own" },
  }
  for _, case in ipairs(cases) do lu.assertStrContains(help.text(case[1]), case[2]) end
end

function TestText:test_unknown_names_and_values()
  lu.assertStrContains(help.text('kv.json.encod'),
    "Nothing is called 'kv.json.encod'; did you mean 'kv.json.encode'?")
  lu.assertEquals(help.text('jsn'), "Nothing is called 'jsn'; did you mean 'json'?")
  lu.assertEquals(help.text('qqqqqq'), "Nothing is called 'qqqqqq'")
  lu.assertEquals(help.text('\27[2Jq'), "Nothing is called '\\27[2Jq'")
  lu.assertEquals(help.text(3), 'There is no help for this number; help() shows what there is.')
  lu.assertStrContains(help.text(('long '):rep(1000)), 'Nothing more is known about this text.')
  local two = '---@within A\n--- x\nfunction A.f() end\n---@within B\n--- y\nfunction B.f() end'
  with_meta({ ['x.lua'] = two }, function(copy)
    lu.assertStrContains(copy.text('f'), "'f' can be A.f and B.f")
  end)
end

function TestText:test_prints()
  local code, out = check.sh([[lua5.4 -e 'require("kvlab").help("json.decode")']])
  lu.assertEquals(code, 0)
  lu.assertStrContains(out, 'kv.json.decode(text) -> any\n')
end

check.main()
