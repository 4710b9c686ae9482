-- test_train_command.lua: kvlab train, eval and sample as processes: killed, interrupted, damaged, out of room, and what
-- they print.
local lu = require 'luaunit'
local check = require 'check'
local core = require 'kvlab.core'
local kv = require 'kvlab'

local root, fresh = check.folder()
local put, wait_for = check.put, check.wait_for
local function text_of(path) return check.text_of(path, '') end

-- A file of settings: 40 steps of some milliseconds each, a line of metrics for each.
local function file_of(more)
  return put(fresh('.lua'), ([[return { layout = 'swa{window=3} full/2 reindex', steps = 40, batch = 24, log_every = 1,
    task = { name = 'recall', vocab = 24, length = 24, pairs = 3 }, eval_batches = 1, eval_size = 8, eval_every = 7,
    widths = { hidden_size = 16, num_attention_heads = 2, index_n_heads = 2, index_head_dim = 8, index_topk = 3 },
    indexer = { dense_steps = 6, warmup = 6 }, checkpoint_every = 5, %s }]]):format(more or ''))
end
local function kvlab(words) return check.sh('scripts/kvlab ' .. words .. ' </dev/null') end
local function good(words)
  local code, out, err = kvlab(words)
  lu.assertEquals(code, 0, out .. err)
  return out, err
end
local function bad(words, status, ...)
  local code, _, err = kvlab(words)
  for _, part in ipairs { ... } do lu.assertStrContains(err, part) end
  lu.assertEquals(code, status, err)
  lu.assertNotStrContains(err, 'stack traceback')
end
-- The only run in a folder; none when its settings are not there yet.
local function run_in(dir)
  for _, name in ipairs(core.base.list_dir(dir) or {}) do
    if core.system.stat(('%s/%s/config.json'):format(dir, name)) then return kv.run.open(dir .. '/' .. name) end
  end
end
local function logged(dir)
  local r = run_in(dir)
  return r and select(2, text_of(r.dir .. '/metrics.jsonl'):gsub('\n', '\n')) or 0
end
local function checkpoint_of(dir, step)
  local folder = run_in(dir).dir .. '/checkpoints/'
  for _, name in ipairs(core.base.list_dir(folder)) do
    if name:find(('^step%%-%d%%-%%d+%%.safetensors$'):format(step)) then return folder .. name end
  end
end
local function digest_of(dir, step) return (core.system.sha256_file(checkpoint_of(dir, step))) end
local function metrics_of(dir)
  local list = {}
  for i, line in ipairs((run_in(dir):metrics())) do
    line.tokens_per_second = nil
    list[i] = kv.json.encode(line)
  end
  return table.concat(list, '\n')
end

-- Starts a training of `file` in `dir`, waits for `lines` of metrics and sends a signal. -> its exit status, stderr
local function signalled(file, dir, lines, signal)
  local err = fresh('.err')
  local before = logged(dir)
  local pipe = io.popen(('cd %s && { scripts/kvlab train %s --dir %s >/dev/null 2>%s & echo $!; wait $!; echo $?; }')
    :format(check.root, file, dir, err))
  local pid = pipe:read('l')
  wait_for('metrics', function() return logged(dir) >= before + lines end)
  os.execute(('kill -%s %s'):format(signal, pid))
  local status = tonumber(pipe:read('l'))
  pipe:close()
  return status, text_of(err)
end

local plain_file, plain_dir -- a run that nothing disturbed
local function plain()
  if not plain_dir then
    plain_file, plain_dir = file_of(), fresh()
    good(('train %s --dir %s'):format(plain_file, plain_dir))
  end
  return plain_file, plain_dir
end

TestTrain = {}

function TestTrain:test_killed_at_any_moment()
  local file, want = plain()
  local dir = fresh()
  for _, lines in ipairs { 2, 9, 4, 7 } do lu.assertEquals((signalled(file, dir, lines, 9)), 137) end
  lu.assertEquals(run_in(dir):status(), 'stopped')
  good(('train %s --dir %s'):format(file, dir))
  lu.assertEquals(digest_of(dir, 40), digest_of(want, 40))
  lu.assertEquals(metrics_of(dir), metrics_of(want))
end

-- Signals leave a checkpoint of the last step, whatever checkpoint_every says. One thread or many, the bits are the same.
function TestTrain:test_signals()
  local file, want = plain()
  file = put(fresh('.lua'), (text_of(file):gsub('checkpoint_every = 5', 'checkpoint_every = 1000')))
  local dir = fresh()
  for i, case in ipairs { { 'TERM', 143 }, { 'INT', 130 } } do
    local status, err = signalled(file, dir, 6, case[1])
    lu.assertEquals(status, case[2], err)
    lu.assertStrContains(err, 'the same command goes on')
    lu.assertEquals(logged(dir) >= i * 6, true)
    lu.assertTrue(run_in(dir):last().step >= logged(dir) - (i - 1)) -- one line says that it was resumed
  end
  good(('train %s --dir %s --threads 1'):format(file, dir))
  lu.assertEquals(digest_of(dir, 40), digest_of(want, 40))
  lu.assertEquals(metrics_of(dir), metrics_of(want))
end

function TestTrain:test_done_is_not_done_again()
  local file, dir = plain()
  local out, err = good(('train %s --dir %s'):format(file, dir))
  lu.assertStrContains(err, 'is done already')
  lu.assertStrContains(out, 'accuracy')
  local json = kv.json.decode((good(('train %s --dir %s --json'):format(file, dir))))
  lu.assertEquals({ json.state, json.metrics.step, json.settings.steps, json.id }, { 'done', 40, 40, run_in(dir).id })
  lu.assertStrContains(good('report ' .. dir), 'val_loss')
end

function TestTrain:test_two_runners()
  local file = file_of 'accumulate = 100'
  local dir = fresh()
  local pipe = io.popen(('cd %s && { scripts/kvlab train %s --dir %s >/dev/null 2>&1 & echo $!; wait; }')
    :format(check.root, file, dir))
  local pid = pipe:read('l')
  wait_for('the claim', function()
    local r = run_in(dir)
    return r and r:status() == 'running'
  end)
  bad(('train %s --dir %s'):format(file, dir), 1, 'is being worked on by process ' .. pid)
  os.execute('kill -9 ' .. pid)
  pipe:close()
end

function TestTrain:test_damaged_checkpoints()
  local file = put(fresh('.lua'), (text_of((plain())):gsub('checkpoint_every = 5', 'checkpoint_every = 10')))
  local _, want = plain()
  local dir = fresh()
  good(('train %s --dir %s'):format(file, dir))
  local r = run_in(dir)
  local tensors = checkpoint_of(dir, 40)
  local about = tensors:gsub('safetensors$', 'json')
  local whole, whole_about = text_of(tensors), text_of(about)
  local function changed(text, at)
    return text:sub(1, at - 1) .. string.char(text:byte(at) ~ 1) .. text:sub(at + 1)
  end
  local header = 8 + string.unpack('<I8', whole)
  for i, case in ipairs { { tensors, changed(whole, 1) }, { tensors, changed(whole, header // 2) },
    { tensors, changed(whole, header + 1) }, { tensors, changed(whole, #whole) }, { tensors, whole:sub(1, -2) },
    { tensors, '' }, { about, changed(whole_about, 3) }, { about, changed(whole_about, #whole_about - 3) },
    { about, whole_about:sub(1, #whole_about // 2) }, { about, '' } } do
    put(tensors, whole)
    put(about, whole_about)
    put(case[1], case[2])
    os.remove(r.dir .. '/done.json')
    local notes = run_in(dir)
    lu.assertEquals(notes:last().step, 30, 'case ' .. i)
    lu.assertStrContains(notes.notes[1], 'is damaged; the checkpoint of step 30 is used')
  end
  local _, err = good(('train %s --dir %s'):format(file, dir))
  lu.assertStrContains(err, 'is damaged; the checkpoint of step 30 is used')
  lu.assertEquals(digest_of(dir, 40), digest_of(want, 40))
end

-- A disk without room: a message with the path, and the earlier checkpoint is whole. Limits of file sizes stand for it.
function TestTrain:test_full_disk()
  local file, want = plain()
  local dir = fresh()
  signalled(file, dir, 12, 9)
  local step = run_in(dir):last().step
  local code, _, err = check.sh(("trap '' XFSZ; ulimit -f 64; scripts/kvlab train %s --dir %s </dev/null"):format(file, dir))
  lu.assertEquals(code, 1, err)
  lu.assertStrContains(err, run_in(dir).dir .. '/checkpoints/step-')
  lu.assertEquals(run_in(dir):last().step, step)
  good(('train %s --dir %s'):format(file, dir))
  lu.assertEquals(digest_of(dir, 40), digest_of(want, 40))
end

function TestTrain:test_folders_that_do_not_do()
  local file, dir = plain()
  bad(('train %s --dir /dev/null/x'):format(file), 1, '/dev/null')
  local other = fresh()
  local id = run_in(dir).id
  for _, path in ipairs { other, other .. '/' .. id } do core.base.make_dir(path) end
  put(('%s/%s/config.json'):format(other, id), (text_of(run_in(dir).dir .. '/config.json'):gsub('"results": %d+',
    '"results": 0')))
  bad(('train %s --dir %s'):format(file, other), 1, 'results version 0')
  bad('eval ' .. other, 1, 'results version 0')
  -- where no checkpoint can be made
  other = fresh()
  for _, path in ipairs { other, other .. '/' .. id } do core.base.make_dir(path) end
  put(('%s/%s/checkpoints'):format(other, id), '')
  bad(('train %s --dir %s'):format(file, other), 1, id .. '/checkpoints')
  lu.assertEquals(run_in(other):status(), 'failed')
  os.remove(('%s/%s/checkpoints'):format(other, id))
  local _, err = good(('train %s --dir %s'):format(file, other))
  lu.assertStrContains(err, 'it failed before')
  -- read-only: what is done can be read
  if os.execute(('chmod -R a-w %s'):format(other)) then
    good(('eval %s'):format(other))
    os.execute(('chmod -R u+w %s'):format(other))
  end
end

function TestTrain:test_bad_usage()
  local file = plain()
  bad('train', 2, 'expected one file')
  bad('train /nowhere.lua', 1, '/nowhere.lua')
  bad(('train %s --set stesp=3'):format(file), 1, "'stesp'", "did you mean 'steps'")
  bad(('train %s --set task.pair=3'):format(file), 1, "'pairs'")
  bad(('train %s --threads 0'):format(file), 2, '--threads 0')
  bad(('train %s --only nothing'):format(file), 2, 'no point')
  local many = put(fresh('.lua'), [[return { name = 'many', worker = 'kvlab.trainer', fixed = { task = 'recall' },
    vary = { layout = { 'mha', 'gqa' }, steps = { 1, 2 } } }]])
  bad('train ' .. many, 2, 'describes 4 runs', 'layout=gqa steps=2', '--only')
  bad('eval', 2, 'expected one folder')
  bad('eval /nowhere', 1, '/nowhere')
  bad('eval ' .. root, 1, 'no run')
  bad(('eval %s --records bf61'):format(root), 2, "'bf61'", "'bf16'")
  bad(('sample %s --temperature -1'):format(root), 2, '--temperature -1')
  bad(('sample %s --topk 0'):format(root), 2, '--topk 0')
end

-- Numbers that are not finite end the run with where they began.
function TestTrain:test_not_finite()
  local dir = fresh()
  local file = file_of()
  bad(('train %s --dir %s --set optimiser.lr=1e30 --set optimiser.clip=0'):format(file, dir), 1, 'at step ', 'began')
  local how, about = run_in(dir):status()
  lu.assertEquals(how, 'failed')
  lu.assertStrContains(about.reason, 'at step ')
end

TestReading = {}

function TestReading:test_eval()
  local _, dir = plain()
  local out = good(('eval %s --records f32 --records bf16'):format(dir))
  lu.assertStrContains(out, 'storing rows in f32 costs: val_loss +0.00000')
  local json = kv.json.decode((good(('eval %s --records f32 --records main=bf16,window=bf16,index=bf16 --json'):format(dir))))
  local paths = json.paths
  lu.assertEquals({ #paths, paths[1].path, paths[2].path, paths[3].path, paths[3].stored_in, paths[5].stored_in },
    { 5, 'full', 'full', 'decode', 'f32', 'bf16' })
  lu.assertEquals(paths[5].bytes_per_token * 2, paths[3].bytes_per_token)
  local _, about = run_in(dir):status()
  lu.assertEquals(paths[1].metrics.val_loss, about.metrics.val_loss)
  lu.assertAlmostEquals(paths[3].metrics.val_loss, about.metrics.val_loss, 1e-5)
  lu.assertAlmostEquals(paths[5].storing_costs.val_loss, paths[5].metrics.val_loss - about.metrics.val_loss, 1e-9)
  json = kv.json.decode((good(('eval %s --batches 2 --size 3 --json'):format(dir))))
  lu.assertEquals({ json.batches, json.size, #json.paths }, { 2, 3, 3 })
end

function TestReading:test_sample_ids()
  local _, dir = plain()
  local out = good(('sample %s --prompt "1 2 3" --tokens 4'):format(dir))
  local ids = {}
  for id in out:gmatch('%d+') do ids[#ids + 1] = tonumber(id) end
  lu.assertEquals({ #ids, ids[1], ids[3] }, { 7, 1, 3 })
  lu.assertEquals(good(('sample %s --prompt "1 2 3" --tokens 4'):format(dir)), out)
  lu.assertEquals(good(('sample %s --tokens 3 --topk 1'):format(dir)), good(('sample %s --tokens 3 --temperature 0')
    :format(dir)))
  bad(('sample %s --prompt "1 x"'):format(dir), 2, "'x' is no id")
  bad(('sample %s --prompt "1 99"'):format(dir), 2, 'id 99')
end

-- A text with one sequel: the model learns it, and writes it.
function TestReading:test_sample_text()
  local text = put(fresh('.txt'), ('the cat sat on the mat.\n'):rep(60))
  local file = put(fresh('.lua'), ([[return { layout = 'layer{form=heads,window=4} mha', steps = 120, batch = 16,
    task = { name = 'text', files = { %q }, length = 24 }, model = { positions = 'learned' },
    widths = { hidden_size = 32 }, optimiser = { lr = 1e-2 }, eval_batches = 1, eval_size = 8 }]]):format(text))
  local dir = fresh()
  good(('train %s --dir %s'):format(file, dir))
  lu.assertEquals(good(('sample %s --prompt "the cat" --tokens 16 --temperature 0'):format(dir)),
    'the cat sat on the mat.\n')
  bad(('sample %s --prompt "the" --tokens 30'):format(dir), 1, '24 positions')
  bad(('sample %s --prompt "THE"'):format(dir), 2, "'T' does not occur")
  os.rename(text, text .. '2')
  bad('eval ' .. dir, 1, text)
  good(('eval %s --set task.files=%s2'):format(dir, text))
  put(text, 'another text, another text, another text, another text, another text, another text, ' .. ('x'):rep(300))
  bad('eval ' .. dir, 1, 'another one now')
end

TestSweeps = {}

function TestSweeps:test_worker_and_memory()
  local file = put(fresh('.lua'), ([[return { name = 'few', worker = 'kvlab.trainer', memory = '%s',
    fixed = { task = { name = 'recall', vocab = 24, length = 16, pairs = 3 }, steps = 3, batch = 8, eval_size = 8 },
    vary = { layout = { 'mha', 'full/2' } } }]]):format('100kB'))
  local dir = fresh()
  local code, out = kvlab(('sweep %s --dir %s --json'):format(file, dir))
  lu.assertEquals(code, 1)
  local result = kv.json.decode(out)
  lu.assertEquals(result.failed, 2)
  lu.assertStrContains(result.failures[1].reason, 'the limit is')
  put(file, (text_of(file):gsub('100kB', '1GB')))
  good(('sweep %s --dir %s --retry failed'):format(file, dir))
  local list = kv.json.decode((good(('sweep %s --dry-run --json'):format(file)))).points
  lu.assertTrue(list[1].minutes > 0 and list[1].parameters > 1000 and list[1].bytes_per_token > 0)
  check.fails('memory is lots', kv.sweep.points, { name = 'x', point = print, memory = 'lots' })
  check.fails('memory is 0', kv.sweep.points, { name = 'x', point = print, memory = 0 })
end

check.main()
