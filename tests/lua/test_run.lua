-- Runs: ids, claims, metrics and checkpoints, and what is left of them after every kind of damage.
local lu = require 'luaunit'
local check = require 'check'
local claim = require 'kvlab.claim'
local config = require 'kvlab.config'
local core = require 'kvlab.core'
local environment = require 'kvlab.environment'
local kv = require 'kvlab'

local root, fresh_dir = check.folder()
local text_of, put = check.text_of, check.put
local function made(settings)
  local r = kv.run.create { dir = fresh_dir(), config = settings or { width = 4 } }
  lu.assertTrue(r:claim())
  return r
end

TestConfig = {}

function TestConfig:test_canonical()
  local own = kv.record { name = 'test-own', fields = { { channels = 4, number = 'bf16' } } }
  lu.assertEquals(config.canonical { b = { 1.0, 2.5 }, a = kv.csa, c = kv.record_named 'bf16',
    l = kv.layout 'swa full/2' },
    '{"a":"csa","b":[1,2.5],"c":"bf16","l":"swa full/2"}')
  -- a preset is more than its text, and comes back whole
  local plain = config.plain { layout = kv.preset 'v4-flash' }
  local back = kv.config.layout(plain.layout)
  lu.assertTrue(back == kv.preset 'v4-flash')
  lu.assertEquals(kv.count(back).store.bytes_per_token, kv.count(kv.preset 'v4-flash').store.bytes_per_token)
  -- an own record counts with what it is made of
  local record = kv.config.record(config.plain { r = own }.r)
  lu.assertEquals(record:plan().bytes, 8)
  local other = kv.record { name = 'test-own', fields = { { channels = 4, number = 'e4m3' } } }
  lu.assertNotEquals(config.id { r = own }, config.id { r = other })
end

function TestConfig:test_ids()
  lu.assertEquals(config.id { a = 1, b = 'x' }, config.id { b = 'x', a = 1.0 })
  lu.assertNotEquals(config.id { a = 1 }, config.id { a = 2 })
  lu.assertNotEquals(config.id { a = 1 }, config.id { a = '1' })
  -- the definition, through another door
  local want = core.system.sha256(('kvlab results %d\n{"a":1}'):format(config.RESULTS)):sub(1, 16)
  lu.assertEquals(config.id { a = 1 }, want)
  lu.assertEquals(core.system.sha256 'abc', 'ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad')
end

function TestConfig:test_refusals()
  check.fails({ 'config.f', 'function' }, config.plain, { f = print })
  check.fails('config.x.y', config.plain, { x = { y = 0 / 0 } })
  check.fails({ 'config.x', 'list of 1', "'a'" }, config.plain, { x = { 1, a = 2 } })
  local loop = {}
  loop.loop = loop
  check.fails('contains itself', config.plain, loop)
end

function TestConfig:test_resolve()
  local defaults = { width = 64, name = config.required, optimiser = { lr = 1e-3, decay = 0.1 } }
  lu.assertEquals(config.resolve({ name = 'x', optimiser = { lr = 1 } }, defaults),
    { width = 64, name = 'x', optimiser = { lr = 1, decay = 0.1 } })
  check.fails("'name' is missing", config.resolve, {}, defaults)
  check.fails({ "'widht'", "did you mean 'width'" }, config.resolve, { name = 'x', widht = 1 }, defaults)
  check.fails({ "'decai'", "did you mean 'decay'" }, config.resolve, { name = 'x', optimiser = { decai = 1 } },
    defaults)
end

TestFolder = {}

function TestFolder:test_create_and_open()
  local r = made { layout = kv.layout 'swa full/2', seed = 3 }
  lu.assertEquals(text_of(r.dir .. '/layout.txt'), 'swa full/2\n')
  lu.assertEquals(kv.run.open(r.dir).config.seed, 3)
  lu.assertEquals(kv.run.open(r.dir).id, r.id)
  lu.assertEquals(kv.run.create { dir = r.dir, config = { layout = 'swa full/2', seed = 3 } }.id, r.id)
  check.fails('other settings', kv.run.create, { dir = r.dir, config = { seed = 4 } })
  r:begin()
  local now = r:environments()[1]
  lu.assertEquals({ now.kvlab, now.lua, now.results, now.threads },
    { core.version, _VERSION, config.RESULTS, kv.threads() })
  lu.assertTrue(#now.blas > 0)
  local code, commit = check.sh 'git rev-parse HEAD'
  if code == 0 then lu.assertEquals(now.commit, commit:match '%x+') end
  r:begin()
  lu.assertEquals(#r:environments(), 1)
end

function TestFolder:test_another_results_version()
  local r = made()
  local text = text_of(r.dir .. '/config.json')
  put(r.dir .. '/config.json', (text:gsub('"results": %d+', '"results": 999')))
  for _, f in ipairs { function() kv.run.open(r.dir) end,
    function() kv.run.create { dir = r.dir, config = { width = 4 } } end } do
    check.fails({ r.dir, 'results version 999', tostring(config.RESULTS) }, f)
  end
  put(r.dir .. '/config.json', text:sub(1, 20))
  check.fails('config.json', kv.run.open, r.dir)
end

function TestFolder:test_where_nothing_can_be_written()
  check.fails('/dev/null', kv.run.create, { dir = '/dev/null/x', config = {} })
  local r = made()
  r:release()
  local code, out = check.sh('id -u')
  if code == 0 and out:match '%d+' ~= '0' then
    os.execute(('chmod 555 %q'):format(r.dir))
    local ok, problem = pcall(r.claim, r)
    lu.assertEquals(kv.run.open(r.dir).id, r.id) -- reading still works
    os.execute(('chmod 755 %q'):format(r.dir))
    lu.assertFalse(ok)
    lu.assertStrContains(problem, 'cannot be claimed')
  end
end

function TestFolder:test_states()
  local r = kv.run.create { dir = fresh_dir(), config = {} }
  lu.assertEquals(r:status(), 'new')
  check.fails('claim the run first', r.log, r, { x = 1 })
  r:claim()
  lu.assertEquals(r:status(), 'running')
  r:fail('no luck', { seconds = 1 })
  local how, about = r:status()
  lu.assertEquals({ how, about.reason }, { 'failed', 'no luck' })
  r:retry()
  r:release()
  lu.assertEquals(r:status(), 'stopped')
  r:claim()
  r:log { step = 1, loss = 2.5 }
  check.fails("'loss' is nan", r.finish, r, { loss = 0 / 0 })
  r:finish()
  how, about = r:status()
  lu.assertEquals({ how, about.metrics.loss }, { 'done', 2.5 })
end

TestClaims = {}

local function claim_of(r) return ('%s/claim-%d'):format(r.dir, claim.newest(r.dir)) end

function TestClaims:test_one_has_it()
  local r = made()
  local second = kv.run.open(r.dir)
  local ok, who = second:claim()
  lu.assertFalse(ok)
  lu.assertStrContains(who, tostring(core.system.pid()))
  r:release()
  lu.assertTrue(second:claim())
  check.fails('claim the run first', r.log, r, { x = 1 })
end

-- On another machine only the time since the last heartbeat counts; here, whether the process is there.
function TestClaims:test_stale_claims()
  local r = made()
  local second = kv.run.open(r.dir)
  local me = { host = 'elsewhere', machine = 'another one', pid = core.system.pid(), started = '1' }
  put(claim_of(r), kv.json.encode(me))
  lu.assertFalse((second:claim()))
  os.execute(('touch -d "-%d seconds" %q'):format(claim.STALE - 20, claim_of(r)))
  lu.assertFalse((second:claim()))
  os.execute(('touch -d "-%d seconds" %q'):format(claim.STALE + 20, claim_of(r)))
  lu.assertTrue((second:claim()))
  check.fails('taken over', r.log, r, { x = 1 }) -- it had only slept
  check.fails('taken over', r.checkpoint, r, { step = 1 })
  r:release() -- changes nothing for the new owner
  lu.assertTrue(claim.owned(r.dir, second.number))
  second:log { x = 1 }

  me.machine = environment.machine() -- the number is ours, but of a process that began at another time
  put(claim_of(r), kv.json.encode(me))
  lu.assertTrue((kv.run.open(r.dir):claim()))
  put(claim_of(r), '') -- torn: only its age counts
  lu.assertFalse((kv.run.open(r.dir):claim()))
end

function TestClaims:test_a_race_has_one_winner()
  local dir = fresh_dir()
  kv.run.create { dir = dir, config = {} }
  local code = check.write(([[
    local run = require 'kvlab.run'.open(%q)
    local ok = run:claim()
    if ok then print 'won' os.execute 'sleep 0.5' end
  ]]):format(dir))
  for _ = 1, 3 do -- the second and third time over a claim of a process that is gone
    local _, out = check.sh(('for i in 1 2 3 4 5 6; do lua5.4 %q & done; wait'):format(code))
    lu.assertEquals(out, 'won\n')
  end
  os.remove(code)
end

TestMetrics = {}

function TestMetrics:test_torn_lines()
  local r = made()
  for step = 1, 3 do r:log { step = step, loss = 1 / step } end
  local path = r.dir .. '/metrics.jsonl'
  local text = text_of(path)
  local last = #text - text:sub(1, -2):match '.*\n()' + 1
  for cut = 1, last - 1 do
    put(path, text:sub(1, -cut - 1))
    local list, torn = r:metrics()
    lu.assertEquals({ #list, torn }, cut == 1 and { 3, 0 } or { 2, 1 }, cut)
    local again = kv.run.open(r.dir)
    again:claimed(r.number)
    again:log { step = 9 }
    list, torn = r:metrics()
    lu.assertEquals({ #list, list[#list].step, torn }, { cut == 1 and 4 or 3, 9, cut == 1 and 0 or 1 }, cut)
  end
  check.fails({ "'loss' is nan", 'step 4' }, r.log, r, { step = 4, loss = 0 / 0 })
  check.fails("'loss' is inf", r.log, r, { loss = math.huge })
end

TestCheckpoints = {}

local function with_checkpoints(last)
  local r = made()
  for step = 1, last do
    r:log { step = step }
    r:checkpoint { step = step, tensors = { w = kv.filled({ 3, 4 }, step), ids = kv.arange(1, 5) },
      state = { cursor = step * 10, rng = math.maxinteger - step } }
  end
  return r
end

function TestCheckpoints:test_round_trip_and_the_last_two()
  local r = with_checkpoints(4)
  local names = core.base.list_dir(r.dir .. '/checkpoints')
  table.sort(names)
  lu.assertEquals(names, { 'step-3-1.json', 'step-3-1.safetensors', 'step-4-1.json', 'step-4-1.safetensors' })
  r:log { step = 5 }
  local c = r:resume()
  lu.assertEquals({ c.step, c.state.cursor, c.state.rng, c.damaged }, { 4, 40, math.maxinteger - 4, {} })
  lu.assertEquals(c.tensors.w:sum(), 48.0)
  lu.assertTrue(c.tensors.ids:equal(kv.arange(1, 5)))
  lu.assertEquals(#r:metrics(), 4) -- the fifth step comes again
  r:log { step = 5 }
  lu.assertEquals(#r:metrics(), 5)
  lu.assertNil(made():resume())
end

-- Every byte of the side file, and bytes all over the tensors, in turn: noticed, said, and the one before is used.
function TestCheckpoints:test_damage()
  local r = with_checkpoints(2)
  local base = r.dir .. '/checkpoints/step-2-1'
  local function damaged(what, path, text)
    put(path, text)
    local again = kv.run.open(r.dir)
    again:claimed(r.number)
    local c = again:resume()
    lu.assertEquals({ c.step, #c.damaged, c.tensors.w:sum() }, { 1, 1, 12.0 }, what)
    lu.assertStrContains(again.notes[1], 'the checkpoint of step 1 is used')
    os.rename(base .. '.json.damaged', base .. '.json')
  end
  for _, suffix in ipairs { '.json', '.safetensors' } do
    local text = text_of(base .. suffix)
    for at = 1, #text, suffix == '.json' and 7 or 5 do
      damaged(suffix .. at, base .. suffix, text:sub(1, at - 1) .. string.char(text:byte(at) ~ 1) .. text:sub(at + 1))
    end
    for _, length in ipairs { 0, 1, #text // 2, #text - 1 } do
      damaged(suffix .. ' cut', base .. suffix, text:sub(1, length))
    end
    damaged(suffix .. ' longer', base .. suffix, text .. 'x')
    put(base .. suffix, text)
  end
  local whole = r:resume()
  lu.assertEquals(whole.step, 2)
  os.remove(base .. '.safetensors')
  lu.assertEquals(r:resume().step, 1)
  os.remove(r.dir .. '/checkpoints/step-1-1.safetensors')
  lu.assertNil(r:resume())
  lu.assertStrContains(r.notes[#r.notes], 'starts anew')
end

-- A disk that takes no more: an error that says so, and the earlier checkpoint is whole.
function TestCheckpoints:test_full_disk()
  local dir = fresh_dir()
  local code = check.write(([[
    local kv = require 'kvlab'
    local r = kv.run.create { dir = %q, config = {} }
    r:claim()
    r:checkpoint { step = 1, tensors = { w = kv.ones(10) } }
    print(pcall(r.checkpoint, r, { step = 2, tensors = { w = kv.ones(100000) } }))
    print(r:resume().step)
  ]]):format(dir))
  local _, out = check.sh(("trap '' XFSZ; ulimit -f 16; lua5.4 %q"):format(code))
  os.remove(code)
  lu.assertStrContains(out, 'false')
  lu.assertStrContains(out, 'File too large')
  lu.assertStrContains(out, '\n1\n')
end

TestZ = {}
function TestZ:test_remove() lu.assertTrue(os.execute(('rm -rf %q'):format(root))) end

check.main()
