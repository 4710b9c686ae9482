-- kvlab: require 'kvlab' returns this table; nothing is written to the globals.
local core = require 'kvlab.core'
local layer = require 'kvlab.layer'
local layout = require 'kvlab.layout'

local kv = { _VERSION = 'kvlab ' .. core.version }
package.loaded['kvlab'] = kv -- presets and modules below require us while we are being made

-- layouts: the kinds of layer are values (kv.swa, kv.full, ...), the rest makes layouts of them
for name, value in pairs(layer.kinds) do kv[name] = value end
kv.group = layout.group
kv.layout = layout.new
function kv.layer(fields) return layer.new('layer', fields) end

-- numbers and records
kv.number = require 'kvlab.number'
local record = require 'kvlab.record'
kv.record = record.new
kv.records = record.names
kv.record_named = record.named

-- tensors
kv.safetensors = { open = core.safetensors.open, save = core.safetensors.save }
for _, part in ipairs { 'kvlab.tensor', 'kvlab.kernels' } do
  for name, value in pairs(require(part)) do kv[name] = value end
end

-- caches
kv.pool = core.pool.new
kv.counters = core.pool.counters

-- counting
local presets = require 'kvlab.presets'
local count = require 'kvlab.count'
kv.preset = presets.load
kv.presets = presets.names
kv.count = count.layout
kv.factors = count.factors
kv.flops = require('kvlab.flops').layout
kv.exact = require 'kvlab.exact'

-- running
local attention = require 'kvlab.attention'
local model = require 'kvlab.model'
local sequence = require 'kvlab.sequence'
kv.attention = attention.single
require 'kvlab.inspect' -- Attention:scores, mask, probabilities, index_scores, pooling
kv.model = model.new
kv.measure = require('kvlab.measure').layout
kv.trace = require('kvlab.trace').public

-- training
local ops = require 'kvlab.ops'
local tape = require 'kvlab.tape'
local optim = require 'kvlab.optim'
kv.tape = tape.new
for _, name in ipairs { 'cat', 'where', 'embedding', 'matmul', 'rms_norm', 'layer_norm', 'hadamard', 'rope', 'attend',
  'linear', 'swiglu', 'roundtrip', 'cross_entropy' } do
  kv[name] = ops[name]
end
kv.is_var = tape.is
kv.adamw = optim.adamw
kv.schedule = optim.schedule

-- the machine
kv.threads = core.base.threads
kv.keep_memory = core.base.keep_memory

-- runs and sweeps
local config, run, sweep = require 'kvlab.config', require 'kvlab.run', require 'kvlab.sweep'
kv.config = { id = config.id, canonical = config.canonical, layout = config.layout, record = config.record }
kv.run = { create = run.create, open = run.open }
kv.sweep = { grid = sweep.grid, draws = sweep.draws, points = sweep.points, run = sweep.run }
kv.report = require('kvlab.report').of

-- what to train on
kv.task = require('kvlab.tasks.task').new
kv.tasks = require 'kvlab.tasks'

-- pictures, help, files
kv.plot = require 'kvlab.plot'
require 'kvlab.draw' -- Layout:draw, Layer:draw, Attention:draw
kv.json = require 'kvlab.json'
kv.suggest = require 'kvlab.suggest'
kv.help = require('kvlab.help').print
kv.show = require('kvlab.preview').show
kv.progress = require('kvlab.progress').loop

-- The method table of each class, by name: for help, completion and the test of the documentation.
kv.classes = { Layer = layer.class, Layout = layout.class, Record = record.class,
  Plan = core.record.plan_methods, Exact = kv.exact.class }
for name, methods in pairs(core.pool.classes) do kv.classes[name] = methods end
kv.classes.Tensor = core.tensor.methods
kv.classes.RopeTable = core.norm.rope_methods
kv.classes.Compressor = core.compress.methods
kv.classes.SafeTensors = core.safetensors.methods
kv.classes.Attention = attention.class
kv.classes.Model = model.class
kv.classes.Sequence = sequence.class
kv.classes.Trace = require('kvlab.trace').class
kv.classes.Prefill = require('kvlab.trace').grid_class
kv.classes.Run = run.class
kv.classes.Tape = tape.tape_class
kv.classes.AdamW = optim.class

-- A misspelt name must not vanish: kv.layout { kv.swa, kv.ful } would be a shorter layout.
setmetatable(kv, { __index = kv.suggest.strict(kv, 'kvlab has no') })

return kv
