-- kv.help: reading declarations, finding what is meant, and the text that comes out.
local lu = require 'luaunit'
local check = require 'check'
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
  local entries, places = help.parse(META, 'meta/x.lua')
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
    help.parse, '---@meta\nfunction a.b() end', 'meta/x.lua')
end

function TestParse:test_a_value()
  local text = '---@within kv\n--- A thing.\n---@type Thing\nkv.thing = ...\n--- No entry.\nkv.other = ...'
  local entries = help.parse(text, 'meta/x.lua')
  lu.assertEquals(#entries, 1)
  lu.assertEquals({ entries[1].name, entries[1].type, entries[1].parameters, entries[1].doc },
    { 'kv.thing', 'Thing', {}, { 'A thing.' } })
  lu.assertEquals(help.signature(entries[1]), 'kv.thing: Thing')
end

-- A second copy of the module that reads other declarations.
local function with_meta(files)
  local dir = os.tmpname()
  os.remove(dir)
  os.execute('mkdir ' .. dir)
  for name, text in pairs(files) do
    local file <close> = assert(io.open(dir .. '/' .. name, 'w'))
    file:write(text)
  end
  local copy = dofile(package.searchpath('kvlab.help', package.path))
  copy.meta_dir = function() return dir end
  local ok, why = pcall(copy.index)
  os.execute('rm -r ' .. dir)
  return copy, ok, why
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
  local copy = with_meta { ['x.lua'] = META, ['ignored.txt'] = 'x' }
  local thing = setmetatable({}, { __name = 'kvlab.Thing', __metatable = false })
  lu.assertEquals(copy.lookup(thing), 'Thing')
  lu.assertEquals(copy.lookup('Thing:plan').name, 'Thing:plan')
  lu.assertEquals(copy.lookup('Thing.plan').name, 'Thing:plan')
  lu.assertEquals(copy.lookup('plan').name, 'Thing:plan')
  lu.assertEquals(copy.text(thing), 'Thing\n  Things are made of parts.\n'
    .. '  plan(n, options, ...)      Plans the thing.\n  zeros()                    A function of the class.')
end

function TestLookup:test_one_function_has_one_entry()
  local _, ok, why = with_meta { ['a.lua'] = META, ['b.lua'] = META }
  lu.assertFalse(ok)
  lu.assertEquals(why, 'meta/b.lua:19: Thing:plan is also in meta/a.lua')
end

TestText = {}

function TestText:test_entry()
  local copy = with_meta { ['x.lua'] = META }
  lu.assertEquals(copy.text('plan'), [[
Thing:plan(n, options, ...) -> integer, fun(a, b)
  Plans the thing. Slowly.

  Errors: n is not positive.
  More text.
  n          integer  how many
  options    table<string, integer>?  more of them
  ...        any
  returns    integer  count  of plans
  returns    fun(a, b)  f

  kv.one(1)  --> 1
  kv.two()]])
end

function TestText:test_map_fits_a_screen()
  local text = help.text()
  local count = 0
  for line in text:gmatch('[^\n]+') do
    lu.assertTrue(utf8.len(line) <= 79, line)
    count = count + 1
  end
  lu.assertTrue(count <= 40)
  lu.assertStrContains(text, 'kv.json')
  lu.assertEquals(help.text(kv), text)
  lu.assertEquals(help.text(nil), text)
end

function TestText:test_unknown_names_and_values()
  lu.assertEquals(help.text('kv.json.encod'),
    "Nothing is called 'kv.json.encod'; did you mean 'kv.json.encode'?")
  lu.assertEquals(help.text('jsn'), "Nothing is called 'jsn'; did you mean 'json'?")
  lu.assertEquals(help.text('qqqqqq'), "Nothing is called 'qqqqqq'")
  lu.assertEquals(help.text(3), 'There is no help for this number; help() shows what there is.')
  local copy = with_meta { ['x.lua'] = '---@within A\n--- x\nfunction A.f() end\n'
    .. '---@within B\n--- y\nfunction B.f() end' }
  lu.assertEquals(copy.text('f'), "'f' can be A.f and B.f")
end

function TestText:test_prints()
  local code, out = check.sh([[lua5.4 -e 'require("kvlab").help("json.decode")']])
  lu.assertEquals(code, 0)
  lu.assertStrContains(out, 'kv.json.decode(text) -> any\n')
end

check.main()
