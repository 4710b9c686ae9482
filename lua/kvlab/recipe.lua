-- recipe.lua: what a training run is made from: its settings, with defaults and checks, and the task and model that
-- follow from them. kvlab.trainer does the run.
--
-- Settings are plain data (kvlab.config), `false` stands for none. resolve() completes them: options of the task with
-- their defaults and the digest of its files, widths, length. So the id of a run covers all that its numbers depend on.
local config = require 'kvlab.config'
local core = require 'kvlab.core'
local model = require 'kvlab.model'
local optim = require 'kvlab.optim'
local opts = require 'kvlab.options'
local presets = require 'kvlab.presets'
local shape = require 'kvlab.shape'
local study = require 'kvlab.study'
local task_rules = require 'kvlab.tasks.task'
local tasks = require 'kvlab.tasks'
local weights = require 'kvlab.weights'
local width_rules = require 'kvlab.widths'

local recipe = {}

recipe.defaults = {
  layout = config.required, widths = {}, records = 'own', context = false,
  task = config.required,
  model = { ffn = false, tied = false, norm = 'rms', mlp = 'swiglu', positions = 'rope', order = false, seed = false },
  init = { kind = 'default', std = 0.02 },
  steps = 1000, batch = 64, accumulate = 1,
  optimiser = { lr = 1e-3, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, decay = 0.1, clip = 1 },
  schedule = { kind = 'constant', warmup = 0, final = 0, steps = false },
  indexer = { select = 'learned', kl = 'selected', coefficient = 1, dense_steps = 0, warmup = 0, warmup_lr = false },
  precision = 'float',
  log_every = 10, eval_every = false, eval_batches = 4, eval_size = 128, checkpoint_every = 200,
  stop = false,
  seed = 1,
}

local function whole(c, name, low) c[name] = opts.whole(c[name], low, name) end

local function above_zero(value, where)
  if type(value) ~= 'number' or not (value > 0 and value < math.huge) then
    error(('%s is %s, expected a number above 0'):format(where, tostring(value)), 0)
  end
end

-- --- the task -------------------------------------------------------------------------------------------

-- A task of the user's own: a file that returns a task, or a function from options to one.
local function task_of_file(spec)
  local file, problem = io.open(spec.file, 'rb')
  local text = file and file:read('a')
  if file then file:close() end
  if not text then error(('task: cannot read %s'):format(problem or spec.file), 0) end
  local digest = core.system.sha256(text):sub(1, 16)
  if spec.digest and spec.digest ~= digest then
    error(('task: %s is another one now: its digest is %s, not %s'):format(spec.file, digest, tostring(spec.digest)), 0)
  end
  local chunk
  chunk, problem = load(text, '@' .. spec.file, 't')
  if not chunk then error(('task: %s'):format(problem), 0) end
  local made, options = chunk(), {}
  for key, value in pairs(spec) do
    if key ~= 'file' and key ~= 'digest' then options[key] = value end
  end
  if type(made) == 'function' then made = made(options)
  elseif next(options) then
    error(("task: %s returns a task, so it takes no option '%s'; it may return a function of options"):format(spec.file,
      (next(options))), 0)
  end
  if type(made) ~= 'table' then
    error(('task: %s returns a %s, expected a task or a function that makes one'):format(spec.file, type(made)), 0)
  end
  options.file, options.digest = spec.file, digest
  return task_rules.new(made), options
end

local function task_of_name(spec)
  local names = tasks.names()
  if spec.name == nil then
    error(('task: no name; expected { name = ... }, one of %s, or { file = ... }'):format(table.concat(names, ', ')), 0)
  end
  opts.word(spec.name, names, 'task: name')
  local options = {}
  for key, value in pairs(spec) do options[key] = value end
  options.name = nil
  local made = tasks[spec.name](options)
  local plain = { name = spec.name }
  for key, value in pairs(made.options) do plain[key] = value end
  return made, plain
end

local function task_of_stages(stages)
  local list, plain = {}, {}
  for i, stage in ipairs(stages) do
    opts.check(stage, { 'task', 'steps' }, ('task: stage %d'):format(i))
    local made, options = recipe.task(stage.task)
    list[i], plain[i] = { task = made, steps = stage.steps }, { task = options, steps = stage.steps }
  end
  return tasks.curriculum(list), plain
end

-- The latest is held on to, so that a text is read and numbered once for all points of a sweep. Files of tasks are read
-- every time.
local latest = { keys = {} } -- keys: the spec as it was given, and with all options

-- recipe.task(spec) -> the task, and the spec with all options. spec: a name; { name =, options ... }; { file =,
-- options ... }; or a list of stages { task = spec, steps = n }, the last one without steps.
function recipe.task(spec)
  if type(spec) == 'string' then spec = { name = spec } end
  if type(spec) ~= 'table' then
    error(("task is %s, expected { name = 'recall', ... }"):format(tostring(spec)), 0)
  end
  if #spec > 0 then return task_of_stages(spec) end
  if spec.file then return task_of_file(spec) end
  local key = config.canonical(spec)
  if not latest.keys[key] then
    local made, plain = task_of_name(spec)
    latest = { keys = { [key] = true, [config.canonical(plain)] = true }, task = made, spec = plain }
  end
  return latest.task, config.plain(latest.spec, 'task')
end

-- --- widths and model -----------------------------------------------------------------------------------

-- Widths that kv.count takes from V4.1 when a layout has none.
local BASE = presets.load('v4.1-flash').widths

-- What is not said: a small model whose widths follow from hidden_size and the number of heads.
local function complete_widths(L, given)
  local w = width_rules.merge(L.widths, given)
  local function default(name, value)
    if w[name] == nil and given[name] ~= 'none' then w[name] = value end
  end
  default('hidden_size', 64)
  default('num_attention_heads', 1)
  default('num_key_value_heads', 1)
  default('head_dim', math.max(1, w.hidden_size // w.num_attention_heads))
  default('v_head_dim', w.head_dim)
  default('qk_nope_head_dim', w.head_dim)
  default('kv_lora_rank', w.head_dim)
  default('index_n_heads', 4)
  default('index_head_dim', 16)
  default('qk_rope_head_dim', math.max(2, math.min(w.head_dim // 4 * 2, w.index_head_dim or 16)))
  default('index_topk', 8)
  default('sliding_window', 16)
  -- What there is not must be said: counting and the layout have widths of their own to start from.
  for _, name in ipairs(width_rules.names) do
    if w[name] == nil and (given[name] == 'none' or BASE[name]) then w[name] = 'none' end
  end
  return w
end

-- The widths of the model: with as many ids and positions as the task needs.
local function model_widths(c, task)
  local w = {}
  for name, value in pairs(c.widths) do w[name] = value end
  if w.vocab_size == 'none' then w.vocab_size = nil end
  if w.max_position_embeddings == 'none' then w.max_position_embeddings = nil end
  w.vocab_size = w.vocab_size or task.vocab
  if w.vocab_size < task.vocab then
    error(('widths: vocab_size = %d, but the task %s has %d ids'):format(w.vocab_size, task.name, task.vocab), 0)
  end
  w.max_position_embeddings = w.max_position_embeddings or task.length
  if w.max_position_embeddings < task.length then
    error(('widths: max_position_embeddings = %d, but rows of the task %s are %d tokens long')
      :format(w.max_position_embeddings, task.name, task.length), 0)
  end
  return w
end

-- The options of the model.
local function model_options(c)
  local o = {}
  for name, value in pairs(c.model) do o[name] = value or nil end
  o.seed = o.seed or c.seed
  o.init = c.init
  if c.precision == 'records' then o.records = config.records(c.records) end
  return o
end

-- recipe.parameters(c) -> how many the model has, without making it. Raises when layout and widths do not fit.
function recipe.parameters(c)
  local L = config.layout(c.layout)
  return model.size(L, width_rules.merge(L.widths, model_widths(c, (recipe.task(c.task)))), model_options(c))
end

-- recipe.notes(c) -> what is allowed in the settings but hardly meant: caches that never hold an entry, selections that
-- leave nothing out.
function recipe.notes(c)
  local L, list = config.layout(c.layout), {}
  local length = recipe.task(c.task).length
  local widths = width_rules.merge(L.widths, c.widths)
  local function note(i, text, ...) list[#list + 1] = ('%s: %s'):format(L:called(i), text:format(...)) end
  for i = 1, #L do
    local s = shape.of(L, i, widths)
    local ratio = s.ratio or 1
    if s.owns and ratio > length then
      note(i, 'an entry is made of %d tokens, but rows have only %d, so there is none', ratio, length)
    elseif s.owns and length % ratio > 0 then
      note(i, 'rows of %d tokens end in the middle of an entry of %d; the last %d are in none', length, ratio,
        length % ratio)
    end
    if s.topk and s.topk >= length // ratio then
      note(i, 'it selects %d of at most %d entries, which leaves nothing out', s.topk, length // ratio)
    end
  end
  return list
end

-- recipe.model(c, task, parameters) -> the model of resolved settings, with these parameters or untrained.
function recipe.model(c, task, parameters)
  local o = model_options(c)
  o.weights = parameters
  return model.new(config.layout(c.layout), model_widths(c, task), o)
end

-- recipe.selects(m): has the model indexers?
function recipe.selects(m)
  for _, A in ipairs(m.layers) do
    if A.shape.topk then return true end
  end
  return false
end

-- recipe.optimiser(c, m, schedule) -> AdamW by the settings.
function recipe.optimiser(c, m, schedule)
  local o = { schedule = schedule }
  for name, value in pairs(c.optimiser) do o[name] = value end
  return optim.adamw(m, o)
end

-- recipe.schedule(c, steps) -> factor of the learning rate by step; `steps` is how many there are.
function recipe.schedule(c, steps)
  local s = c.schedule
  return optim.schedule[s.kind] { warmup = s.warmup, final = s.kind ~= 'constant' and s.final or nil,
    steps = s.kind ~= 'constant' and (s.steps or steps) or nil }
end

-- --- settings ---------------------------------------------------------------------------------------------

local SCHEDULES = { 'constant', 'linear', 'cosine' }

local function check_indexer(c)
  local o = c.indexer
  opts.word(o.select, study.arms, 'indexer: select')
  local sets = table.move(study.sets, 1, #study.sets, 1, {})
  sets[#sets + 1] = 'none'
  opts.word(o.kl, sets, 'indexer: kl')
  study.new { coefficient = o.coefficient }
  for _, name in ipairs { 'dense_steps', 'warmup' } do o[name] = opts.whole(o[name], 0, 'indexer: ' .. name) end
  if o.dense_steps + o.warmup > c.steps then
    error(('indexer: %d dense_steps and %d of warmup, but the run has only %d steps'):format(o.dense_steps, o.warmup,
      c.steps), 0)
  end
  if o.warmup_lr then above_zero(o.warmup_lr, 'indexer: warmup_lr') end
end

local function check_stop(stop)
  if not stop then return false end
  opts.check(stop, { 'metric', 'at' }, 'stop')
  if type(stop.metric) ~= 'string' or type(stop.at) ~= 'number' then
    error("stop: expected { metric = 'accuracy', at = 0.99 }", 0)
  end
  return stop
end

-- Raises when a row does not fit its record.
local function check_records(c)
  local L, records = config.layout(c.layout), config.records(c.records)
  local asked, deployed = shape.asked(records), shape.deployed(L, records)
  local widths = width_rules.merge(L.widths, c.widths)
  for i = 1, #L do shape.plans(shape.of(L, i, widths), asked, deployed) end
end

-- recipe.resolve(settings) -> settings in which nothing is left open. Raises for whatever is wrong with them, so that
-- no run begins with settings that it cannot have.
function recipe.resolve(settings)
  local c = config.resolve(settings, recipe.defaults, 'training')
  for _, name in ipairs { 'steps', 'batch', 'accumulate', 'log_every', 'eval_batches', 'eval_size',
    'checkpoint_every' } do
    whole(c, name, 1)
  end
  if c.eval_every then whole(c, 'eval_every', 1) end
  whole(c, 'seed', 0)
  opts.word(c.precision, { 'float', 'records' }, 'precision')
  c.init = weights.init(c.init, 'init')
  opts.word(c.schedule.kind, SCHEDULES, 'schedule: kind')
  recipe.schedule(c, c.steps)
  check_indexer(c)
  c.stop = check_stop(c.stop)
  local L = config.layout(c.layout)
  if type(c.layout) == 'table' then c.layout.layout = tostring(L) else c.layout = tostring(L) end
  c.widths = complete_widths(L, c.widths)
  c.model.ffn = c.model.ffn or c.widths.intermediate_size or 0
  local task
  task, c.task = recipe.task(c.task)
  c.context = opts.whole(c.context or task.length, 1, 'context')
  model.check_options(model_options(c))
  recipe.parameters(c)
  if c.precision == 'records' then check_records(c) end
  recipe.optimiser(c, {}) -- its options are checked
  return c
end

return recipe
