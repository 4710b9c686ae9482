-- kvlab: require 'kvlab' returns this table; nothing is written to the globals.
local core = require 'kvlab.core'

local kv = { _VERSION = 'kvlab ' .. core.version }

-- The method table of each class, by name: for help, completion and the test of the documentation.
kv.classes = {}

kv.json = require 'kvlab.json'
kv.suggest = require 'kvlab.suggest'
kv.help = require('kvlab.help').print

return kv
