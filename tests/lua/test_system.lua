-- core.base: directories, input and interrupts as front ends use them. (test_repl drives real terminals.)
local lu = require 'luaunit'
local check = require 'check'
local base = require('kvlab.core').base

TestSystem = {}

function TestSystem:test_directories()
  local dir = os.tmpname()
  os.remove(dir)
  lu.assertTrue(base.make_dir(dir))
  lu.assertTrue(base.make_dir(dir)) -- it is there already
  lu.assertEquals(base.list_dir(dir), {})
  for _, name in ipairs { 'b', 'a', '.hidden' } do io.open(dir .. '/' .. name, 'w'):close() end
  local names = base.list_dir(dir)
  table.sort(names)
  lu.assertEquals(names, { '.hidden', 'a', 'b' })
  local nothing, why = base.list_dir(dir .. '/a')
  lu.assertNil(nothing)
  lu.assertStrContains(why, dir .. '/a: Not a directory')
  nothing, why = base.make_dir(dir .. '/a')
  lu.assertNil(nothing)
  lu.assertStrContains(why, dir .. '/a: File exists')
  os.execute('rm -r ' .. dir)
  nothing, why = base.list_dir(dir)
  lu.assertNil(nothing)
  lu.assertStrContains(why, 'No such file or directory')
  lu.assertFalse((pcall(base.list_dir)))
end

function TestSystem:test_wait_input_sees_input_and_its_end()
  local script = check.write([[
    local base = require('kvlab.core').base
    print(base.wait_input(), io.read('l'), base.wait_input(), (io.read('l')))]])
  local _, out = check.sh('echo line | lua5.4 ' .. script)
  lu.assertEquals(out, 'ready\tline\tready\tnil\n')
  _, out = check.sh('lua5.4 ' .. script .. ' <&-')
  lu.assertEquals(out, 'ready\tnil\tready\tnil\n')
  os.remove(script)
end

function TestSystem:test_interruptible_is_pcall()
  lu.assertEquals({ base.interruptible(function(...) return ... end, 1, nil, 3) }, { true, 1, nil, 3 })
  lu.assertEquals({ base.interruptible(error, 'boo', 0) }, { false, 'boo' })
  lu.assertFalse((pcall(base.interruptible)))
end

-- Runs `text` in a process that gets SIGINT every 0.2 seconds, three times.
local function interrupted(text)
  local script = check.write("local base = require('kvlab.core').base\n" .. text)
  local code, out = check.sh(([[{
    lua5.4 %s & for i in 1 2 3; do sleep 0.2; kill -INT $! 2>/dev/null; done; wait $!; }]]):format(script))
  os.remove(script)
  return code, out
end

function TestSystem:test_interrupts_only_inside()
  -- The first signal comes outside: it waits; the loop inside is hit at once, then by the second.
  local code, out = interrupted [[
    base.catch_interrupts(false)
    local start = base.now()
    while not base.interrupted() do end
    print(base.interruptible(function() while true do end end))
    print(base.clear_interrupt(), base.clear_interrupt())
    print(base.interruptible(function() while true do end end))
    while base.now() - start < 0.8 do end
    print('alive', base.clear_interrupt())
  ]]
  lu.assertEquals({ code, out },
    { 0, 'false\tinterrupted\ntrue\tfalse\nfalse\tinterrupted\nalive\ttrue\n' })
end

function TestSystem:test_interrupts_everywhere()
  local code, out = interrupted [[
    base.catch_interrupts()
    base.catch_interrupts()
    collectgarbage()
    for i = 1, 3 do print(pcall(function() while true do end end)) end
  ]]
  lu.assertEquals({ code, out }, { 0, ('false\tinterrupted\n'):rep(3) })
end

-- What is held hears of a signal afterwards, in Lua and in kernels; what is let through meanwhile at once.
function TestSystem:test_interrupts_can_be_held()
  local script = check.write [[
    local base, kv = require('kvlab.core').base, require 'kvlab'
    local pid, x = require('kvlab.core').system.pid(), kv.ones(8, 8)
    local function signal() io.popen('kill -INT ' .. pid):close() end
    base.catch_interrupts()
    print(pcall(function()
      do
        local held <close> = base.hold_interrupts(true)
        do
          local inner <close> = base.hold_interrupts(true)
          signal()
          x:matmul(x):free()
        end
        print('held', base.interrupted())
        for _ = 1, 2 do -- one that came before, one that comes now
          print(pcall(function()
            local open <close> = base.hold_interrupts(false)
            signal()
            print 'not reached'
          end))
        end
        signal()
        for _ = 1, 1000 do x:matmul(x):free() end
        print 'still held'
      end
      print 'not reached'
    end))
    print(pcall(function()
      signal()
      print 'not reached'
    end))
  ]]
  local code, out = check.sh('lua5.4 ' .. script)
  os.remove(script)
  lu.assertEquals(code, 0)
  lu.assertEquals(out, 'held\ttrue\n' .. ('false\tinterrupted\n'):rep(2) .. 'still held\n'
    .. ('false\tinterrupted\n'):rep(2))
end

-- A limit of one's own counts all that the core hands out, however small.
function TestSystem:test_limit_of_memory()
  local kv = require 'kvlab'
  base.limit_memory(1 << 20)
  lu.assertEquals(base.memory_limit(), 1 << 20)
  local list = {}
  local ok, problem = pcall(function()
    for i = 1, 1000 do list[i] = kv.zeros(1024) end
  end)
  base.limit_memory(0)
  lu.assertFalse(ok)
  lu.assertStrContains(problem, 'the limit is')
  lu.assertTrue(#list > 240 and #list <= 256)
  for _, t in ipairs(list) do t:free() end
  lu.assertTrue(base.memory_limit() > 1 << 20)
  lu.assertFalse((pcall(base.limit_memory, -1)))
end

function TestSystem:test_interrupts_reach_watched_coroutines()
  local code, out = interrupted [[
    base.catch_interrupts(false)
    print(base.interruptible(function()
      local thread = coroutine.create(function()
        coroutine.wrap(function() while true do end end)() -- inherits
      end)
      base.watch(thread)
      print(coroutine.resume(thread))
      return 'not reached'
    end))
  ]]
  lu.assertEquals(code, 0)
  lu.assertEquals(out, 'false\tinterrupted\n')
end

-- A call into C that never looks: the user is told, and the next Ctrl-C ends the process.
function TestSystem:test_the_last_way_out()
  local script = check.write([[
    require('kvlab.core').base.catch_interrupts()
    string.find(('a'):rep(40), ('a-'):rep(30) .. 'b')]])
  local code, _, err = check.sh(([[{
    lua5.4 %s & for t in 0.2 1 3.2 0.2; do sleep $t; kill -INT $!; done; wait $!; }]]):format(script))
  os.remove(script)
  lu.assertEquals(code, 130)
  lu.assertStrContains(err, 'this operation cannot be interrupted; Ctrl-C once more ends the process')
end

check.main()
