-- plot.lua: kv.plot: pictures as text. Every axis is labelled, a log axis says so, and no picture needs colour.
return {
  bars = require 'kvlab.plot.bars',
  line = require 'kvlab.plot.line',
  heat = require 'kvlab.plot.heat',
  strip = require 'kvlab.plot.strip',
}
