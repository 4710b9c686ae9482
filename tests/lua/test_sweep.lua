-- Sweeps as processes: what is run once, what fails, what is killed, what others do, and what the report makes of it.
local lu = require 'luaunit'
local check = require 'check'
local core = require 'kvlab.core'
local kv = require 'kvlab'

local root, fresh = check.folder()
local put, text_of, wait_for = check.put, check.text_of, check.wait_for

-- A sweep file: `body` is that of its point, with run, c (the settings), LOG (a path) and sleep.
local function file_of(fields, body)
  local log = fresh('.log')
  put(log, '')
  return put(fresh('.lua'), ([[
    local LOG = %q
    local sleep = require 'kvlab.core'.system.sleep
    local function note(text)
      local file <close> = io.open(LOG, 'a')
      file:write(text, '\n')
    end
    return { %s, point = function(run)
      local c = run.config
      %s
    end }]]):format(log, fields, body)), log
end

local function sweep(words) return check.sh('scripts/kvlab sweep ' .. words .. ' </dev/null') end
local function good(words)
  local code, out, err = sweep(words)
  lu.assertEquals(code, 0, out .. err)
  return out
end
local function json(words) return kv.json.decode((select(2, sweep(words .. ' --json')))) end
local function report(words)
  local code, out, err = check.sh('scripts/kvlab report ' .. words)
  lu.assertEquals(code, 0, err)
  return out, err
end
local function lines(path)
  local list = {}
  for line in io.lines(path) do list[#list + 1] = line end
  return list
end

-- --- points -----------------------------------------------------------------------------------------------
TestPoints = {}

local function points(t, options)
  t.name, t.point = 'test', print
  return kv.sweep.points(t, options)
end
local function labels(t, options)
  local out = {}
  for i, point in ipairs((points(t, options))) do out[i] = point.label end
  return out
end

function TestPoints:test_what_varies()
  lu.assertEquals(labels { vary = { b = { 1, 2 }, a = { 'x', 'y' } } }, { 'a=x b=1', 'a=x b=2', 'a=y b=1', 'a=y b=2' })
  lu.assertEquals(labels { vary = { { a = 1 }, { b = 2 }, kv.sweep.grid { a = { 3, 4 } } }, fixed = { c = 0 } },
    { 'a=1 b=nil', 'a=nil b=2', 'a=3 b=nil', 'a=4 b=nil' })
  lu.assertEquals(labels { vary = coroutine.wrap(function()
    for n = 1, 3 do coroutine.yield { layout = kv.layout { kv.full, kv.reuse * n } } end
  end) }, { 'layout=[full/1 reuse]', 'layout=[full/1 reuse*2]', 'layout=[full/1 reuse*3]' })
  lu.assertEquals(labels { seeds = { 7, 9 } }, { 'seed=7', 'seed=9' })
  lu.assertEquals(#points { vary = { a = { 1, 1.0, 2 } }, seeds = 2 }, 4) -- the same point stands once
  lu.assertEquals(labels {}, { 'test' })
end

function TestPoints:test_draws()
  local spec = { rate = { from = 1e-4, to = 1e-1, log = true }, n = { from = 1, to = 3, whole = true },
    kind = { 'a', 'b' } }
  local seen, low = {}, 0
  for point in kv.sweep.draws(400, 5, spec) do
    lu.assertTrue(point.rate >= 1e-4 and point.rate <= 1e-1)
    seen[point.kind] = (seen[point.kind] or 0) + 1
    seen[point.n] = (seen[point.n] or 0) + 1
    low = low + (point.rate < 1e-3 and 1 or 0)
  end
  lu.assertTrue(seen.a > 150 and seen.b > 150 and seen[1] > 50 and seen[2] > 150 and seen[3] > 50)
  lu.assertTrue(low > 90 and low < 180) -- a third of the decades
  local one, two = points { vary = kv.sweep.draws(9, 1, spec) }, points { vary = kv.sweep.draws(9, 1, spec) }
  lu.assertEquals(one, two)
  lu.assertNotEquals(points { vary = kv.sweep.draws(9, 2, spec) }, one)
end

function TestPoints:test_set_and_only()
  local t = { vary = { a = { 1, 2 }, b = { 'x', 'y' } }, fixed = { o = { lr = 1 } }, seeds = 2 }
  lu.assertEquals(#points(t, { set = { 'a=5' } }), 4)
  lu.assertEquals(points(t, { set = { 'o.lr=0.5' } })[1].config.o.lr, 0.5)
  lu.assertEquals(points(t, { set = { 'seed=9' } })[1].config.seed, 9)
  lu.assertEquals(labels(t, { only = 'a=2*seed=1' }), { 'a=2 b=x seed=1', 'a=2 b=y seed=1' })
  local id = points(t)[3].id
  lu.assertEquals(points(t, { only = id:sub(1, 9) })[1].id, id)
  check.fails({ "'c'", 'expected a, b' }, points, t, { set = { 'c=1' } })
  check.fails('KEY=VALUE', points, t, { set = { 'c' } })
end

-- Settings inside tables, by themselves.
function TestPoints:test_settings_in_tables()
  local list, keys = points { fixed = { o = { lr = 1, b = 2 }, ['o.decay'] = 3 },
    vary = { ['o.lr'] = { 5, 6 }, a = { { x = 1, y = { 7 } }, { x = 2, y = { 7 } } } } }
  lu.assertEquals(keys, { 'a.x', 'o.lr' })
  lu.assertEquals({ list[1].label, list[1].config.o }, { 'a.x=1 o.lr=5', { lr = 5, b = 2, decay = 3 } })
  lu.assertEquals(list[4].label, 'a.x=2 o.lr=6')
  check.fails({ "'o'", 'no table' }, points, { fixed = { o = 1 }, vary = { ['o.lr'] = { 1 } } })
  check.fails({ 'point 2', "'b'" }, points, { defaults = { o = { a = 1 } }, vary = { { ['o.a'] = 1 }, { ['o.b'] = 1 } } })
end

function TestPoints:test_mistakes()
  check.fails({ "'widht'", "did you mean 'width'" }, points, { defaults = { width = 1 }, vary = { widht = { 1 } } })
  check.fails({ "'vari'", "did you mean 'vary'" }, points, { vari = {} })
  check.fails({ 'after 2 points', 'oh no' }, points, { vary = coroutine.wrap(function()
    coroutine.yield { a = 1 }
    coroutine.yield { a = 2 }
    error 'oh no'
  end) })
  check.fails('a list of values', points, { vary = { a = 3 } })
  check.fails('expected a list of values', points, { vary = { layout = kv.layout 'swa' } })
  check.fails({ 'a.f', 'function' }, points, { vary = { { a = { f = print } } } })
  check.fails('seeds', points, { seeds = 0 })
  check.fails('point is missing', kv.sweep.points, { name = 'x' })
  check.fails("'no.such.module'", kv.sweep.points, { name = 'x', worker = 'no.such.module' })
end

-- --- running -----------------------------------------------------------------------------------------------
TestSweep = {}

function TestSweep:test_failures_stop_nobody()
  local file = file_of('name = "failing", timeout = 2, vary = { how = { "a", "raise", "nan", "memory", "kill", '
    .. '"segv", "exit", "slow", "z" } }', [[
      local system = require 'kvlab.core'.system
      if c.how == 'raise' then error('no luck', 0) end
      if c.how == 'nan' then for step = 1, 9 do run:log { step = step, loss = step < 5 and 1 or 0 / 0 } end end
      if c.how == 'memory' then require 'kvlab'.zeros(1 << 42) end
      if c.how == 'kill' then os.execute('kill -9 ' .. system.pid()) end
      if c.how == 'segv' then os.execute('kill -11 ' .. system.pid()) sleep(5) end
      if c.how == 'exit' then os.exit(3) end
      if c.how == 'slow' then while true do end end
      return { x = 1 }]])
  local dir = fresh()
  local result = json(('%s --dir %s -j3'):format(file, dir))
  lu.assertEquals({ result.points, result.done, result.failed, result.left }, { 9, 2, 7, 0 })
  local reasons = {}
  for _, one in ipairs(result.failures) do reasons[one.label:match '=(.*)'] = one.reason end
  for how, part in pairs { raise = 'no luck', nan = "'loss' is nan at step 5", memory = 'the limit is',
    kill = 'SIGKILL',
    exit = 'status 3', slow = 'time-out after 2 s' } do
    lu.assertStrContains(reasons[how], part)
  end
  lu.assertTrue(reasons.segv:find 'SIGSEGV' ~= nil or reasons.segv:find 'status' ~= nil) -- a sanitizer exits
  lu.assertStrContains(report(dir), 'no luck')
  lu.assertEquals((sweep(('%s --dir %s'):format(file, dir))), 1)
  -- they are not tried again by themselves, but when asked to
  result = json(('%s --dir %s --retry failed --only raise'):format(file, dir))
  lu.assertEquals({ result.done, result.failed }, { 0, 1 })
  local r = kv.run.open(('%s/%s'):format(dir, result.failures[1].id))
  lu.assertTrue(core.system.stat(r.dir .. '/failed-1.json') ~= nil)
  lu.assertStrContains(text_of(r.dir .. '/output.log'), 'stack traceback')
end

function TestSweep:test_nothing_runs_twice()
  local file, log = file_of('name = "once", vary = { a = { 1, 2, 3 } }, fixed = { b = 1 }',
    'note(c.a .. " " .. c.b) return { x = c.a }')
  local dir = fresh()
  good(('%s --dir %s -j2'):format(file, dir))
  lu.assertStrContains(good(('%s --dir %s -j2'):format(file, dir)), '0 done, 3 done before')
  lu.assertEquals(#lines(log), 3)
  good(('%s --dir %s --set b=2 --only a=2'):format(file, dir))
  local seen = lines(log)
  lu.assertEquals({ #seen, seen[4] }, { 4, '2 2' })
end

-- Workers have one thread each, whatever the environment said before.
function TestSweep:test_environment_of_workers()
  local file, log = file_of('name = "env"', [[
    note(os.getenv 'OPENBLAS_NUM_THREADS' .. os.getenv 'KVLAB_THREADS'
      .. require 'kvlab'.threads() .. os.getenv 'OTHER')
    return {}]])
  local code = check.sh(('OPENBLAS_NUM_THREADS=7 OTHER=x scripts/kvlab sweep %s --dir %s'):format(file, fresh()))
  lu.assertEquals({ code, lines(log) }, { 0, { '111x' } })
end

function TestSweep:test_two_runners_share_a_sweep()
  local file, log = file_of('name = "shared", seeds = 14', 'sleep(0.05) note(c.seed) return { x = c.seed }')
  local dir = fresh()
  local one = ('scripts/kvlab sweep %s --dir %s -j2 >%s 2>&1'):format(file, dir, fresh())
  local other = ('scripts/kvlab sweep %s --dir %s -j2'):format(file, dir)
  local code, out, err = check.sh(('%s & %s; status=$?; wait $!; exit $((status + $?))'):format(one, other))
  lu.assertEquals(code, 0, err)
  local done = math.tointeger(out:match '14 points: (%d+) done')
  lu.assertTrue(done > 0 and done < 14, out)
  local seen = lines(log)
  table.sort(seen, function(a, b) return tonumber(a) < tonumber(b) end)
  local want = {}
  for seed = 1, 14 do want[seed] = tostring(seed) end
  lu.assertEquals(seen, want)
end

-- A point of 12 steps, a checkpoint every third; its sum shows whether a step was lost or counted twice.
local STEPS <const> = [[
  local from = run:resume()
  local sum = from and from.state.sum or 0
  note('start ' .. require 'kvlab.core'.system.pid())
  for step = (from and from.step or 0) + 1, 12 do
    sum = sum + step
    note(step)
    run:log { step = step, sum = sum }
    if step % 3 == 0 then run:checkpoint { step = step, state = { sum = sum } } end
    sleep(PAUSE)
  end
  return { sum = sum }]]
local function stepping(pause) return file_of('name = "steps"', (STEPS:gsub('PAUSE', tostring(pause)))) end

local function the_run(dir)
  for _, name in ipairs(core.base.list_dir(dir)) do
    if name:find '^%x+$' then return kv.run.open(dir .. '/' .. name) end
  end
end

-- The steps after a kill at step `at`: from the last checkpoint on, and the result is that of an undisturbed run.
local function assert_continued(log, dir)
  local attempts = {}
  for _, line in ipairs(lines(log)) do
    if line:find 'start' then attempts[#attempts + 1] = {}
    else table.insert(attempts[#attempts], tonumber(line)) end
  end
  local text = table.concat(lines(log), ' ')
  lu.assertEquals(#attempts, 2, text)
  local reached, from = attempts[1][#attempts[1]], attempts[2][1]
  lu.assertEquals(from % 3, 1, text) -- a checkpoint was at the step before
  lu.assertTrue(reached < 12 and from > 1 and from > reached - 3 and from <= reached + 1, text)
  lu.assertEquals(attempts[2][#attempts[2]], 12, text)
  local how, about = the_run(dir):status()
  lu.assertEquals({ how, about.metrics.sum }, { 'done', 78 })
  lu.assertEquals(#the_run(dir):metrics(), 12)
end

-- The process that last began the steps.
local function worker_pid(log)
  local pid
  for _, line in ipairs(lines(log)) do pid = line:match 'start (%d+)' or pid end
  return pid
end

function TestSweep:test_kill_a_worker()
  local file, log = stepping(0.03)
  local dir = fresh()
  local pipe = io.popen(('cd %s && scripts/kvlab sweep %s --dir %s 2>&1'):format(check.root, file, dir))
  wait_for('step 8', function() return #lines(log) >= 8 end)
  os.execute('kill -9 ' .. worker_pid(log))
  lu.assertStrContains(pipe:read 'a', 'SIGKILL')
  pipe:close()
  good(('%s --dir %s --retry failed'):format(file, dir))
  assert_continued(log, dir)
end

function TestSweep:test_kill_the_runner()
  local file, log = stepping(0.03)
  local dir = fresh()
  local pipe = io.popen(('cd %s && { scripts/kvlab sweep %s --dir %s >/dev/null & echo $!; wait; }'):format(check.root,
    file, dir))
  local pid = pipe:read 'l'
  wait_for('step 5', function() return #lines(log) >= 6 end)
  local worker = worker_pid(log)
  os.execute('kill -9 ' .. pid)
  pipe:close()
  wait_for('the end of the worker', function() return not core.system.exists(tonumber(worker)) end)
  lu.assertEquals(the_run(dir):status(), 'stopped')
  good(('%s --dir %s'):format(file, dir))
  assert_continued(log, dir)
end

function TestSweep:test_signals_and_budget_leave_runs_to_be_continued()
  for _, how in ipairs { 'TERM', 'INT', 'worker', 'budget' } do
    local file, log = stepping(how == 'budget' and 0.1 or 0.03)
    local dir = fresh()
    local code
    if how == 'budget' then
      code = sweep(('%s --dir %s --budget 0.01'):format(file, dir))
    else
      -- a background process of a shell without job control ignores SIGINT unless it says otherwise, as kvlab does
      local pipe = io.popen(('cd %s && { scripts/kvlab sweep %s --dir %s >/dev/null & echo $!; wait $!; echo $?; }')
        :format(check.root, file, dir))
      local pid = pipe:read 'l'
      wait_for('step 5', function() return #lines(log) >= 6 end)
      if how == 'worker' then os.execute('kill -TERM ' .. worker_pid(log))
      else os.execute(('kill -%s %s'):format(how, pid)) end
      code = tonumber(pipe:read 'l')
      pipe:close()
    end
    lu.assertEquals(code, ({ TERM = 143, INT = 130, worker = 0, budget = 0 })[how], how)
    lu.assertEquals(the_run(dir):status(), 'stopped', how)
    good(('%s --dir %s'):format(file, dir))
    assert_continued(log, dir)
  end
end

-- A damaged checkpoint in a sweep: the one before is used, and the log says so.
function TestSweep:test_damaged_checkpoint()
  local file, log = stepping(0.03)
  local dir = fresh()
  local pipe = io.popen(('cd %s && scripts/kvlab sweep %s --dir %s 2>&1'):format(check.root, file, dir))
  wait_for('step 8', function() return #lines(log) >= 8 end)
  os.execute('kill -9 ' .. worker_pid(log))
  pipe:close()
  local r = the_run(dir)
  local path = r.dir .. '/checkpoints/step-6-1.json'
  put(path, (text_of(path):gsub('"sum":21', '"sum":22')))
  good(('%s --dir %s --retry failed'):format(file, dir))
  local how, about = r:status()
  lu.assertEquals({ how, about.metrics.sum }, { 'done', 78 })
  lu.assertStrContains(text_of(r.dir .. '/output.log'), 'step-6-1.json is damaged; the checkpoint of step 3 is used')
end

function TestSweep:test_bad_usage()
  local file = file_of('name = "bad", vary = { a = { 1 } }', 'return {}')
  for words, part in pairs { [''] = 'expected one experiment file', ['/nowhere.lua'] = '/nowhere.lua',
    [file .. ' --retry all'] = 'expected failed', [file .. ' --emit pbs'] = 'slurm or list',
    [file .. ' -j 0'] = 'whole number', [file .. ' --budget x'] = 'above 0', [file .. ' --onyl x'] = "'--only'",
    [file .. ' --only zzz'] = 'no point matches', [file .. ' --set b=1'] = "'b'",
    [file .. ' --dir /dev/null/x'] = '/dev/null',
    [put(fresh('.lua'), 'return 3')] = 'returned a number', [put(fresh('.lua'), 'error("mid", 0)')] = 'mid' } do
    local code, out, err = sweep(words)
    lu.assertTrue(code == 1 or code == 2, words)
    lu.assertEquals(out, '', words)
    lu.assertStrContains(err, part)
    lu.assertNotStrContains(err, 'stack traceback')
  end
end

-- A worker is a module: it brings the settings, completes them and does the runs.
function TestSweep:test_worker_modules()
  local name = 'a_worker_of_test_sweep'
  put(('%s/%s.lua'):format(root, name), [[return { defaults = { width = 4, steps = 10, seed = 1 },
    resolve = function(c) c.area = c.width * c.steps return c end,
    point = function(run) run:log { step = 1, x = run.config.area } end }]])
  local file = put(fresh('.lua'), ('return { name = "w", worker = %q, vary = { width = { 2, 3 } } }'):format(name))
  local dir = fresh()
  local front = ('LUA_PATH="%s/?.lua;$LUA_PATH" scripts/kvlab '):format(root)
  local code, out, err = check.sh(front .. ('sweep %s --dir %s'):format(file, dir))
  lu.assertEquals(code, 0, out .. err)
  local rows = kv.json.decode((report(dir .. ' --json'))).rows
  lu.assertEquals({ rows[1].metrics.x.mean, rows[2].metrics.x.mean }, { 20.0, 30.0 })
  local status, _, problem = check.sh(front .. ('sweep %s --dir %s --set step=1'):format(file, dir))
  lu.assertEquals(status, 2)
  lu.assertStrContains(problem, "did you mean 'steps'")
end

function TestSweep:test_run_says_what_a_sweep_file_is()
  local code, _, err = check.sh 'scripts/kvlab run experiments/records/run.lua'
  lu.assertEquals(code, 1)
  lu.assertStrContains(err, 'kvlab sweep')
end

-- --- lists, other schedulers -----------------------------------------------------------------------------------
TestOthers = {}

function TestOthers:test_dry_run()
  local file, log = file_of('name = "dry", fixed = { context = 1024, widths = { sliding_window = 64 } }, '
    .. 'vary = { layout = { "swa*2", "full/2 reuse*3" } }, seeds = 2, estimate = function(c) return 30 * c.seed end',
    'note "ran"')
  local dir = fresh()
  local list = json(('%s --dir %s --dry-run'):format(file, dir)).points
  lu.assertEquals(#list, 4)
  local want = kv.count(kv.layout 'full/2 reuse*3', { context = 1024, widths = { sliding_window = 64 } })
  local one = list[3]
  lu.assertEquals({ one.bytes_per_token, one.read_bytes, one.minutes, one.state },
    { want.store.bytes_per_token:tonumber(), want.read.total_bytes:tonumber(), 0.5, 'new' })
  lu.assertEquals(one.flops, kv.flops(want).decode.plain.total:tonumber())
  local out = good(('%s --dir %s --dry-run -j2'):format(file, dir))
  lu.assertStrContains(out, one.id)
  lu.assertStrContains(out, 'about 1.5 minutes with -j 2')
  lu.assertEquals(lines(log), {})
  lu.assertNil(core.system.stat(dir)) -- nothing was made
end

function TestOthers:test_emit_list()
  local file, log = file_of('name = "listed", vary = { a = { 1, 2 } }, fixed = { b = "x" }',
    'note(c.a .. c.b) return {}')
  local dir = fresh(" with 'quotes'")
  local out = good(('%s --dir "%s" --set "b=y z" --emit list'):format(file, dir))
  lu.assertEquals(select(2, out:gsub('\n', '')), 2)
  local code, _, err = check.sh(('export KVLAB_BUILD=%q; cd / && { %s }'):format(
    core.system.realpath(os.getenv 'KVLAB_BUILD' or 'build'), (out:gsub('\n', ' || exit 1; '))))
  lu.assertEquals(code, 0, err)
  lu.assertEquals(lines(log), { '1y z', '2y z' })
  lu.assertStrContains(good(('%s --dir "%s" --set "b=y z"'):format(file, dir)), '2 done before')
end

-- The script is run as Slurm would run a task of it, with a scontrol that says what it was asked.
function TestOthers:test_emit_slurm()
  local file, log = file_of('name = "array", vary = { a = { 1, 2, 3 } }', [[
    note(c.a)
    if c.a == 3 then for step = 1, 200 do run:log { step = step } sleep(0.05) end end
    return { x = c.a }]])
  local dir = fresh()
  local script = put(fresh('.sh'), good(('%s --dir %s --emit slurm -j 2 --budget 90'):format(file, dir)))
  local text = text_of(script)
  for _, line in ipairs { '#SBATCH --array=0-2%2', '#SBATCH --cpus-per-task=1', '#SBATCH --requeue',
    '#SBATCH --time=90', '#SBATCH --open-mode=append', '#SBATCH --signal=B:USR1@120' } do
    lu.assertStrContains(text, line .. '\n')
  end
  lu.assertEquals((check.sh('sh -n ' .. script)), 0)
  lu.assertEquals((check.sh('SLURM_ARRAY_TASK_ID=1 sh ' .. script)), 0)
  lu.assertEquals(lines(log), { '2' })
  local bin = fresh()
  core.base.make_dir(bin)
  put(bin .. '/scontrol', '#!/bin/sh\necho "$@" >' .. bin .. '/asked\n')
  os.execute(('chmod +x %s/scontrol'):format(bin))
  -- warned of the time limit it is to be queued again; ended by Slurm that is Slurm's business
  for i, how in ipairs { 'TERM', 'USR1' } do
    local pipe = io.popen(('{ PATH=%s:$PATH SLURM_ARRAY_JOB_ID=7 SLURM_ARRAY_TASK_ID=2 sh %s >/dev/null & echo $!; '
      .. 'wait $!; echo $?; }'):format(bin, script))
    local pid = pipe:read 'l'
    wait_for('the task', function() return #lines(log) == i + 1 end)
    lu.assertNil(core.system.stat(bin .. '/asked'))
    os.execute(('kill -%s %s'):format(how, pid))
    lu.assertEquals(pipe:read 'l', '143', how)
    pipe:close()
  end
  lu.assertEquals(text_of(bin .. '/asked'), 'requeue 7_2\n')
  lu.assertStrContains(good(('%s --dir %s --emit slurm --budget 2'):format(file, dir)), '--signal=B:USR1@30\n')
end

-- --- the report ---------------------------------------------------------------------------------------------------
TestReport = {}

function TestReport:test_numbers()
  local file = file_of('name = "rep", vary = { a = { 1, 2 }, layout = { "swa*2", "full/2 reuse*3" } }, seeds = 3, '
    .. 'fixed = { context = 256 }, measure = { "accuracy" }',
    'return { loss = 0.5, accuracy = c.a + c.seed ^ 2 + (c.layout == "swa*2" and 0 or 10) }')
  local dir = fresh()
  good(('%s --dir %s -j4'):format(file, dir))
  local result = kv.json.decode((report(dir .. ' --json')))
  lu.assertEquals(#result.rows, 4)
  local row = result.rows[1] -- a = 1, full/2: accuracies 12, 15, 20
  lu.assertEquals({ row.setting.a, row.setting.layout, row.n }, { 1, 'full/2 reuse*3', 3 })
  lu.assertAlmostEquals(row.metrics.accuracy.mean, 47 / 3, 1e-12)
  lu.assertAlmostEquals(row.metrics.accuracy.sd, math.sqrt((12 ^ 2 + 15 ^ 2 + 20 ^ 2 - 47 ^ 2 / 3) / 2), 1e-12)
  lu.assertEquals(row.metrics.loss.sd, 0.0)
  local want = kv.count(kv.layout 'full/2 reuse*3', { context = 256 })
  lu.assertEquals({ row.bytes_per_token, row.read_bytes },
    { want.store.bytes_per_token:tonumber(), want.read.total_bytes:tonumber() })
  -- swa stores nothing per token, full/2 is better: only a = 2 of each is not beaten
  local front = {}
  for _, one in ipairs(result.rows) do
    if one.pareto then front[#front + 1] = one.setting.layout .. one.setting.a end
  end
  lu.assertEquals({ result.quality, result.better, front }, { 'accuracy', 'more', { 'full/2 reuse*32', 'swa*22' } })
  result = kv.json.decode((report(dir .. ' --json --by a --quality accuracy --better less')))
  lu.assertEquals({ #result.rows, result.rows[2].n, result.rows[2].metrics.accuracy.n }, { 2, 6, 6 })
  -- the same seeds differ by 1 exactly; the noise is that of seeds: 12, 15, 20 in every row
  result = kv.json.decode((report(dir .. ' --json --against "a=1 layout=swa*2"')))
  local difference = result.rows[4].difference
  lu.assertEquals({ difference.mean, difference.sd, difference.n, difference.beyond }, { 1.0, 0.0, 3, false })
  lu.assertAlmostEquals(difference.floor, 2 * row.metrics.accuracy.sd * math.sqrt(2 / 3), 1e-12)
  lu.assertEquals({ result.rows[1].difference.mean, result.rows[1].difference.beyond }, { 10.0, true })
  lu.assertNil(result.rows[2].difference)
  lu.assertStrContains(report(dir .. ' --against "a=1 layout=swa*2"'), '+10 ± 0 > 6.6')
  lu.assertStrContains(report(dir), '15.667 ± 4')
  lu.assertStrContains(report(dir .. ' --md'), '| a=1 layout=[full/2 reuse*3] | 3 | 15.667 ± 4 |')
  local first = report(dir .. ' --csv'):match '[^\n]*\n[^\n]*'
  lu.assertStrContains(first,
    'a,layout,n,accuracy_mean,accuracy_sd,loss_mean,loss_sd,bytes_per_token,read_bytes,seconds')
  lu.assertStrContains(first, '\n1,full/2 reuse*3,3,15.66666666666666')
  for words, part in pairs { [dir .. ' --by aa'] = "'aa'", [dir .. ' --quality acc'] = "'acc'",
    ['/nowhere'] = '/nowhere', [dir .. ' --against swa'] = '2 rows', [dir .. ' --csv --md'] = 'one of' } do
    local code, out, err = check.sh('scripts/kvlab report ' .. words)
    lu.assertTrue(code > 0 and out == '' and err:find(part, 1, true) ~= nil, words .. ': ' .. err)
  end
end

function TestReport:test_while_the_sweep_runs_and_mixed_sources()
  local file, log = file_of('name = "part", vary = { a = { 1, 2 } }', [[
    note(c.a)
    if c.a == 2 then for step = 1, 100 do run:log { step = step, x = step } sleep(0.05) end end
    return { x = c.a }]])
  local dir = fresh()
  local pipe = io.popen(('cd %s && { scripts/kvlab sweep %s --dir %s -j1 >/dev/null 2>&1 & echo $!; wait; }')
    :format(check.root, file, dir))
  local pid = pipe:read 'l'
  wait_for('the second point', function() return #lines(log) == 2 end)
  lu.assertStrContains(report(dir), 'runs: 1 done, 1 running')
  os.execute('kill -TERM ' .. pid)
  pipe:close()
  local _, err = report(dir)
  lu.assertEquals(err, '')
  -- the file changes, and the commit
  put(file, (text_of(file):gsub('%(c%.a == 2%)', '(false)'):gsub('if c%.a == 2', 'if false')))
  good(('%s --dir %s'):format(file, dir))
  _, err = report(dir)
  lu.assertStrContains(err, 'mix 2 versions of the sweep file')
  local r = the_run(dir)
  local path = r.dir .. '/environment.json'
  put(path, (text_of(path):gsub('"commit": "%x%x%x', '"commit": "zzz')))
  _, err = report(dir)
  lu.assertStrContains(err, 'mix 2 commits')
  path = r.dir .. '/config.json'
  put(path, (text_of(path):gsub('"results": %d+', '"results": 0')))
  _, err = report(dir)
  lu.assertStrContains(err, '1 runs are of another results version')
end

-- The example of the page is an experiment.
function TestReport:test_page()
  local file = put(fresh('.lua'), text_of(check.root .. '/docs/sweeps.md'):match('```lua\n(.-)```'))
  local dir = fresh()
  good(('%s --dir %s -j2 --only width=64'):format(file, dir))
  lu.assertEquals(#kv.json.decode((report(dir .. ' --json'))).rows, 2)
end

-- The shipped experiments: their smallest cells give what is committed.
function TestReport:test_shipped_results()
  for name, cell in pairs { records = { record = 'v4-main', rows = 'outliers' }, replay = { decoder = 2, window = 4,
    share = 'below' } } do
    local file, dir = ('experiments/%s/run.lua'):format(name), fresh()
    local only, keys = {}, {}
    for key in pairs(cell) do keys[#keys + 1] = key end
    table.sort(keys)
    for i, key in ipairs(keys) do only[i] = ('%s=%s '):format(key, cell[key]) end
    good(('%s --dir %s -j2 --only "%s"'):format(file, dir, table.concat(only, '*')))
    local now = kv.json.decode((report(dir .. ' --json'))).rows
    lu.assertEquals(#now, 1, name)
    local found = 0
    for _, row in ipairs(kv.json.decode(text_of(('%s/experiments/%s/results.json'):format(check.root, name))).rows) do
      local same = true
      for key, value in pairs(cell) do same = same and row.setting[key] == value end
      if same then
        found = found + 1
        lu.assertEquals(row.n, now[1].n)
        for metric, s in pairs(row.metrics) do
          local tolerance = 1e-3 * math.abs(s.mean) + 1e-9
          lu.assertAlmostEquals(now[1].metrics[metric].mean, s.mean, tolerance, name .. ' ' .. metric)
        end
      end
    end
    lu.assertEquals(found, 1, name)
  end
end

TestZ = {}
function TestZ:test_remove() lu.assertTrue(os.execute(('rm -rf %q'):format(root))) end

check.main()
