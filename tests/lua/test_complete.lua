-- What TAB offers, and the hints of the prompt.
local lu = require 'luaunit'
local check = require 'check'
local complete = require 'kvlab.complete'
local hint = require 'kvlab.hint'
local kv = require 'kvlab'
local repl = require 'kvlab.repl'

local env = repl.environment(kv)

-- The names for the end of a line, cut as readline cuts it, and what ends a single one.
local function names(line)
  local quotes = 0
  for _ in line:gmatch('[\'"]') do quotes = quotes + 1 end
  local word = quotes % 2 == 1 and line:match('[^\'"/]*$') or line:match('[^%s"\'`@$><=;|&{}()%[%]+*/%%,~#^.:-]*$')
  local list, ending = complete.names(line, word, env, kv)
  return table.concat(list, ' '), ending
end

TestComplete = {}

function TestComplete:test_fields_and_methods()
  local called = false
  local class = { plan = function() end, size = 3, other = function() end }
  local object = setmetatable({ own = 1 }, { __index = class })
  env.record_, env.lazy = object, setmetatable({}, { __index = function() called = true end })
  env.text, env.t, env.L = 'abc', kv.zeros(2), kv.preset 'v2'
  lu.assertEquals(names 'kv.json.e', 'encode')
  lu.assertEquals(names 'json.en', 'encode')
  lu.assertEquals(names '2+json.en', 'encode')
  lu.assertEquals(names 'f(kv.js', 'json')
  lu.assertEquals(names 'js', 'json')
  lu.assertEquals(names 'functi', 'function')
  local all = ' ' .. names '' .. ' '
  for _, t in ipairs { kv, _G, env } do
    for name in next, t do lu.assertStrContains(all, ' ' .. name .. ' ') end
  end
  lu.assertStrContains(all, ' and answer ')
  lu.assertEquals(names 'record_.', 'other own plan size')
  lu.assertEquals(names 'record_:', 'other plan')
  lu.assertEquals(names 'text:up', 'upper')
  lu.assertEquals(names 't.sh', 'shape shares')
  lu.assertEquals(names 't:sha', 'shares')
  lu.assertEquals(names 'L.w', 'warnings widths window with')
  lu.assertEquals(names 'L:ow', 'owner')
  lu.assertEquals(names 'kv.csa.ra', 'ratio')
  lu.assertEquals(names 'lazy.field.x', '')
  lu.assertEquals(names 'nosuch.x', '')
  lu.assertEquals(names 'record_.size.x', '')
  lu.assertEquals(names 'f().x', '') -- what only a call would give
  lu.assertEquals(names 'L[1].ki', '')
  lu.assertEquals(names 'record_...o', '')
  lu.assertEquals(names '1 .. "a".x', '')
  lu.assertEquals(names 'text..jso', 'json')
  env.layer_ = kv.attention(kv.mha, { hidden_size = 4, num_attention_heads = 1, head_dim = 4 })
  lu.assertEquals(names 'layer_:pro', 'probabilities') -- not project, which modules of the library call
  lu.assertFalse(called)
  env.t:free()
  env.layer_ = nil
end

function TestComplete:test_strings()
  local cases = {
    { "kv.preset 'v4.", "v4.1-flash", "'" }, { 'preset("v2', 'v2 v2-lite', '' }, { 'record_named "v4.1-m', 'v4.1-main', '"' },
    { "{ records = 'mla", 'mla-bf16', "'" }, { "{ main = 'mla", 'mla-bf16', "'" }, { "number = 'e5", 'e5m2', "'" },
    { "require 'kvlab.jso", 'kvlab.json', "'" }, { "require 'kvlab.commands.m", 'kvlab.commands.measure', "'" },
    { "kv.layout 'swa*2 [ful", 'swa*2 [full', '' }, { "help 'Tensor:topk", 'Tensor:topk', "'" },
    { "lesson 'csa2", 'csa2', "'" }, { "require 'kvlab.lesso", 'kvlab.lesson kvlab.lessons kvlab.lessons.', '' },
    { "help 'attention si", 'attention sink', "'" }, { "x = 'it\\'s ", '', '' },
  }
  for _, case in ipairs(cases) do
    local list, ending = names(case[1])
    lu.assertEquals({ case[1], list, ending }, case)
  end
end

function TestComplete:test_files()
  local dir = os.tmpname()
  os.remove(dir)
  os.execute(('mkdir %s && mkdir %s/folder && touch "%s/a file.lua" %s/other %s/.hidden'):format(dir, dir, dir, dir, dir))
  local function at(text)
    local list, ending = names("dofile '" .. dir .. '/' .. text)
    return { list, ending }
  end
  lu.assertEquals(at '', { 'a file.lua folder/ other', '' })
  lu.assertEquals(at 'fol', { 'folder/', '' }) -- goes on
  lu.assertEquals(at 'a f', { 'a file.lua', "'" })
  lu.assertEquals(at '.', { '.hidden', "'" })
  lu.assertEquals(at 'nosuch/x', { '', '' })
  os.execute('rm -r ' .. dir)
end

TestHint = {}

function TestHint:test_locals()
  local cases = { { 'local x = 3', 'x' }, { 'local x, y <const> = 1, 2', 'x y' }, { 'local x = 3 print(x)', '' },
    { 'local x = 3; y = 4', 'x' }, { 'local n = n + 1', '' }, { 'local function f(n) return n * f(n - 1) end', 'f' },
    { 'local function f() end f()', '' }, { 'localx = 2', '' }, { 'x = 3', '' }, { 'local t = { x = 1 }', 't' },
    { '  local x', 'x' }, { 'do local x = 1 end', '' } }
  for _, case in ipairs(cases) do
    lu.assertEquals(table.concat(hint.locals(case[1]), ' '), case[2], case[1])
  end
end

function TestHint:test_nothing_to_say()
  for _, message in ipairs { '', 'boo', "attempt to call a nil value", "attempt to call a table value (global 'laoyut')",
    "a nil value (upvalue 'laoyut')", "a nil value (method 'qqqqqqqq')" } do
    lu.assertNil(hint.after_error(message, 'laoyut()', env, kv, {}))
  end
  for _, code in ipairs { '', '1', 'a b', 'laoyut()', 'qqqqqqqq', 'qqq.www', '.x', 'laoyut.' } do
    lu.assertNil(hint.after_nil(code, env, kv, {}))
  end
end

check.main()
