-- bench.lua: how fast kernels are, as ratios against a limit measured in the same run (docs/bench.md).
--
-- A bench says what one run computes (work, in operations or bytes) and what the machine would need at least for
-- that: `needs` lists the work by resource, and the slowest of them is the limit (a roofline):
--   sgemm   floating-point operations, against one direct call of BLAS on one thread, times the threads
--   read    bytes, against reading a large buffer      copy   bytes, against memcpy of float32 rows
-- Kernel and limits take turns, several times, and the best of each counts: other processes only ever slow things
-- down. What runs on one thread is timed by the processor time that it took, which is the same on a quiet machine and
-- leaves out the time that others had the processor; more threads are timed by the clock. How much others did is in
-- two figures: `spread` = median over best of the kernel's times, and `cpu` = processor time over threads x time in
-- all of them, which is below 1 when the threads did not all have a processor.
-- Only pairs of query and visible row and scored keys count as operations, and only once.
local core = require 'kvlab.core'
local kernels = require 'kvlab.kernels'
local record = require 'kvlab.record'
local tensor = require 'kvlab.tensor'

local bench = {}

local MIB <const> = 1024 * 1024
local SAMPLE <const> = 0.02 -- seconds that one sample takes at least: many times what waking a sleeping helper takes
local ROUNDS <const> = 5 -- at least

-- --- limits -------------------------------------------------------------------------------------------
-- Each gives { work =, run =, per_thread = true when the rate is of one thread and counts once for each }.
local resources = {}

local function matrices(n)
  local a, b = tensor.random { n, n, seed = 1 }, tensor.random { n, n, seed = 2 }
  return tensor.zeros(n, n), a, b
end

function resources.sgemm(n)
  local c, a, b = matrices(n or 1024)
  return { work = 2 * c.shape[1] ^ 3, per_thread = true, run = function() core.bench.sgemm(c, a, b) end }
end

function resources.read()
  local x = tensor.zeros(64 * MIB) -- 256 MiB, far more than any cache
  return { work = 4 * 64 * MIB, run = function() core.bench.read(x) end }
end

function resources.copy(floats)
  local from, to = tensor.zeros(floats), tensor.zeros(floats)
  return { work = 4 * floats, run = function() core.bench.copy(to, from) end }
end

-- --- timing -------------------------------------------------------------------------------------------
-- Seconds and processor seconds of one call.
local function seconds(f, times)
  local start, clock = core.base.now(), os.clock()
  for _ = 1, times do f() end
  return (core.base.now() - start) / times, (os.clock() - clock) / times
end

-- A function, how often it runs in one sample, and its samples. `alone`: it runs on one thread.
local function timed(f, alone)
  f() -- first pages, first branches
  local times = math.max(1, math.ceil(SAMPLE / math.max((seconds(f, 1)), 1e-7)))
  return { f = f, alone = alone, times = times, samples = {}, took = 0, cpu = 0 }
end

local function sample(t)
  local took, cpu = seconds(t.f, t.times)
  t.samples[#t.samples + 1] = t.alone and cpu > 0 and cpu or took
  t.took, t.cpu = t.took + took, t.cpu + cpu
end

local function best(t) return math.min(table.unpack(t.samples)) end

local function median(t)
  local sorted = table.move(t.samples, 1, #t.samples, 1, {})
  table.sort(sorted)
  return sorted[(#sorted + 1) // 2]
end

-- --- one bench ----------------------------------------------------------------------------------------
-- bench.run(b, { threads =, seconds = }) -> { name, threads, value, limit, ratio, target, unit, spread, cpu }
-- b = { name, unit, scale (of the unit), target, prepare = function() -> { work =, run =, needs = { sgemm = work or
-- { work, size }, ... } or against = function, close = function or nil, processes = true when it runs in others,
-- keep_garbage = true when collecting garbage is part of the work } }
function bench.run(b, options)
  local before = core.base.threads()
  local threads = core.base.threads(options.threads)
  local ok, result = pcall(function()
    local job = b.prepare()
    local alone = threads == 1 and not job.processes
    local kernel = timed(job.run, alone)
    local limits = {}
    for name, need in pairs(job.needs) do
      local limit = type(need) == 'table' and need.against and { work = need.work, run = need.against }
        or resources[name](type(need) == 'table' and need.size or nil)
      limit.need = type(need) == 'table' and need.work or need
      limit.timer = timed(limit.run, alone or limit.per_thread)
      limits[#limits + 1] = limit
    end
    local stop, rounds = core.base.now() + options.seconds, 0
    while rounds < ROUNDS or core.base.now() < stop do
      for _, limit in ipairs(limits) do sample(limit.timer) end
      sample(kernel)
      if not job.keep_garbage then collectgarbage() end
      rounds = rounds + 1
      if rounds >= 200 then break end
    end
    local least = 0 -- seconds that the machine needs at least for the work
    for _, limit in ipairs(limits) do
      local rate = limit.work / best(limit.timer) * (limit.per_thread and threads or 1)
      least = math.max(least, limit.need / rate)
    end
    if job.close then job.close() end
    local took = best(kernel)
    return { name = b.name, threads = threads, value = job.work / took / b.scale, limit = job.work / least / b.scale,
      ratio = least / took, target = b.target, unit = b.unit, seconds = took, parameters = job.parameters,
      spread = median(kernel) / took,
      cpu = kernel.cpu / kernel.took / threads }
  end)
  core.base.threads(before)
  collectgarbage()
  if not ok then error(result, 0) end
  return result
end

-- --- the benches --------------------------------------------------------------------------------------
local list = {}

local function add(name, about, unit, target, prepare)
  local scale = unit:find('^G') and 1e9 or 1
  list[#list + 1] = { name = name, group = name:match('^[^/]+'), about = about, unit = unit, scale = scale,
    target = target, prepare = prepare }
end

for _, n in ipairs { 512, 1024, 2048 } do
  add('matmul/' .. n, ('kv.matmul of two %d x %d matrices; limit: one call of cblas_sgemm'):format(n, n), 'GFLOP/s',
    0.95, function()
      local _, a, b = matrices(n)
      return { work = 2 * n ^ 3, run = function() tensor.matmul(a, b):free() end,
        needs = { sgemm = { work = 2 * n ^ 3, size = n } } }
    end)
end

-- A list of a record's entries in a pool, `n` of them; a ring of the window when `ring`.
local function table_of(name, dims, n, seed, ring)
  local plan = record.named(name):plan(dims)
  local pool = core.pool.new(plan)
  local t = pool:table(ring, ring)
  local step = 4096
  for first = 1, n, step do
    t:append(tensor.random { math.min(step, n - first + 1), plan.channels, seed = seed + first })
  end
  return t, pool
end

-- `count` lists of k distinct ids below n, ascending as top-k gives them.
local function id_lists(count, n, k)
  local lists = {}
  for i = 1, count do
    local scores = tensor.random { 1, 1, n, seed = 100 + i, dist = 'uniform' }
    lists[i] = core.attend.index(tensor.ones(1, 1, 1, 1), tensor.ones(1, 1, 1), { rows = scores:reshape(1, n, 1) },
      { pos0 = n - 1, ratio = 1, k = k }).top
  end
  return lists
end

add('v4.1-decode', 'one decode step of one V4.1 layer: 64 heads x 512, 512 of 32,768 FP4 entries by index list and a'
  .. ' ring of 128 FP8 entries; limit: sgemm on its operations', 'GFLOP/s', 0.6, function()
  local heads, width, k, window, entries = 64, 512, 512, 128, 32768
  local dims = { channels = width, rotary = 64 }
  local main, main_pool = table_of('v4.1-main', dims, entries, 1)
  local ring, ring_pool = table_of('v4.1-local', dims, 3 * window + 7, 2, window)
  local counters, columns = core.pool.counters(), { 1, width }
  local q, sink = tensor.random { 1, 1, heads, width, seed = 3 }, tensor.zeros(heads)
  local lists, turn = id_lists(16, entries, k), 0
  local near = { table = ring, kind = 'window', counters = counters, key = columns, value = columns, see = 'window',
    window = window }
  local far = { table = main, kind = 'selected', counters = counters, key = columns, value = columns, see = 'list' }
  local work = 4 * heads * width * (k + window)
  return { work = work, needs = { sgemm = work }, run = function()
    turn = turn % #lists + 1
    far.list = lists[turn]
    kernels.attend { q = q, sources = { near, far }, sink = sink, scale = width ^ -0.5, pos0 = #ring - 1 }:free()
  end, close = function()
    main:free() ring:free() main_pool:free() ring_pool:free()
  end }
end)

add('index', 'scores of 131,072 FP4 keys with 64 heads x 128, and the best 512; limit: sgemm on the products',
  'GFLOP/s', 0.5, function()
  local n, heads, width, k = 131072, 64, 128, 512
  local keys, pool = table_of('index-fp4', { channels = width }, n, 1)
  local q, w = tensor.random { 1, 1, heads, width, seed = 2 }, tensor.random { 1, 1, heads, seed = 3 }
  local source = { table = keys, kind = 'index', counters = core.pool.counters() }
  return { work = 2 * n * heads * width, needs = { sgemm = 2 * n * heads * width }, run = function()
    kernels.index { q = q, w = w, keys = source, pos0 = n - 1, ratio = 1, k = k }.top:free()
  end, close = function() keys:free() pool:free() end }
end)

add('mla-decode', 'one absorbed decode step of MLA: 128 heads, 32,768 bf16 entries of 512 + 64 channels; limit: the'
  .. ' slower of sgemm on its operations and reading its bytes', 'GFLOP/s', 0.6, function()
  local n, heads, latent, rotary = 32768, 128, 512, 64
  local rows, pool = table_of('mla-bf16', { channels = latent + rotary, rotary = rotary }, n, 1)
  local q = tensor.random { 1, 1, heads, latent + rotary, seed = 2 }
  local source = { table = rows, kind = 'selected', counters = core.pool.counters(), key = { 1, latent + rotary },
    value = { 1, latent }, see = 'causal' }
  local work = 2 * heads * n * (latent + rotary + latent)
  return { work = work, needs = { sgemm = work, read = n * 2 * (latent + rotary) }, run = function()
    kernels.attend { q = q, sources = { source }, scale = (latent + rotary) ^ -0.5, pos0 = n - 1 }:free()
  end, close = function() rows:free() pool:free() end }
end)

-- Rows that are decoded or encoded, in bytes of float32: more than a second-level cache, so that they stream.
local STREAM <const> = 8 * MIB

local function stream(name)
  local plan = record.named(name):plan(not record.named(name).natural and { channels = 512 } or nil)
  local n = math.max(1, STREAM // (4 * plan.channels))
  local pool = core.pool.new(plan)
  local t, rows = pool:table(), tensor.random { n, plan.channels, seed = 1 }
  t:append(rows)
  local floats = n * plan.channels
  local job = { work = 4 * floats, needs = { copy = { work = 4 * floats, size = floats } },
    close = function() t:free() pool:free() end }
  return job, t, rows
end

for _, name in ipairs(record.names()) do
  add('record-decode/' .. name, ('rows of %s, 8 MiB of float32, decoded by the row reader; limit: memcpy of the float32'
    .. ' rows'):format(name), 'GB/s', 0.3, function()
    local job, t, rows = stream(name)
    local source = { table = t, kind = 'selected', counters = core.pool.counters() }
    job.run = function() core.bench.decode(rows, source) end
    return job
  end)
end
for _, name in ipairs(record.names()) do
  add('record-encode/' .. name, ('rows of %s, 8 MiB of float32, appended to a table; limit: memcpy of the float32 rows')
    :format(name), 'GB/s', 0.1, function()
    local job, t, rows = stream(name)
    job.run = function() t:truncate(0):append(rows) end
    return job
  end)
end

add('causal', 'causal attention forward: 8 heads x 64, 2,048 tokens; limit: sgemm on the operations of visible pairs',
  'GFLOP/s', 0.5, function()
  local heads, width, T = 8, 64, 2048
  local q = tensor.random { 1, T, heads, width, seed = 1 }
  local key, value = tensor.random { 1, T, heads, width, seed = 2 }, tensor.random { 1, T, heads, width, seed = 3 }
  local source = { key_rows = key, value_rows = value, see = 'causal' }
  local work = 4 * heads * width * (T * (T + 1) // 2)
  return { work = work, needs = { sgemm = work }, run = function()
    kernels.attend { q = q, sources = { source }, scale = width ^ -0.5 }:free()
  end }
end)

add('batch', 'tokens of 16 sequences decoded together; limit: the same ones one by one', 'tokens/s', 2, function()
  local kv = require 'kvlab'
  local m = kv.model('[full/2 reuse]*2', { hidden_size = 1024, num_attention_heads = 8, head_dim = 128,
    qk_rope_head_dim = 64, q_lora_rank = 256, o_groups = 2, o_lora_rank = 256, index_n_heads = 4, index_head_dim = 64,
    index_topk = 64, sliding_window = 64, vocab_size = 4096, intermediate_size = 2816 }, { seed = 1 })
  local function sequences()
    local seqs, prompt = {}, {}
    for t = 1, 100 do prompt[t] = t end
    for i = 1, 16 do
      seqs[i] = m:sequence { rollback = 1 }
      seqs[i]:prefill(prompt)
    end
    return seqs
  end
  local together, alone, tokens = sequences(), sequences(), {}
  for i = 1, 16 do tokens[i] = i end
  return { work = 16, run = function()
    m:decode(together, tokens)
    for _, seq in ipairs(together) do seq:rollback(1) end
  end, needs = { alone = { work = 16, against = function()
    for i, seq in ipairs(alone) do
      seq:decode(tokens[i])
      seq:rollback(1)
    end
  end } }, close = function()
    for i = 1, 16 do together[i]:free() alone[i]:free() end
  end }
end)

require('kvlab.bench_training').add(add)

-- --- by name ------------------------------------------------------------------------------------------
function bench.names()
  local names, seen = {}, {}
  for _, b in ipairs(list) do
    if not seen[b.group] then names[#names + 1] = b.group end
    seen[b.group] = true
    if b.name ~= b.group then names[#names + 1] = b.name end
  end
  return names
end

-- The benches called `name`, a group or one of it; all without a name; nil when there is none.
function bench.named(name)
  local found = {}
  for _, b in ipairs(list) do
    if name == nil or b.name == name or b.group == name then found[#found + 1] = b end
  end
  return #found > 0 and found or nil
end

return bench
