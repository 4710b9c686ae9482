-- run.lua: every test of the project, each file in a process of its own.
--   lua5.4 tests/run.lua [--build DIR] [--only PATTERN]
-- The last line is `N passed, N failed`; the exit status is 0 only when nothing failed.
local root = arg[0]:match('^(.*)/tests/run%.lua$') or '.'
local build, only = root .. '/build', nil
local index = 1
while arg[index] do
  if arg[index] == '--build' then build = arg[index + 1]
  elseif arg[index] == '--only' then only = arg[index + 1]
  else io.stderr:write(('run.lua: unknown option %s\n'):format(arg[index])) os.exit(2) end
  index = index + 2
end

local function quote(text) return "'" .. text:gsub("'", [['\'']]) .. "'" end

local function list(command)
  local names = {}
  for line in io.popen(command):lines() do names[#names + 1] = line end
  return names
end

-- With a sanitizer in the module, the plain interpreter has to load its run-time first.
local preload = ''
local module <close> = assert(io.open(build .. '/lib/kvlab/core.so', 'rb'),
  'the module is not built: run scripts/setup first')
if module:read('a'):find('__asan_init', 1, true) then
  local lib = io.popen('gcc -print-file-name=libasan.so'):read('l')
  preload = ('LD_PRELOAD=%s ASAN_OPTIONS=detect_leaks=1 '):format(quote(lib))
end

-- Threads that wait do so asleep: tests run beside other work, and spinning would take ten times as long.
local env = ('%sOPENBLAS_NUM_THREADS=1 OMP_WAIT_POLICY=passive KVLAB_BUILD=%s LUA_PATH=%s LUA_CPATH=%s '):format('',
  quote(build),
  quote(('%s/lua/?.lua;%s/lua/?/init.lua;%s/tests/lua/?.lua;;'):format(root, root, root)),
  quote(build .. '/lib/?.so;;'))

-- As the command does: BLAS that does not know the processor takes its slowest kernels.
if not os.getenv('OPENBLAS_CORETYPE') then
  local pipe = io.popen(env .. [[lua5.4 -e 'print(require("kvlab.core").system.blas_better_core() or "")' 2>/dev/null]])
  local better = pipe:read('l') or ''
  pipe:close()
  if better ~= '' then env = env .. 'OPENBLAS_CORETYPE=' .. better .. ' ' end
end

local passed, failed, broken = 0, 0, {}
local function run(name, command)
  if only and not name:find(only, 1, true) then return end
  io.write('== ', name, '\n') io.flush()
  local pipe = io.popen(command .. ' 2>&1')
  local last = ''
  local output = {}
  for line in pipe:lines() do
    if line ~= '' then last = line end
    output[#output + 1] = line
  end
  local ok = pipe:close()
  local good, bad = last:match('^(%d+) passed, (%d+) failed')
  good, bad = tonumber(good or 0), tonumber(bad or 0)
  if not ok and bad == 0 then bad = 1 end -- it crashed, or never came to its last line
  if ok and good == 0 and bad == 0 then bad = 1 end
  io.write(bad > 0 and table.concat(output, '\n') .. '\n' or last .. '\n')
  passed, failed = passed + good, failed + bad
  if bad > 0 then broken[#broken + 1] = name end
end

for _, file in ipairs(list('ls ' .. quote(build) .. '/tests/test_* 2>/dev/null')) do
  run('c/' .. file:match('[^/]+$'), quote(file))
end
for _, file in ipairs(list('ls ' .. quote(root) .. '/tests/lua/test_*.lua 2>/dev/null')) do
  run('lua/' .. file:match('([^/]+)%.lua$'), env .. preload .. 'lua5.4 ' .. quote(file))
end

for _, name in ipairs(broken) do io.write('failed: ', name, '\n') end
if passed + failed == 0 then
  io.write('no test matched\n')
  failed = 1
end
io.write(('%d passed, %d failed\n'):format(passed, failed))
os.exit(failed == 0)
