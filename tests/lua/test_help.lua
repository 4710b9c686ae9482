-- kv.help: reading declarations, finding what is meant, and the text that comes out.
local lu = require 'luaunit'
local check = require 'check'
local core = require 'kvlab.core'
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

-- The map with the terminal that these variables and the screen say.
local function map_at(columns, lines)
  local getenv, isatty = os.getenv, core.base.isatty
  os.getenv = function(name) -- luacheck: ignore 122
    if name == 'COLUMNS' then return tostring(columns) end
    if name == 'LINES' then return lines and tostring(lines) end
    return getenv(name)
  end
  core.base.isatty = function() return lines ~= nil end
  local ok, text = pcall(help.text)
  os.getenv, core.base.isatty = getenv, isatty -- luacheck: ignore 122
  assert(ok, text)
  return text
end

-- Nothing is left out where there is no screen, and where it is narrow; no word is cut anywhere.
function TestText:test_map_has_every_name()
  local names = {}
  for word in map_at(1000):gmatch('\n  %l+ +([^\n]+)') do
    for name in word:gmatch('[^ ,]+') do names[#names + 1] = name end
  end
  lu.assertTrue(#names > 100, tostring(#names))
  for columns = 40, 200, 4 do
    for _, lines in ipairs { false, columns < 80 and 24 or nil } do
      local text = map_at(columns, lines or nil)
      local found = {}
      for word in text:gmatch('[^%s,]+') do found[word] = true end
      for _, name in ipairs(names) do lu.assertTrue(found[name], ('%s at %d columns'):format(name, columns)) end
      for line in text:gmatch('[^\n]+') do lu.assertTrue(utf8.len(line) < columns, line) end
    end
  end
  lu.assertEquals(help.text(kv), help.text())
  lu.assertEquals(help.text(nil), help.text())
end

function TestText:test_map_fits_a_screen()
  for _, size in ipairs { { 80, 24 }, { 80, 30 }, { 100, 24 }, { 120, 30 }, { 200, 24 }, { 80, 50 } } do
    local text, whole = map_at(size[1], size[2]), map_at(size[1])
    local function lines(page) return select(2, page:gsub('\n', '')) + 1 end
    lu.assertTrue(lines(text) < size[2], ('%d lines at %dx%d'):format(lines(text), size[1], size[2]))
    if lines(whole) < size[2] then lu.assertEquals(text, whole) else lu.assertStrMatches(text, '.* %.%.%. %d+ more\n.*') end
    for _, word in ipairs { 'json', 'v4.1-flash', 'KV cache', 'cache mla rope', 'kv layout records' } do
      lu.assertStrContains(text, word)
    end
  end
end

function TestText:test_every_word_of_the_map_has_a_page()
  for word in help.text():gmatch('\n  (%l+) ') do lu.assertNil(help.text(word):find '^Nothing ', word) end
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

-- What a word of the map, a term, an error, a record, a subcommand says.
function TestText:test_everything_else_that_has_a_page()
  local cases = {
    { 'tensors', 'tensors\n  tensor(' }, { 'objects', '  Layout  ' }, { 'shell', '  measure  ' }, { 'errors', 'do not broadcast' },
    { 'glossary', '  KV cache  ' }, { 'sink', 'sink, attention sink\n  A value that each head adds' },
    { 'ATTENTION SINK', 'sink, attention sink' }, { 'v4-main', 'record v4-main\n' }, { 'record F32', 'record f32\n' },
    { 'v2', 'preset v2: DeepSeek-V2\n' }, { 'kvlab kv', 'kvlab kv LAYOUT... [OPTIONS]' }, { 'bench', 'kvlab bench' },
    { 'measure', "kv.measure(layout, options) -> table\n" }, { 'measure', "help 'kvlab measure'" },
    { kv.record_named 'bf16', 'record bf16\n' }, { kv.csa, 'kv.csa: Layer\n' }, { kv.zeros(2), 'Tensor\n' },
    { kv.csa { window = 7 }, 'csa{window=7}, of the kind\nkv.csa: Layer\n' }, { kv.layout 'swa', 'Layout\n' },
    { kv.zeros(2).topk, 'Tensor:topk(' }, { print, "print is Lua's own" }, { string.rep, "string.rep is Lua's own" },
    { "input:1: attempt to call a nil value (global 'x')", 'error: attempt to call a nil value\n' },
    { 'answer', 'lesson(name), answer(x), and the words next' }, { 'next', '  next   the next step' },
    { 'lesson', "help 'kvlab lesson'" }, { 'csa', "help 'lesson csa'" }, { 'lesson csa', "lesson 'csa'" }, { 'lessons', '  csa2  ' },
    { 'cat: something of its own', 'This message comes from kv.cat:\nkv.cat(' },
    { 'neither a name nor a message of kvlab', 'Nothing more is known about this text.' },
    { 'turned back', "Nothing is called 'turned back'" }, { 'a\27[2Jb', "Nothing is called 'a\\27[2Jb'" },
    { 'renormal', "Nothing is called 'renormal'" }, { '', "Nothing is called ''" },
  }
  for _, case in ipairs(cases) do lu.assertStrContains(help.text(case[1]), case[2]) end
  local own = kv.record { name = 'own', fields = { { channels = 'rest', number = 'bf16' } } }
  lu.assertStrContains(help.text(own), 'record own\n  A record of your own.')
  lu.assertStrContains(help.text 'bounded by what', 'Nothing')
end

function TestText:test_values_that_pretend()
  for _, name in ipairs { 'kvlab.Record', 'kvlab.Layer', 'kvlab.Tensor', 'kvlab.Nothing', 'x' } do
    local text = help.text(setmetatable({}, { __name = name, __index = function() error 'looked' end }))
    lu.assertTrue(#text > 0)
  end
  lu.assertStrContains(help.text(0 / 0), 'There is no help for this number')
  lu.assertStrContains(help.text(coroutine.create(print)), 'There is no help for this thread')
end

-- Every name that TAB offers after help is explained, and every kind of layer.
function TestText:test_every_name_has_a_page()
  for _, name in ipairs(help.names()) do lu.assertNil(help.text(name):find '^Nothing ', name) end
end

function TestText:test_narrow_terminals()
  for _, name in ipairs { 'kv.measure', 'sink', 'kvlab kv', 'tensors', 'v4-main' } do
    local code, out = check.sh(("COLUMNS=40 lua5.4 -e 'require(\"kvlab\").help(%q)'"):format(name))
    lu.assertEquals(code, 0)
    for line in out:gmatch('[^\n]+') do
      -- An example is to be copied, so it stays one line.
      if not line:find('%-%->') then lu.assertTrue(#line <= 40, line) end
    end
  end
end

function TestText:test_prints()
  local code, out = check.sh([[lua5.4 -e 'require("kvlab").help("json.decode")']])
  lu.assertEquals(code, 0)
  lu.assertStrContains(out, 'kv.json.decode(text) -> any\n')
end

check.main()
