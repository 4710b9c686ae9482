-- toys.lua: the sweep of scripts/test-queues: four trainings of a fraction of a second. While the folder of the runs
-- has a file `hold`, each stays at step 12, two after a checkpoint, and has a file `held`. `begun` gets the id of each
-- attempt.
local core = require 'kvlab.core'
local trainer = require 'kvlab.trainer'

local STEP <const> = 12

local function exists(path) return core.system.stat(path) ~= nil end

local function hold(run)
  local dir = run.dir:match '^(.*)/'
  if not exists(dir .. '/hold') then return end
  core.system.append(run.dir .. '/held', '')
  while exists(dir .. '/hold') and not core.base.interrupted() do core.system.sleep(0.02) end
end

return {
  name = 'toys',
  defaults = trainer.defaults,
  resolve = trainer.resolve,
  fixed = {
    layout = 'mha reuse',
    task = { name = 'recall', vocab = 16, length = 12, pairs = 2 },
    widths = { hidden_size = 16, num_attention_heads = 2, num_key_value_heads = 2, head_dim = 8 },
    model = { ffn = 0 }, steps = 20, batch = 4, checkpoint_every = 5, log_every = 5, eval_batches = 1, eval_size = 8,
  },
  vary = { ['optimiser.lr'] = { 1e-2, 3e-3 } },
  seeds = 2,
  measure = { 'accuracy' },
  point = function(run)
    core.system.append(run.dir:match '^(.*)/' .. '/begun', run.id .. '\n')
    os.remove(run.dir .. '/held')
    return trainer.point(run, function(training)
      if training.step == STEP then hold(run) end
    end)
  end,
}
