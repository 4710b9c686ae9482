-- kvlab: require 'kvlab' returns this table; nothing is written to the globals.
local core = require 'kvlab.core'

local kv = { _VERSION = 'kvlab ' .. core.version }

return kv
