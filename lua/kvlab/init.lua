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
for _, part in ipairs { 'kvlab.tensor', 'kvlab.primitives' } do
  for name, value in pairs(require(part)) do
    assert(kv[name] == nil, name) -- two parts must not fight for a name
    kv[name] = value
  end
end

-- counting
local presets = require 'kvlab.presets'
local count = require 'kvlab.count'
kv.preset = presets.load
kv.presets = presets.names
kv.count = count.layout
kv.factors = count.factors
kv.flops = require('kvlab.flops').layout
kv.exact = require 'kvlab.exact'

-- pictures, help, files
kv.plot = require 'kvlab.plot'
kv.json = require 'kvlab.json'
kv.suggest = require 'kvlab.suggest'
kv.help = require('kvlab.help').print

-- The method table of each class, by name: for help, completion and the test of the documentation.
kv.classes = { Layer = layer.class, Layout = layout.class, Record = record.class,
  Plan = core.record.plan_methods, Exact = kv.exact.class, Tensor = core.tensor.methods,
  SafeTensors = core.safetensors.methods, Compressor = core.compress.methods }

return kv
