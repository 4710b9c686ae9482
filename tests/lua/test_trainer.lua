-- test_trainer.lua: trainings as runs: settings, phases, resuming to the bit, numbers that are not finite, and that a
-- model is worth the same decoded through its caches.
local lu = require 'luaunit'
local check = require 'check'
local config = require 'kvlab.config'
local core = require 'kvlab.core'
local diagnose = require 'kvlab.diagnose'
local evaluate = require 'kvlab.evaluate'
local kv = require 'kvlab'
local recipe = require 'kvlab.recipe'
local study = require 'kvlab.study'
local trained = require 'kvlab.trained'
local trainer = require 'kvlab.trainer'

local root, fresh = check.folder()

-- Settings of a small training, with changes.
local function settings(more)
  local c = { layout = 'swa{window=3} full/2 reindex reuse', task = { name = 'recall', vocab = 24, length = 16, pairs = 3 },
    widths = { hidden_size = 16, num_attention_heads = 2, index_n_heads = 2, index_head_dim = 8, index_topk = 3 },
    steps = 12, batch = 4, eval_batches = 1, eval_size = 8, log_every = 3, eval_every = 5, checkpoint_every = 4 }
  for key, value in pairs(more or {}) do c[key] = value end
  return c
end
local function resolved(more) return recipe.resolve(settings(more)) end

-- --- settings -----------------------------------------------------------------------------------------------
TestSettings = {}

function TestSettings:test_nothing_is_left_open()
  local c = resolved()
  lu.assertEquals(c.task, { name = 'recall', vocab = 24, length = 16, pairs = 3, keys = 11, queries = 3, key_tokens = 1,
    rewrites = 0, offset = 0, place = 'power', fill = 'zero' })
  lu.assertEquals({ c.context, c.widths.head_dim, c.model.ffn, c.optimiser.beta2 }, { 16, 8, 0, 0.95 })
  lu.assertEquals(config.canonical(recipe.resolve(c)), config.canonical(c))
  lu.assertEquals(config.canonical(resolved { layout = kv.layout 'swa{window=3} full/2 reindex reuse' }),
    config.canonical(c))
end

function TestSettings:test_mistakes()
  for _, case in ipairs {
    { { stesp = 3 }, "'stesp'", "did you mean 'steps'" }, { { optimiser = { lrr = 1 } }, "'lrr'", "'lr'" },
    { { schedule = { warmpu = 1 } }, "'warmup'" }, { { indexer = { kll = 1 } }, "'kl'" },
    { { model = { nrom = 'layer' } }, "'norm'" }, { { init = { knd = 'x' } }, "'kind'" },
    { { widths = { hiddensize = 8 } }, "'hidden_size'" }, { { task = { name = 'recal' } }, "'recall'" },
    { { task = { name = 'recall', pair = 3 } }, "'pairs'" }, { { stop = { metric = 'accuracy', att = 1 } }, "'at'" },
    { { steps = 0 }, 'steps is 0' }, { { batch = 1.5 }, 'batch is 1.5' }, { { precision = 'bf16' }, 'precision' },
    { { schedule = { kind = 'cosin' } }, "'cosine'" }, { { indexer = { select = 'oracel' } }, "'oracle'" },
    { { indexer = { kl = 'all' } }, "'all'", 'visible' }, { { optimiser = { beta1 = 1 } }, 'beta1 = 1' },
    { { indexer = { dense_steps = 8, warmup = 5 } }, '8 dense_steps', '12 steps' },
    { { widths = { max_position_embeddings = 15 } }, 'max_position_embeddings = 15', '16 tokens' },
    { { widths = { vocab_size = 20 } }, 'vocab_size = 20', '24 ids' }, { { task = 7 }, 'task is 7' },
    { { task = {} }, 'no name' }, { { layout = 'reuse' }, 'layer 1' }, { { init = { kind = 'normal', std = 0 } }, 'std' },
    { { model = { norm = 'batch' } }, "'batch'" }, { { stop = { metric = 'accuracy' } }, 'stop: expected' },
    { { precision = 'records', records = 'v4.1-main' }, 'v4.1-main' },
    { { task = { name = 'text', files = { '/nowhere.txt' } } }, '/nowhere.txt' },
    { { task = { name = 'text', files = { '/dev/null' } } }, '/dev/null is empty' },
  } do
    local parts = table.move(case, 2, #case, 1, {})
    check.fails(parts, resolved, case[1])
  end
  local c = settings()
  c.layout = nil
  check.fails("'layout' is missing", recipe.resolve, c)
end

function TestSettings:test_notes()
  local function notes(layout, more)
    more = more or {}
    more.layout = layout
    return table.concat(recipe.notes(resolved(more)), '\n')
  end
  lu.assertEquals(notes('mha swa'), '')
  lu.assertStrContains(notes 'mha hca/32', 'layer 2 (layer_id 1), hca/32: an entry is made of 32 tokens')
  lu.assertStrContains(notes 'hca/3', 'layer 1 (layer_id 0), hca/3: rows of 16 tokens end in the middle of an entry of 3')
  lu.assertStrContains(notes('full/2', { widths = { index_topk = 8 } }), 'it selects 8 of at most 8 entries')
end

function TestSettings:test_own_task()
  local file = check.write([[
    local options = ...
    return function(options)
      local low = options.low
      return { name = 'echo', vocab = 9, length = 4, answers = { low, 8 }, options = options,
        row = function(below, tokens, targets)
          for i = 1, 4 do tokens[i] = low + below(9 - low) targets[i] = tokens[i] end
        end }
    end]], '.lua')
  local c = resolved { task = { file = file, low = 2 } }
  lu.assertEquals({ #c.task.digest, c.task.low }, { 16, 2 })
  local t = trainer.new(c)
  lu.assertTrue(t:advance().loss > 1)
  local out <close> = io.open(file, 'a')
  out:write ' -- changed'
  out:close()
  check.fails({ file, 'digest' }, recipe.task, c.task)
  os.remove(file)
  check.fails(file, recipe.task, { file = file })
  local table_file = check.write('return 7', '.lua')
  check.fails('returns a number', recipe.task, { file = table_file })
  os.remove(table_file)
end

function TestSettings:test_curriculum()
  local c = resolved { task = { { task = { name = 'recall', vocab = 24, length = 8, pairs = 1 }, steps = 2 },
    { task = { name = 'recall', vocab = 24, length = 16, pairs = 3 } } } }
  lu.assertEquals({ c.context, c.task[1].steps, c.task[2].task.pairs }, { 16, 2, 3 })
  local t = trainer.new(c)
  lu.assertEquals({ t:advance().tokens, t:advance().tokens, t:advance().tokens }, { 32, 32, 64 })
end

-- Standard deviations of matrices, and those that lead onto the residual stream.
function TestSettings:test_init()
  local function std(kind, name)
    local m = kv.model('mha*8', { hidden_size = 64, num_attention_heads = 1, head_dim = 64, vocab_size = 50 },
      { ffn = 64, init = { kind = kind, std = 0.05 } })
    local w = m:weight(name)
    return ((w * w):sum() / w.size) ^ 0.5
  end
  local up, out = 'model.layers.3.self_attn.q_proj.weight', 'model.layers.3.self_attn.o_proj.weight'
  for _, case in ipairs { { 'default', up, 0.125 }, { 'default', out, 0.125 }, { 'normal', out, 0.05 },
    { 'nanogpt', up, 0.05 }, { 'nanogpt', out, 0.0125 }, { 'nanogpt', 'model.layers.7.mlp.down_proj.weight', 0.0125 },
    { 'nanogpt', 'model.embed_tokens.weight', 0.05 } } do
    lu.assertAlmostEquals(std(case[1], case[2]) / case[3], 1, 0.05, table.concat(case, ' '))
  end
  check.fails("'nanogtp'", kv.model, 'mha', {}, { init = 'nanogtp' })
end

-- --- steps ------------------------------------------------------------------------------------------------------
TestSteps = {}

local function parameters(t)
  local copy = {}
  for name, p in pairs(t.model.parameters) do copy[name] = p:clone() end
  return copy
end

-- Which parameters changed: 'none', 'all', 'indexer' or 'others'.
local function changed(t, before)
  local kinds = {}
  for name, p in pairs(t.model.parameters) do
    local kind = name:find('indexer', 1, true) and 'indexer' or 'others'
    if not p:equal(before[name]) then kinds[kind] = true end
  end
  return kinds.indexer and kinds.others and 'all' or kinds.indexer and 'indexer' or kinds.others and 'others' or 'none'
end

function TestSteps:test_phases()
  local t = trainer.new(resolved { indexer = { dense_steps = 2, warmup = 2, warmup_lr = 0.5 },
    schedule = { kind = 'linear', warmup = 2 } })
  local seen, rates = {}, {}
  for step = 1, 6 do
    local before = parameters(t)
    local did = t:advance()
    seen[step], rates[step] = changed(t, before), did.lr
    lu.assertEquals(did.kl ~= nil, step > 2)
  end
  lu.assertEquals(seen, { 'others', 'others', 'indexer', 'indexer', 'all', 'all' })
  for step, want in ipairs { 0.0005, 0.001, 0.25, 0.5, 0.001 * 7 / 8, 0.001 * 6 / 8 } do
    lu.assertAlmostEquals(rates[step], want, 1e-9)
  end
  -- without indexers the same settings train everything
  t = trainer.new(resolved { layout = 'mha', indexer = { dense_steps = 2, warmup = 2 } })
  lu.assertNil(t:advance().kl)
end

-- Two parts of a batch are the batch.
function TestSteps:test_accumulation()
  local one, two = trainer.new(resolved { batch = 8 }), trainer.new(resolved { batch = 4, accumulate = 2 })
  for _ = 1, 3 do
    local a, b = one:advance(), two:advance()
    lu.assertAlmostEquals(a.loss, b.loss, 1e-5)
    lu.assertAlmostEquals(a.norm / b.norm, 1, 1e-3)
  end
end

function TestSteps:test_memory_is_flat()
  local t = trainer.new(resolved { precision = 'records' })
  local function live()
    collectgarbage() collectgarbage()
    return core.base.live_bytes()
  end
  for _ = 1, 2 do t:advance() end
  local before = live()
  for _ = 1, 5 do t:advance() end
  t:evaluate()
  lu.assertEquals(live(), before)
end

function TestSteps:test_not_finite()
  local t = trainer.new(resolved { layout = 'mha*3' })
  t:advance()
  local w = t.model.parameters['model.layers.1.self_attn.v_proj.weight']
  local kept = w:clone()
  w:fill_(0 / 0)
  check.fails({ 'NaN at step 2', 'model.layers.1.self_attn.v_proj.weight is not finite' }, t.advance, t)
  w:copy_(kept):mul_(1e38) -- finite, but not what comes out
  check.fails({ 'at step 2', 'began in the attention of layer 2 (layer_id 1), mha' }, t.advance, t)
  w:copy_(kept)
  lu.assertEquals(t.step, 1)
  local batch = t.task.batch(1, 2, 4)
  lu.assertStrContains(diagnose.loss(t.model, batch, 2, math.huge, {}), 'the loss itself')
  -- norms of zeros, whose slope is 1 / sqrt(eps): the loss is finite, the gradient behind three of them is not
  local c = resolved { layout = 'mha*3' }
  c.widths.rms_norm_eps = 1e-37
  t = trainer.new(c)
  t.model.parameters['model.embed_tokens.weight']:fill_(0)
  local before = parameters(t)
  check.fails({ 'gradient is', 'at step 1', 'with a finite loss', 'began at or behind model.layers.' }, t.advance, t)
  lu.assertEquals({ changed(t, before), t.step }, { 'none', 0 })
end

-- --- runs -------------------------------------------------------------------------------------------------------
TestRuns = {}

local function start(c, dir)
  local r = kv.run.create { dir = dir or fresh(), config = c }
  lu.assertTrue(r:claim())
  r:begin()
  return r
end

-- The lines of metrics without what depends on the clock, as one text.
local function metrics_of(r)
  local list = {}
  for i, line in ipairs((r:metrics())) do
    line.tokens_per_second = nil
    list[i] = kv.json.encode(line)
  end
  return table.concat(list, '\n')
end

local function digest_of(r, step)
  for _, name in ipairs(core.base.list_dir(r.dir .. '/checkpoints')) do
    if name:find(('^step%%-%d%%-%%d+%%.safetensors$'):format(step)) then
      return core.system.sha256_file(('%s/checkpoints/%s'):format(r.dir, name))
    end
  end
end

-- Broken off after any step, a run goes on from its last checkpoint to the same bits and the same metrics.
function TestRuns:test_resumed_is_undisturbed()
  for _, more in ipairs { { indexer = { dense_steps = 3, warmup = 4 } }, { precision = 'records', accumulate = 2,
    layout = 'mla csa/2', indexer = { select = 'random' }, schedule = { kind = 'cosine', warmup = 3 } } } do
    local c = resolved(more)
    local r <close> = start(c)
    local want = trainer.point(r)
    for _, stops in ipairs { { 1 }, { 4, 5, 11 }, { 8, 8, 12 } } do
      local other <close> = start(c)
      for _, stop in ipairs(stops) do
        check.fails('power cut', trainer.point, other, function(t)
          if t.step == stop then error('power cut', 0) end
        end)
      end
      local got = trainer.point(other)
      want.tokens_per_second, got.tokens_per_second = nil, nil
      lu.assertEquals(got, want)
      lu.assertEquals(digest_of(other, 12), digest_of(r, 12))
      lu.assertEquals(metrics_of(other), metrics_of(r))
    end
  end
end

function TestRuns:test_stops_early()
  local c = resolved { stop = { metric = 'val_loss', at = 100 } }
  local r <close> = start(c)
  local metrics = trainer.point(r)
  lu.assertEquals({ metrics.step, metrics.step_reached }, { 5, 5 })
  local again = trainer.point(r) -- killed before it was done: no step more
  lu.assertEquals({ again.step, again.step_reached, again.val_loss }, { 5, 5, metrics.val_loss })
  local never <close> = start(resolved { stop = { metric = 'accuracy', at = 1 } })
  metrics = trainer.point(never)
  lu.assertEquals({ metrics.step, metrics.step_reached }, { 12, nil })
  local wrong <close> = start(resolved { stop = { metric = 'acuracy', at = 1 } })
  check.fails({ "'acuracy'", "'accuracy'" }, trainer.point, wrong)
end

-- Recall with a window below is learned in a few steps, and what is reported is what was learned.
function TestRuns:test_learns()
  local r <close> = start(recipe.resolve { layout = 'layer{form=heads,window=2} mha', seed = 1,
    task = { name = 'recall', vocab = 16, length = 8, pairs = 2 }, widths = { hidden_size = 32 }, steps = 300, batch = 64,
    optimiser = { lr = 5e-3 }, eval_batches = 1, stop = { metric = 'accuracy', at = 0.95 }, eval_every = 25 })
  local metrics = trainer.point(r)
  lu.assertTrue(metrics.accuracy >= 0.95 and metrics.step_reached <= 200)
  lu.assertTrue(metrics.val_loss < 0.4 and metrics.loss < 0.6)
  lu.assertEquals(metrics.parameters, recipe.parameters(r.config))
  local t = trained.open(r.dir)
  lu.assertEquals(evaluate.full(t.model, t.task, { batches = 1, size = 128 }).accuracy, metrics.accuracy)
end

-- Whole sequences through records and decoding through caches agree, in float32 and in records.
function TestRuns:test_decoded_is_the_same()
  for _, case in ipairs { { 'mha gqa', 'f32', 'bf16' }, { 'swa{window=3} full/2 reindex reuse', 'f32', 'bf16', 'own' },
    { 'mla{window=4} dsa', 'f32', 'bf16' }, { 'csa/2 hca/4', 'f32', 'v4-bf16' } } do
    local t = trainer.new(resolved { layout = case[1] })
    for _ = 1, 6 do t:advance() end
    t.run = false
    local o = { batches = 2, size = 5, indexer = t:indexer() }
    local plain = evaluate.full(t.model, t.task, o)
    for _, records in ipairs(table.move(case, 2, #case, 1, {})) do
      local m = trained.through(t, records)
      local full = evaluate.full(m, t.task, o)
      local decoded = evaluate.cached(m, t.task, { batches = 2, size = 5, records = records })
      for _, name in ipairs { 'val_loss', 'accuracy', 'candidate' } do
        lu.assertAlmostEquals(decoded[name], full[name], 2e-5, case[1] .. ' ' .. records .. ' ' .. name)
      end
      if records == 'f32' then lu.assertAlmostEquals(full.val_loss, plain.val_loss, 1e-5)
      else lu.assertNotEquals(full.val_loss, plain.val_loss) end
    end
  end
end

-- An oracle selects for all that read with its list, whoever asks.
function TestRuns:test_oracle_of_a_shared_selection()
  local t = trainer.new(resolved { layout = 'full/1{window=none} reuse', indexer = { select = 'oracle' } })
  local found = evaluate.full(t.model, t.task, { batches = 1, size = 6, indexer = t:indexer() })
  local _, _, more = t.model:loss(t.task.validation(1, 6), { gradients = false, indexer = { select = 'oracle',
    kl = 'visible', metrics = true } })
  lu.assertEquals(found.indexers[1].recall, more.indexers[1].recall)
  local alone = study.new { select = 'oracle', metrics = true }
  local ids = t.model:tokens(t.task.validation(1, 6).tokens)
  t.model:run(t.model:embed(ids, 0), 0, t.model:tensor_cells(6), nil, alone)
  lu.assertNotEquals(alone:report()[1].recall, found.indexers[1].recall) -- by its own mass only
end

-- Slices and counts of a task come out as metrics of their own, the same both ways.
function TestRuns:test_slices()
  for _, task in ipairs { { name = 'recall', vocab = 24, length = 16, pairs = 4, rewrites = 1 },
    { name = 'phonebook', length = 60 }, { name = 'variables', length = 30 } } do
    local t = trainer.new(resolved { layout = 'mha', task = task })
    local full = evaluate.full(t.model, t.task, { batches = 1, size = 6 })
    local decoded = evaluate.cached(t.model, t.task, { batches = 1, size = 6, records = 'f32' })
    local names = 0
    for name, value in pairs(full) do
      lu.assertAlmostEquals(decoded[name], value, 2e-5, task.name .. ' ' .. name)
      names = names + 1
    end
    lu.assertTrue(names >= 4, task.name)
  end
end

function TestRuns:test_estimate()
  local threads = core.base.threads()
  local c = resolved { steps = 1000 }
  local seconds = trainer.estimate(c)
  lu.assertTrue(seconds > 0.1 and seconds < 1000)
  c.seed = 2
  lu.assertEquals(trainer.estimate(c), seconds) -- measured once
  lu.assertEquals(core.base.threads(), threads)
end

TestZ = {}

function TestZ:test_remove() lu.assertTrue(os.execute(('rm -rf %q'):format(root))) end

check.main()
