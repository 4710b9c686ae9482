-- core.system: processes without a shell, files that are whole, and arguments that make no sense.
local lu = require 'luaunit'
local check = require 'check'
local core = require 'kvlab.core'

local system = core.system
local environment = system.environment()

local function ended(process)
  local stop = core.base.now() + 10
  while true do
    local kind, code = process:poll()
    if kind then return kind, code end
    assert(core.base.now() < stop, 'the process did not end')
    system.sleep(0.005)
  end
end

TestProcess = {}

function TestProcess:test_exec()
  local script = check.write([[
    local system = require('kvlab.core').system
    print(system.exec({ '/nowhere/program' }, {}), os.getenv 'A')
    io.stdout:flush()
    system.exec({ 'sh', '-c', 'echo "$1 $A"; exit 3', 'x', "it's" }, { 'A=b c', 'PATH=' .. os.getenv 'PATH' })]])
  local code, out = check.sh('A=mine lua5.4 ' .. script)
  lu.assertEquals(out, "/nowhere/program: No such file or directory\tmine\nit's b c\n")
  lu.assertEquals(code, 3)
  os.remove(script)
  check.fails('name of a program', system.exec, {}, {})
  check.fails('list of strings', system.exec, { 'true', 5 }, {})
end

-- Words that go away while the environment is read are still there for the program.
function TestProcess:test_exec_keeps_its_words()
  local words = { '/nowhere/' .. ('p'):rep(200) }
  local none = setmetatable({}, { __len = function()
    words[1] = nil
    collectgarbage()
    return 0
  end })
  lu.assertStrContains(system.exec(words, none), ': No such file')
end

-- The command never runs with kernels that BLAS took because it does not know the processor; what the user asks for
-- stands.
function TestProcess:test_the_command_picks_kernels()
  local ask = [[scripts/kvlab -e 'local s = require("kvlab.core").system print(s.blas_core(), s.blas_better_core())']]
  local code, out = check.sh('env -u OPENBLAS_CORETYPE ' .. ask)
  lu.assertEquals(code, 0)
  lu.assertStrMatches(out, '%S+\tnil\n')
  local _, asked = check.sh('OPENBLAS_CORETYPE=Prescott ' .. ask)
  if asked:find '^Prescott' then lu.assertStrMatches(asked, 'Prescott\t%S+\n') end
end

function TestProcess:test_how_it_ended()
  for command, want in pairs { ['exit 0'] = { 'exit', 0 }, ['exit 7'] = { 'exit', 7 },
    ['kill -9 $$'] = { 'signal', 9 }, ['kill -15 $$'] = { 'signal', 15 } } do
    local p <close> = system.spawn({ 'sh', '-c', command }, environment)
    lu.assertEquals({ ended(p) }, want, command)
    lu.assertEquals({ p:poll() }, want) -- and stays so
    lu.assertEquals(p:pid(), 0)
    p:signal(9) -- nobody any more
  end
end

function TestProcess:test_words_environment_and_output()
  local out = os.tmpname()
  for _ = 1, 2 do -- the second is appended
    local p <close> = system.spawn({ 'sh', '-c', 'echo "$1 $A"; echo problem >&2; cat', 'x', "it's; $(id)" },
      { 'A=1 2', 'PATH=' .. os.getenv 'PATH' }, out)
    ended(p)
  end
  local file <close> = io.open(out)
  lu.assertEquals(file:read 'a', ("it's; $(id) 1 2\nproblem\n"):rep(2))
  os.remove(out)
end

function TestProcess:test_what_cannot_be_started()
  local p, why = system.spawn({ '/nowhere/program' }, environment)
  lu.assertNil(p)
  lu.assertStrContains(why, '/nowhere/program: No such file')
  p, why = system.spawn({ 'true' }, environment, '/nowhere/out')
  lu.assertNil(p)
  lu.assertStrContains(why, '/nowhere/out')
  check.fails('name of a program', system.spawn, {}, environment)
  check.fails('list of strings', system.spawn, { 'true', 1 }, environment)
  check.fails('list of strings', system.spawn, { 'a\0b' }, environment)
  check.fails('too long', system.spawn, setmetatable({}, { __len = function() return 1 << 40 end }), environment)
  check.fails('SIGTERM', function()
    local q <close> = system.spawn({ 'true' }, environment)
    q:signal(1000)
  end)
  check.fails('kvlab.Process', function()
    local q <close> = system.spawn({ 'true' }, environment)
    q.poll(io.stdout)
  end)
end

-- A process that nobody holds any more is ended, with what it started.
function TestProcess:test_dropped()
  local p = system.spawn({ 'sh', '-c', 'sleep 100 & wait' }, environment)
  local pid = p:pid()
  lu.assertTrue(system.exists(pid))
  p = nil -- luacheck: ignore
  collectgarbage() collectgarbage()
  lu.assertFalse(system.exists(pid))
  p = system.spawn({ 'sh', '-c', 'trap "exit 5" TERM; while :; do sleep 0.01; done' }, environment)
  system.sleep(0.1)
  p:signal(15)
  lu.assertEquals({ ended(p) }, { 'exit', 5 })
  lu.assertEquals(getmetatable(p), 'kvlab.Process')
end

TestFiles = {}

function TestFiles:test_files()
  local path = os.tmpname()
  os.remove(path)
  lu.assertTrue(system.write(path, 'one', true))
  local ok, why = system.write(path, 'two', true)
  lu.assertNil(ok)
  lu.assertStrContains(why, 'File exists')
  lu.assertTrue(system.append(path, '\0two'))
  lu.assertEquals({ system.sha256_file(path) }, { system.sha256 'one\0two', 7 })
  lu.assertEquals(system.stat(path).bytes, 7)
  lu.assertTrue(system.write(path, '3'))
  lu.assertEquals(system.stat(path).bytes, 1)
  lu.assertTrue(system.rename(path, path .. 'x') and system.sync(path .. 'x') and system.sync '/tmp')
  os.execute(('touch -d "2001-01-01" %q'):format(path .. 'x'))
  local before = system.stat(path .. 'x').modified
  lu.assertTrue(system.touch(path .. 'x') and system.stat(path .. 'x').modified > before + 1e6)
  lu.assertEquals(system.realpath '/usr/../', '/')
  os.remove(path .. 'x')
  for _, f in ipairs { system.sync, system.touch, system.stat, system.sha256_file, system.realpath, system.readlink } do
    local result, problem = f('/nowhere/at all')
    lu.assertNil(result)
    lu.assertStrContains(problem, 'No such file')
    check.fails('expected a path', f, '')
    check.fails('expected a path', f, 'a\0b')
  end
  lu.assertNil((system.sha256_file '/'))
  check.fails('seconds', system.sleep, -1)
  check.fails('seconds', system.sleep, 0 / 0)
  check.fails('number of a process', system.exists, -1)
end

check.main()
