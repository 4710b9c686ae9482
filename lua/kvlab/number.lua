-- number.lua: kv.number, the exact number formats. Documentation in meta/number.lua.
local core = require 'kvlab.core'
local options = require 'kvlab.options'

local number = {}

local names = core.number.names()
local ties = { 'even', 'down', 'away', 'up' }
local rounds = { 'nearest', 'up', 'floor' }

local function check_name(name)
  return options.word(name, names, 'number')
end

function number.names()
  return { table.unpack(names) }
end

function number.info(name)
  return core.number.info(check_name(name))
end

function number.encode(name, x, opts)
  check_name(name)
  if type(x) ~= 'number' then
    error(("number.encode('%s', x): x is a %s, expected a number"):format(name, type(x)), 2)
  end
  if opts == nil then return core.number.encode(name, x) end
  options.check(opts, { 'ties', 'saturate', 'round' }, 'number.encode')
  if opts.ties ~= nil then options.word(opts.ties, ties, 'number.encode: ties') end
  if opts.round ~= nil then
    options.word(opts.round, rounds, 'number.encode: round')
    if name ~= 'ue8m0' and opts.round ~= 'nearest' then
      error(("number.encode: round = '%s' is for ue8m0, not for %s"):format(opts.round, name), 2)
    end
    if opts.round == 'up' then return core.number.ue8m0_up(x) end
    if opts.round == 'floor' then return core.number.ue8m0_floor(x) end
  end
  return core.number.encode(name, x, opts.ties, opts.saturate)
end

function number.decode(name, code)
  check_name(name)
  if math.type(code) == nil or not math.tointeger(code) then
    error(("number.decode('%s', code): code is %s, expected a whole number"):format(name, tostring(code)), 2)
  end
  return core.number.decode(name, code)
end

return number
