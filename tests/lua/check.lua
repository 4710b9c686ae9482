-- check.lua: helpers of the Lua tests. A test file ends with `check.main()`.
local lu = require 'luaunit'
local core = require 'kvlab.core'

local check = {}

-- The root of the project, from the place of this file.
check.root = debug.getinfo(1, 'S').source:match('^@(.*)/tests/lua/check%.lua$') or '.'

-- Runs every Test* table of the calling file. Prints what tests/run.lua reads, fails when nothing ran
-- (a table that is not named Test* runs no test and says OK) and when the core still holds memory.
function check.main()
  local runner = lu.LuaUnit.new()
  runner:setOutputType('text')
  runner:runSuite()
  local result = runner.result
  local passed, failed = result.successCount, result.failureCount + result.errorCount
  if result.selectedCount == 0 then
    io.stderr:write('no test ran: is every table named Test*?\n')
    failed = failed + 1
  end
  collectgarbage() collectgarbage()
  local live = core.base.live_bytes()
  if live ~= 0 then
    io.stderr:write(('the core still holds %d bytes\n'):format(live))
    failed = failed + 1
  end
  print(('%d passed, %d failed, %d skipped'):format(passed, failed, result.skippedCount))
  os.exit(failed == 0, true)
end

-- fails(f, ..., pattern...): f(...) raises an error that contains every one of `parts` (plain text).
function check.fails(parts, f, ...)
  local ok, message = pcall(f, ...)
  lu.assertFalse(ok, 'expected an error, got none')
  if type(parts) == 'string' then parts = { parts } end
  for _, part in ipairs(parts) do
    lu.assertStrContains(tostring(message), part)
  end
  lu.assertNotStrContains(tostring(message), 'stack traceback')
end

-- sh(command) -> exit code, stdout, stderr. The command runs in the root of the project.
function check.sh(command)
  local err = os.tmpname()
  local pipe = io.popen(('cd %q && { %s ; } 2>%s'):format(check.root, command, err))
  local out = pipe:read('a')
  local _, _, code = pipe:close()
  local file <close> = io.open(err)
  local text = file:read('a')
  os.remove(err)
  return code, out, text
end

-- write(text) -> the name of a temporary file with that text; the test removes it.
function check.write(text, suffix)
  local base = os.tmpname()
  local name = base .. (suffix or '')
  if suffix then os.remove(base) end
  local file <close> = assert(io.open(name, 'wb'))
  file:write(text)
  return name
end

-- folder() -> a temporary folder, and a function that gives the next name in it, with a suffix. The test removes it.
function check.folder()
  local root, count = check.write(''), 0
  os.remove(root)
  core.base.make_dir(root)
  return root, function(suffix)
    count = count + 1
    return ('%s/%d%s'):format(root, count, suffix or '')
  end
end

-- put(path, text) -> path; mode 'ab' appends.
function check.put(path, text, mode)
  local file <close> = assert(io.open(path, mode or 'wb'))
  file:write(text)
  return path
end

-- text_of(path, missing) -> what is in the file; without a file `missing`, or an error.
function check.text_of(path, missing)
  local file <close>, problem = io.open(path, 'rb')
  if not file then return missing or error(problem, 2) end
  return file:read('a')
end

-- wait_for(what, f): until f() is true, for 20 seconds.
function check.wait_for(what, f)
  local stop = core.base.now() + 20
  while not f() do
    if core.base.now() > stop then error('waited in vain for ' .. what, 2) end
    core.system.sleep(0.005)
  end
end

return check
