-- trainer.lua: trains any layout on any task, as one run: the worker of experiments that say worker = 'kvlab.trainer'.
-- Settings: kvlab.recipe, docs/training.md.
--
-- A batch depends on the seed and the step alone, so the state of a run is its step, the parameters, the optimiser's
-- moments and the loss since the last line of metrics. "200 steps" and "100 steps, killed, 100 more" are the same bits.
--
-- A model with indexers learns in up to three phases: `dense_steps` in which attention reads all visible entries and
-- indexers do not learn; `warmup` steps that train the indexers alone, on the attention of the model as it is; and the
-- rest, in which entries are selected. The schedule of the learning rate goes over the first and the last; the second
-- has a constant rate after the schedule's warm-up.
local config = require 'kvlab.config'
local core = require 'kvlab.core'
local diagnose = require 'kvlab.diagnose'
local evaluate = require 'kvlab.evaluate'
local opts = require 'kvlab.options'
local recipe = require 'kvlab.recipe'

local trainer = { defaults = recipe.defaults, resolve = recipe.resolve, parameters = recipe.parameters }

local class = {}
local meta = { __index = class, __name = 'kvlab.Training' }

-- trainer.new(c) -> a training at step 0, by resolved settings.
function trainer.new(c)
  local task = recipe.task(c.task)
  local m = recipe.model(c, task)
  local self = setmetatable({ config = c, task = task, model = m, step = 0, selects = recipe.selects(m) }, meta)
  -- What goes on besides parameters and moments: losses since the last line, and what was done and logged so far.
  self.state = { sum = 0.0, summed = 0, tokens = 0, seconds = 0.0, logged_tokens = 0, logged_seconds = 0.0,
    reported = 0 }
  local dense = self.selects and c.indexer.dense_steps or 0
  local warm = self.selects and c.indexer.warmup or 0
  self.dense_until, self.warm_until = dense, dense + warm
  local factor, first = recipe.schedule(c, c.steps - warm), c.schedule.warmup
  self.optimiser = recipe.optimiser(c, m, function()
    local step = self.step + 1
    if step <= dense then return factor(step) end
    if step > self.warm_until then return factor(step - warm) end
    return (c.indexer.warmup_lr or c.optimiser.lr) / c.optimiser.lr * math.min(1, (step - dense) / math.max(1, first))
  end)
  return self
end

-- How the step after `step` treats indexers: options of model:loss.
function class:phase(step)
  if not self.selects then return nil, nil end
  local o = self.config.indexer
  if step < self.dense_until then return { dense = true }, nil end
  if step < self.warm_until then return { dense = true, kl = 'visible' }, 'indexer' end
  return { select = o.select, kl = o.kl ~= 'none' and o.kl or nil, coefficient = o.coefficient,
    seed = self.config.seed * 1000003 + step }, nil
end

-- The parts of a batch of `batch` * `accumulate` rows: a row is the same whatever part it is in.
local function parts_of(batch, n)
  if n == 1 then return { batch } end
  local rows = batch.tokens.shape[1] // n
  local parts = {}
  for i = 1, n do
    local first, last = (i - 1) * rows + 1, i * rows
    parts[i] = { tokens = batch.tokens:slice(1, first, last), targets = batch.targets:slice(1, first, last) }
  end
  return parts
end

-- The gradients of a batch, its loss and the mean KL of the indexers. Ctrl-C may end it: nothing has changed yet.
local function differentiate(self, batch, options)
  local _ <close> = core.base.hold_interrupts(false)
  local all = batch.targets:ge(0):sum()
  local gradients, loss, kl, kls = {}, 0, 0, 0
  for _, part in ipairs(parts_of(batch, self.config.accumulate)) do
    local share = part.targets:ge(0):sum() / all
    if share > 0 then
      local one, _, more = self.model:loss(part, { gradients = gradients, scale = share, indexer = options.indexer,
        train = options.train })
      loss = loss + one * share
      for _, value in pairs(more.kl or {}) do kl, kls = kl + value, kls + 1 end
    end
  end
  return gradients, loss, kls > 0 and kl / kls or nil
end

-- training:advance() -> { loss, norm, lr, kl, tokens }: one step. Raises where a number is not finite, saying where
-- that began.
function class:advance()
  local _ <close> = core.base.hold_interrupts(true) -- a step is done or not
  local c, step, began = self.config, self.step + 1, core.base.now()
  local batch = self.task.batch(c.seed, step, c.batch * c.accumulate)
  local options = {}
  options.indexer, options.train = self:phase(self.step)
  local gradients, loss, kl = differentiate(self, batch, options)
  if loss ~= loss or loss == math.huge then error(diagnose.loss(self.model, batch, step, loss, options), 0) end
  local norm, lr = self.optimiser:step(gradients)
  if norm ~= norm or norm == math.huge then error(diagnose.gradient(self.model, batch, step, norm, options), 0) end
  local s, tokens = self.state, batch.tokens.size
  self.step, s.sum, s.summed, s.norm, s.lr, s.kl = step, s.sum + loss, s.summed + 1, norm, lr, kl
  s.tokens, s.seconds = s.tokens + tokens, s.seconds + core.base.now() - began
  return { loss = loss, norm = norm, lr = lr, kl = kl, tokens = tokens }
end

-- training:evaluate() -> metrics on validation batches, selecting as at the end of the run.
function class:evaluate()
  local c = self.config
  local _ <close> = core.base.hold_interrupts(false)
  return evaluate.full(self.model, self.task, { batches = c.eval_batches, size = c.eval_size,
    indexer = self:indexer() })
end

-- How entries are selected to evaluate: an option of evaluate.full, nil without indexers.
function class:indexer()
  return self.selects and { select = self.config.indexer.select, seed = 0 } or nil
end

-- --- checkpoints ----------------------------------------------------------------------------------------

-- training:save(run): all that the next steps depend on.
function class:save(run)
  local _ <close> = core.base.hold_interrupts(true)
  local tensors, data = self.optimiser:state()
  for t, name in pairs(self.optimiser.first) do tensors['p.' .. name] = t end
  run:checkpoint { step = self.step, tensors = tensors, state = { optimiser = data, training = self.state } }
end

-- training:load(from): what run:resume or run:last gave.
function class:load(from)
  for t, name in pairs(self.optimiser.first) do
    local saved = from.tensors['p.' .. name]
    if not saved then error(('the checkpoint of step %d has no parameter %s'):format(from.step, name), 0) end
    t:copy_(saved)
    saved:free()
  end
  self.model:changed()
  self.optimiser:restore(from.tensors, from.state.optimiser)
  self.step, self.state = from.step, from.state.training
end

-- --- a run ----------------------------------------------------------------------------------------------

-- Is the metric of `stop` where the run may end? Losses from above, all else from below.
local function reached(stop, metrics)
  local value = metrics[stop.metric]
  if type(value) ~= 'number' then
    local names = {}
    for name, one in pairs(metrics) do
      if type(one) == 'number' then names[#names + 1] = name end
    end
    table.sort(names)
    error(("stop: there is no metric '%s'%s"):format(stop.metric, opts.suggest(stop.metric, names)), 0)
  end
  if stop.metric:find('loss', 1, true) then return value <= stop.at end
  return value >= stop.at
end

local function finished(self) return self.state.reached ~= nil or self.step >= self.config.steps end

-- Evaluates and logs when it is time to. Interrupted, it is done again when the run goes on.
local function report(self, run)
  local c, s, step = self.config, self.state, self.step
  local last, line, metrics = step == c.steps, nil, nil
  if last or c.eval_every and step % c.eval_every == 0 then
    metrics = self:evaluate()
    if c.stop and reached(c.stop, metrics) then s.reached, last = step, true end
  end
  if step % c.log_every == 0 or last then
    s.loss = s.summed > 0 and s.sum / s.summed or s.loss
    line = { step = step, loss = s.loss, norm = s.norm, lr = s.lr, kl = s.kl,
      tokens_per_second = s.logged_seconds < s.seconds and (s.tokens - s.logged_tokens) / (s.seconds - s.logged_seconds)
        or nil }
    s.sum, s.summed, s.logged_tokens, s.logged_seconds = 0.0, 0, s.tokens, s.seconds
  end
  if metrics then
    line = line or { step = step }
    for name, value in pairs(metrics) do line[name] = value end
  end
  if line then run:log(line) end
  s.reported = step
  return metrics, line
end

-- --- how long it takes ------------------------------------------------------------------------------------

local TRIAL <const> = 0.7 -- seconds that are spent on steps

-- Seconds of one step when the training stands at `step`, by doing some. They are seconds of this thread's processor:
-- what else the machine does now says nothing of when the run will have it.
local function step_time(self, step, budget)
  self.step = step
  local started, count, first = os.clock(), 0, 0
  repeat
    self:advance()
    count = count + 1
    if count == 1 then first = os.clock() - started end
    self.step = step
  until os.clock() - started > budget
  local took = os.clock() - started
  return count > 1 and (took - first) / (count - 1) or took -- the first one takes memory from the system
end

local estimated = {}

-- trainer.estimate(c) -> seconds of a run with these settings on one thread, measured in a second or two. A run that
-- may stop early takes less.
function trainer.estimate(c)
  local settings = {}
  for key, value in pairs(c) do settings[key] = value end
  settings.seed = nil
  local key = config.canonical(settings)
  if estimated[key] then return estimated[key] end
  local threads = core.base.threads()
  core.base.threads(1)
  local _ <close> = setmetatable({}, { __close = function() core.base.threads(threads) end })
  local self = trainer.new(c)
  local phases = { { 0, self.dense_until }, { self.dense_until, self.warm_until }, { self.warm_until, c.steps } }
  local seconds = 0
  for _, phase in ipairs(phases) do
    local n = phase[2] - phase[1]
    if n > 0 then seconds = seconds + n * step_time(self, phase[1], TRIAL * n / c.steps) end
  end
  self.step = c.steps
  local began = os.clock()
  evaluate.full(self.model, self.task, { batches = 1, size = c.eval_size, indexer = self:indexer() })
  local evaluations = 1 + (c.eval_every and (c.steps - 1) // c.eval_every or 0)
  seconds = seconds + evaluations * c.eval_batches * (os.clock() - began)
  estimated[key] = seconds
  return seconds
end

-- point(run, observe) -> metrics. observe(training, line) is told of every step; `line` is what was logged, if any was.
-- Ended by Ctrl-C or SIGTERM, the run is left with a checkpoint of the last complete step.
function trainer.point(run, observe)
  core.base.keep_memory()
  local _ <close> = core.base.hold_interrupts(true)
  local c = run.config
  local self = trainer.new(c)
  for _, note in ipairs(recipe.notes(c)) do run.notes[#run.notes + 1] = note end
  local from = run:resume()
  if from then self:load(from) end
  local saved = self.step
  local _ <close> = setmetatable({}, { __close = function(_, problem)
    if problem and core.base.interrupted() and self.step ~= saved then self:save(run) end
  end })
  local metrics
  while true do
    if self.state.reported < self.step then
      local line
      metrics, line = report(self, run)
      if observe then observe(self, line) end
    end
    if finished(self) then break end
    if self.step % c.checkpoint_every == 0 and self.step ~= saved then
      self:save(run)
      saved = self.step
    end
    self:advance()
    run:beat()
  end
  if self.step ~= saved then self:save(run) end
  saved = self.step
  metrics = metrics or self:evaluate()
  local s = self.state
  metrics.step, metrics.step_reached, metrics.loss, metrics.kl = self.step, s.reached, s.loss, s.kl
  metrics.tokens_per_second = s.seconds > 0 and s.tokens / s.seconds or nil
  metrics.parameters = recipe.parameters(c)
  return metrics
end

return trainer
