-- kvlab: require 'kvlab' returns this table; nothing is written to the globals.
local core = require 'kvlab.core'

local kv = { _VERSION = 'kvlab ' .. core.version }

kv.number = require 'kvlab.number'

local record = require 'kvlab.record'
kv.record = record.new
kv.records = record.names
kv.record_named = record.named

kv.safetensors = core.safetensors
for _, part in ipairs { 'kvlab.tensor', 'kvlab.primitives' } do
  for name, value in pairs(require(part)) do kv[name] = value end
end

return kv
