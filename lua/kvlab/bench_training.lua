-- bench_training.lua: the benches of training: one step of small models, and what does not belong to their kernels.
--
-- The models of scripts/bench_torch.py are the same; what is changed here has to be changed there.
local core = require 'kvlab.core'
local flops = require 'kvlab.flops'
local model = require 'kvlab.model'
local optim = require 'kvlab.optim'
local tensor = require 'kvlab.tensor'

local training = {}

local VOCAB <const> = 65 -- characters of a text

-- nanoGPT's recipe for a CPU, and what the models beside it have in common.
local NANO <const> = { hidden_size = 128, num_attention_heads = 4, head_dim = 32, vocab_size = VOCAB,
  intermediate_size = 512, max_position_embeddings = 64 }
local WIDTHS <const> = { hidden_size = 128, num_attention_heads = 4, num_key_value_heads = 2, head_dim = 32,
  qk_nope_head_dim = 32, qk_rope_head_dim = 16, v_head_dim = 32, kv_lora_rank = 64, index_n_heads = 4,
  index_head_dim = 32, index_topk = 16, sliding_window = 16, vocab_size = VOCAB, intermediate_size = 352 }

-- name, layout, widths, options of the model, batch, length, set of the loss of indexers, target
training.models = {
  { 'nanogpt-char', 'mha*4', NANO, { tied = true, norm = 'layer', mlp = 'gelu', positions = 'learned' }, 12, 64, nil,
    0.5 },
  { 'gqa', 'gqa*6', WIDTHS, { tied = true }, 16, 256, nil, 0.5 },
  { 'mla', 'mla*6', WIDTHS, { tied = true }, 16, 256, nil, 0.5 },
  { 'csa', 'csa*6', WIDTHS, { tied = true }, 4, 1024, 'selected', 0.3 },
  { 'full-reuse', '[full/2 reuse*2]*2', WIDTHS, { tied = true }, 4, 1024, 'selected', 0.3 },
}

-- training.stepper(row) -> a function that does one step of a model of the list, and the model: loss, gradients,
-- clipping and AdamW on one batch of random tokens, again and again. The learning rate is so small that the model stays
-- what it is.
function training.stepper(row)
  local _, text, widths, options, batch, length, kl = table.unpack(row, 1, 7)
  core.base.keep_memory()
  local m = model.new(text, widths, options)
  local optimiser = optim.adamw(m, { lr = 1e-7 })
  local function draw(seed)
    return tensor.random { batch, length, seed = seed, dist = 'integer', low = 0, high = VOCAB - 1 }
  end
  local examples = { tokens = draw(1), targets = draw(2) }
  local settings = { indexer = kl and { kl = kl } or nil }
  return function()
    local _, gradients = m:loss(examples, settings)
    optimiser:step(gradients)
  end, m
end

-- The model of nanogpt-char with as little in it as possible: what is left of a step is Lua and the binding.
local function toy()
  local widths = {}
  for name, value in pairs(NANO) do widths[name] = value end
  widths.hidden_size, widths.head_dim, widths.intermediate_size = 8, 2, 8
  local row = table.move(training.models[1], 1, #training.models[1], 1, {})
  row[3], row[5], row[6] = widths, 1, 2
  return row
end

-- Runs `count` processes at a time until `runs` of them have trained nanogpt-char for a few steps.
local function processes(runs, count)
  local code = "local c = require 'kvlab.core' c.base.blas_single_thread() c.base.threads(1) "
    .. "local t = require 'kvlab.bench_training' local step = t.stepper(t.models[1]) for _ = 1, 12 do step() end"
  local command = ("LUA_INIT= LUA_PATH='%s' LUA_CPATH='%s' lua5.4 -e \"%s\""):format(package.path, package.cpath, code)
  for _ = 1, runs // count do
    local open = {}
    for i = 1, count do open[i] = assert(io.popen(command)) end
    for _, pipe in ipairs(open) do
      if not pipe:close() then error('bench: a process that trains has failed', 0) end
    end
  end
end

-- training.add(add): hands the benches to `add` of kvlab.bench.
function training.add(add)
  for _, row in ipairs(training.models) do
    local name, text, _, _, batch, length, kl, target = table.unpack(row, 1, 8)
    add('train/' .. name, ('a training step of %s, %d sequences of %d tokens; limit: sgemm on the operations of its'
      .. ' products'):format(text, batch, length), 'GFLOP/s', target, function()
      local step, m = training.stepper(row)
      local work = 2 * flops.step(m, batch, length, kl):tonumber()
      local parameters = 0
      for _, name_of in ipairs(m.names) do parameters = parameters + m.parameters[name_of].size end
      return { work = work, run = step, needs = { sgemm = work }, keep_garbage = true, parameters = parameters }
    end)
  end
  add('lua', 'steps of nanogpt-char at toy widths, which are nearly all Lua; limit: the real steps', 'steps/s', 33,
    function()
      local real = training.stepper(training.models[1])
      return { work = 1, run = training.stepper(toy()), needs = { real = { work = 1, against = real } },
        keep_garbage = true }
    end)
  add('two-runs', 'two processes that train nanogpt-char on one thread at the same time; limit: one after the other',
    'runs/s', 1.74, function()
      return { work = 2, run = function() processes(2, 2) end, processes = true,
        needs = { one = { work = 2, against = function() processes(2, 1) end } } }
    end)
end

return training
