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
local core = require 'kvlab.core'
local diagnose = require 'kvlab.diagnose'
local evaluate = require 'kvlab.evaluate'
local recipe = require 'kvlab.recipe'

local trainer = { defaults = recipe.defaults, resolve = recipe.resolve }

local class = {}
local meta = { __index = class, __name = 'kvlab.Training' }

-- trainer.new(c) -> a training at step 0, by resolved settings.
function trainer.new(c)
  local task = recipe.task(c.task)
  local m = recipe.model(c, task)
  local self = setmetatable({ config = c, task = task, model = m, step = 0, selects = recipe.selects(m),
    sum = 0, summed = 0 }, meta)
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

-- training:advance() -> { loss, norm, lr, kl, tokens }: one step. Raises where a number is not finite, saying where
-- that began.
function class:advance()
  local c, step = self.config, self.step + 1
  local batch = self.task.batch(c.seed, step, c.batch * c.accumulate)
  local indexer, train = self:phase(self.step)
  local all = batch.targets:ge(0):sum()
  local gradients, loss, kl, kls = {}, 0, 0, 0
  for _, part in ipairs(parts_of(batch, c.accumulate)) do
    local share = part.targets:ge(0):sum() / all
    if share > 0 then
      local one, _, more = self.model:loss(part, { gradients = gradients, scale = share, indexer = indexer,
        train = train })
      loss = loss + one * share
      for _, value in pairs(more.kl or {}) do kl, kls = kl + value, kls + 1 end
    end
  end
  local options = { indexer = indexer, train = train }
  if loss ~= loss or loss == math.huge then error(diagnose.loss(self.model, batch, step, loss, options), 0) end
  local norm, lr = self.optimiser:step(gradients)
  if norm ~= norm or norm == math.huge then error(diagnose.gradient(self.model, batch, step, norm, options), 0) end
  self.step, self.sum, self.summed = step, self.sum + loss, self.summed + 1
  return { loss = loss, norm = norm, lr = lr, kl = kls > 0 and kl / kls or nil, tokens = batch.tokens.size }
end

-- training:evaluate() -> metrics on validation batches, selecting as at the end of the run.
function class:evaluate()
  local c = self.config
  return evaluate.full(self.model, self.task, { batches = c.eval_batches, size = c.eval_size,
    indexer = self.selects and { select = c.indexer.select, seed = 0 } or nil })
end

-- The mean of the losses since it was asked last.
function class:mean_loss()
  local mean = self.sum / math.max(1, self.summed)
  self.sum, self.summed = 0, 0
  return mean
end

function class:parameters()
  local n = 0
  for t in pairs(self.optimiser.first) do n = n + t.size end
  return n
end

-- --- checkpoints ----------------------------------------------------------------------------------------

-- training:save(run): all that the next steps depend on.
function class:save(run)
  local tensors, data = self.optimiser:state()
  for t, name in pairs(self.optimiser.first) do tensors['p.' .. name] = t end
  run:checkpoint { step = self.step, tensors = tensors, state = { optimiser = data, sum = self.sum + 0.0,
    summed = self.summed } }
end

-- training:load(from): what run:resume gave.
function class:load(from)
  for t, name in pairs(self.optimiser.first) do
    local saved = from.tensors['p.' .. name]
    if not saved then error(('the checkpoint of step %d has no parameter %s'):format(from.step, name), 0) end
    t:copy_(saved)
    saved:free()
  end
  self.model:changed()
  self.optimiser:restore(from.tensors, from.state.optimiser)
  self.step, self.sum, self.summed = from.step, from.state.sum, from.state.summed
end

-- --- a run ----------------------------------------------------------------------------------------------

-- Is the metric of `stop` where the run may end? Losses from above, all else from below.
local function reached(stop, metrics)
  local value = metrics[stop.metric]
  if value == nil then
    local names = {}
    for name, one in pairs(metrics) do
      if type(one) == 'number' then names[#names + 1] = name end
    end
    table.sort(names)
    error(("stop: there is no metric '%s'; there are %s"):format(stop.metric, table.concat(names, ', ')), 0)
  end
  if stop.metric:find('loss', 1, true) then return value <= stop.at end
  return value >= stop.at
end

-- point(run, observe) -> metrics. observe(training, line) is told of every step; `line` is what was logged, if
-- anything.
function trainer.point(run, observe)
  core.base.keep_memory()
  local c = run.config
  local self = trainer.new(c)
  local from = run:resume()
  if from then self:load(from) end
  local tokens, seconds = 0, 0 -- of training, in this attempt
  local since_tokens, since = 0, 0
  local metrics, kl
  while self.step < c.steps do
    local began = core.base.now()
    local did = self:advance()
    local took = core.base.now() - began
    tokens, seconds = tokens + did.tokens, seconds + took
    since_tokens, since = since_tokens + did.tokens, since + took
    kl = did.kl or kl
    local last, line = self.step == c.steps, nil
    if self.step % c.log_every == 0 or last then
      line = { step = self.step, loss = self:mean_loss(), norm = did.norm, lr = did.lr, kl = did.kl,
        tokens_per_second = since_tokens / since }
      since_tokens, since = 0, 0
      self.loss = line.loss
    end
    metrics = nil
    if last or c.eval_every and self.step % c.eval_every == 0 then
      metrics = self:evaluate()
      line = line or { step = self.step }
      for name, value in pairs(metrics) do line[name] = value end
    end
    if line then run:log(line) end
    if observe then observe(self, line) end
    local stop = metrics and c.stop and reached(c.stop, metrics)
    if stop or last then
      metrics.step_reached = stop and self.step or nil
      break
    end
    if self.step % c.checkpoint_every == 0 then self:save(run) end
  end
  self:save(run)
  metrics = metrics or self:evaluate()
  metrics.step, metrics.loss, metrics.kl = self.step, self.loss, kl
  metrics.tokens_per_second = seconds > 0 and tokens / seconds or nil
  metrics.parameters = self:parameters()
  return metrics
end

return trainer
