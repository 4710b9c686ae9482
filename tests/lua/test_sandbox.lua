-- Layout files from strangers: what they can do, what they cannot, and what is said about it.
local lu = require 'luaunit'
local check = require 'check'
local base = require('kvlab.core').base
local sandbox = require 'kvlab.sandbox'

-- A facade with what the real one has: functions, modules (plain tables), immutable objects.
local function new_facade()
  local swa = setmetatable({}, {
    __index = { window = 128 },
    __newindex = function() error('a layer cannot be changed', 2) end,
    __mul = function(_, n) return n end,
  })
  return {
    swa = swa,
    number = { list = { 'bf16' } },
    string = 'hides nothing',
    layout = function(t)
      if not t.name then error('layout: name is missing', 2) end
      return t
    end,
  }
end

local MEMORY = 256 << 20 -- the deepest stack that Lua allows fits in

local function run(text, facade, memory)
  return sandbox.run_text('x.lua', text, facade or new_facade(), { memory = memory or MEMORY })
end

TestSandbox = {}

function TestSandbox:test_results()
  lu.assertEquals({ run 'return 1, "a", nil, 4' }, { 1, 'a', nil, 4 })
  lu.assertEquals(select('#', run 'local x = 1'), 0)
  lu.assertEquals(run 'return swa * 5', 5)
  lu.assertEquals(run [[
    local kv = require 'kvlab'
    return kv.layout { name = 'x' }.name .. kv.swa.window]], 'x128')
  lu.assertEquals(run '#!/usr/bin/env kvlab\nreturn 3', 3)
  lu.assertEquals(run '\xef\xbb\xbfreturn 3', 3)
  lu.assertEquals(run [[
    local out = {}
    for i, name in ipairs { 'b', 'a' } do out[i] = name:upper() end
    table.sort(out)
    local t = setmetatable({}, { __index = function(_, k) return k * 2 end })
    local ok, why = pcall(error, 'caught', 0)
    return table.concat(out) .. math.floor(2.5) .. utf8.len('é') .. t[4] .. tostring(ok) .. why
      .. select(2, xpcall(error, function(e) return e .. '!' end, 'x', 0)) .. rawget({ 5 }, 1)
  ]], 'AB218falsecaughtx!5')
end

function TestSandbox:test_messages()
  local cases = {
    { 'x = = 1', "layout file 'x.lua', line 1: unexpected symbol near '='" },
    { '\n\nerror "boo"', "layout file 'x.lua', line 3: boo" },
    { '\nlocal ok = layout { }\n', "layout file 'x.lua', line 2: layout: name is missing" },
    { '\nlocal a = nil + 1', "layout file 'x.lua', line 2: attempt to perform arithmetic on a nil value" },
    { 'swa.window = 3\n', "layout file 'x.lua', line 1: a layer cannot be changed" },
    { 'error({})\n', "layout file 'x.lua', line 1: the error is a table, not a message" },
    { 'error("a\\27[2Jb", 0)\n', "layout file 'x.lua', line 1: a?[2Jb" },
    { 'local function f() return 1 + f() end\nf()\n', 'stack overflow' },
    { 'return ' .. ('{'):rep(10000), "layout file 'x.lua'" },
    { string.dump(function() end), "layout file 'x.lua' is compiled Lua; only source text is accepted" },
  }
  for _, case in ipairs(cases) do
    check.fails(case[2], run, case[1])
    local _, message = pcall(run, case[1])
    lu.assertNotStrContains(message, '(layout)')
    lu.assertNotStrContains(message, '.lua:')
  end
end

function TestSandbox:test_what_is_not_there()
  for _, name in ipairs { 'os', 'io', 'package', 'debug', 'coroutine', 'load', 'loadstring', 'loadfile',
    'dofile', 'collectgarbage', 'warn', 'string.dump', 'math.random', 'math.randomseed', 'module',
    'arg' } do
    lu.assertNil(run('return ' .. name), name)
  end
  for _, name in ipairs { 'os', 'io', 'kvlab.core', 'kvlab.sandbox', 'ffi' } do
    check.fails("can only require 'kvlab'", run, ('local x = require %q'):format(name))
  end
end

-- Each attack runs, or fails, and afterwards the host is what it was before.
function TestSandbox:test_nothing_of_the_host_changes()
  local facade = new_facade()
  local functions = {}
  for _, name in ipairs { 'string', 'table', 'math', 'utf8', '_G' } do
    functions[name] = {}
    for key, value in pairs(_G[name]) do functions[name][key] = value end
  end
  local attacks = {
    'string.rep = nil string.format = print',
    'table.insert = error math.floor = nil utf8.char = nil',
    '_G.print = nil _G.os = {} pcall = nil',
    'getmetatable("").__index = {}',
    'getmetatable("").__index.rep = nil',
    'setmetatable("", {})',
    'rawset(string, "rep", nil)',
    'require("kvlab").number.list[1] = "evil"',
    'kv.number.list = nil kv.layout = nil',
    'swa.window = 7',
    'rawset(swa, "window", 7)',
    'setmetatable(swa, { __index = { window = 7 } })',
    'getmetatable(swa).__index.window = 7',
    'getmetatable(swa).__newindex = nil swa.window = 7',
    'for k, v in pairs(getmetatable(swa)) do end',
    'table.insert(swa, 1)',
    'setmetatable({}, { __index = swa }).window = 7',
    'setmetatable({}, swa) swa.__index = 7',
    'xpcall(error, function() string.rep = nil end)',
    ('local s = ("").rep for i = 1, 10 do ("").rep = nil end'),
  }
  for _, attack in ipairs(attacks) do
    pcall(run, attack, facade)
    for name, copy in pairs(functions) do
      for key, value in pairs(copy) do
        lu.assertTrue(rawequal(_G[name][key], value), attack .. name .. key)
      end
    end
    lu.assertEquals(('a'):rep(2), 'aa', attack)
    lu.assertEquals(facade.swa.window, 128, attack)
    lu.assertEquals(facade.number.list, { 'bf16' }, attack)
    lu.assertNotNil(facade.layout, attack)
  end
  check.fails('belongs to kvlab', run, 'rawset(swa, "window", 7)\n')
  check.fails('belongs to kvlab', run, 'setmetatable(swa, {})\n')
  check.fails('belongs to kvlab', run, 'next(swa)\n')
  lu.assertNil(run 'return getmetatable("")')
  lu.assertNil(run 'return getmetatable(swa)')
end

function TestSandbox:test_files_do_not_see_each_other()
  run 'x = 1 string.mine = 2 kv.mine = 3'
  lu.assertEquals(run 'return tostring(x) .. tostring(string.mine) .. tostring(kv.mine)', 'nilnilnil')
end

function TestSandbox:test_no_finalizers()
  check.fails('may not use __gc', run, 'setmetatable({}, { __gc = function() while true do end end })\n')
  -- added later it is not noticed by Lua, so it never runs
  run 'local m = {} setmetatable({}, m) m.__gc = function() print("never") end'
  collectgarbage()
end

function TestSandbox:test_memory()
  local facade = new_facade()
  for _, text in ipairs {
    'return ("x"):rep(1000000000)',
    'local t = {} for i = 1, math.huge do t[i] = i end',
    'local t = {} for i = 1, math.huge do t[i] = { t } end',
    'local s = "x" while true do s = s .. s end',
    'local t = {} while true do pcall(function() for i = 1, math.huge do t[#t + 1] = { i } end end) end',
    'local t = {} while true do xpcall(function() while true do t[#t + 1] = { 1 } end end, print) end',
    [[local t = {}
      while true do
        xpcall(pcall, function() return 1 end, function() t[#t + 1] = ("x"):rep(9999) end)
      end]],
    'return "' .. ('x'):rep(20000000) .. '"',
  } do
    check.fails("layout file 'x.lua' needs more than 16 MiB of memory", run, text, facade, 16 << 20)
  end
  check.fails('resulting string too large', run, 'local s = ("x"):rep(100000000000)\n')
  check.fails("unknown option 'memroy'; did you mean 'memory'?",
    sandbox.run_text, 'x', '', {}, { memroy = 1 })
  -- the limit is gone afterwards, and what the file allocated is garbage
  collectgarbage()
  lu.assertTrue(collectgarbage 'count' < 32 * 1024)
  lu.assertEquals(#('x'):rep(100 << 20), 100 << 20)
end

function TestSandbox:test_memory_limit_primitive()
  lu.assertEquals({ base.with_memory_limit(MEMORY, function(...) return ... end, 1, nil, 3) },
    { true, 1, nil, 3 })
  lu.assertEquals({ base.with_memory_limit(MEMORY, error, 'boo', 0) }, { false, 'boo' })
  lu.assertEquals({ base.with_memory_limit(1 << 20, string.rep, 'x', 2 << 20) },
    { false, 'not enough memory' })
  -- the inner limit ends first, the outer one holds again after it
  local function inner() return base.with_memory_limit(1 << 20, string.rep, 'x', 2 << 20) end
  lu.assertEquals({ base.with_memory_limit(MEMORY, inner) }, { true, false, 'not enough memory' })
  local nested = { base.with_memory_limit(1 << 20, base.with_memory_limit, MEMORY, string.rep, 'x', 2 << 20) }
  lu.assertEquals(nested, { true, false, 'not enough memory' })
  for _, bad in ipairs { 0, -1, 1.5, 'x' } do lu.assertFalse((pcall(base.with_memory_limit, bad, print))) end
end

function TestSandbox:test_files()
  local path = check.write('return 5')
  lu.assertEquals(sandbox.run(path, {}), 5)
  local bad = check.write('\nx = = 1')
  check.fails(("layout file '%s', line 2: unexpected symbol"):format(bad), sandbox.run, bad, {})
  local empty = check.write('')
  lu.assertEquals(select('#', sandbox.run(empty, {})), 0)
  check.fails("layout file '/nosuch/x.lua': No such file or directory", sandbox.run, '/nosuch/x.lua', {})
  check.fails(": Is a directory", sandbox.run, '/tmp', {})
  check.fails("layout file '/dev/zero' is larger than 16 MiB", sandbox.run, '/dev/zero', {})
  for _, name in ipairs { path, bad, empty } do os.remove(name) end
end

function TestSandbox:test_print_goes_to_stderr()
  local launcher = check.write([[require('kvlab.sandbox').run_text('x', 'print(1, nil, "\\27[2J")', {})]])
  local code, out, err = check.sh('lua5.4 ' .. launcher)
  os.remove(launcher)
  lu.assertEquals({ code, out, err }, { 0, '', '1\tnil\t?[2J\n' })
end

-- An endless loop in a process of its own that gets SIGINT: it must say "interrupted" and go on to the end.
function TestSandbox:test_interrupt()
  for _, text in ipairs {
    'while true do end',
    'local function f() return f() end f()',
    'while true do pcall(function() while true do end end) end',
    'while true do pcall(pcall, function() while true do end end) end',
    'while true do xpcall(function() while true do end end, function() return 1 end) end',
    [[while true do
        pcall(function()
          local x <close> = setmetatable({}, { __close = function() error 'hidden' end })
          while true do end
        end)
      end]],
    'table.sort({ 3, 2, 1 }, function() while true do end end)',
    'return setmetatable({}, { __index = function() while true do end end }).x',
    '("x"):gsub("x", function() while true do end end)',
  } do
    local launcher = check.write(([[
      local base = require('kvlab.core').base
      base.catch_interrupts()
      print(pcall(require('kvlab.sandbox').run_text, 'x.lua', %q, {}))
      print(base.clear_interrupt(), 'alive')
    ]]):format(text))
    local code, out = check.sh('timeout --preserve-status -s INT -k 5 0.3 lua5.4 ' .. launcher)
    lu.assertEquals({ code, out }, { 0, 'false\tinterrupted\ntrue\talive\n' }, text)
    os.remove(launcher)
  end
end

check.main()
