-- settings.lua: the options of a task, checked and with their defaults.
local options = require 'kvlab.options'

local settings = {}

-- read(where, given, spec) -> a new table. spec[name] = { default, low } for a whole number, { default, words } for
-- a word, { default, 'any' } for what the task checks itself. A default of false stands for none.
function settings.read(where, given, spec)
  if given == nil then given = {} end
  local names = {}
  for name in pairs(spec) do names[#names + 1] = name end
  table.sort(names)
  options.check(given, names, where, 'option')
  local result = {}
  for _, name in ipairs(names) do
    local default, range = spec[name][1], spec[name][2]
    local value = given[name]
    if value == nil then
      value = default or nil
    elseif type(range) == 'table' then
      options.word(value, range, ('%s: %s'):format(where, name))
    elseif range ~= 'any' then
      value = options.whole(value, range, ('%s: %s'):format(where, name))
      if value > 2147483647 then
        error(('%s: %s is %d, at most 2147483647 is possible'):format(where, name, value), 0)
      end
    end
    result[name] = value
  end
  return result
end

-- at_least(where, name, value, low, why): a value that other options ask more of.
function settings.at_least(where, name, value, low, why)
  if value < low then
    error(('%s: %s is %d, but %s: %d or more'):format(where, name, value, why, low), 0)
  end
end

-- at_most(where, name, value, high, why)
function settings.at_most(where, name, value, high, why)
  if value > high then
    error(('%s: %s is %d, but %s: at most %d'):format(where, name, value, why, high), 0)
  end
end

-- words_enough(where, name, letters, length, count): `count` different words of that many letters are there.
function settings.words_enough(where, name, letters, length, count)
  local words = 1
  for _ = 1, length do
    words = words * letters
    if words >= count then return end
  end
  error(('%s: %s is %d, which makes only %d different words of %d, but %d are needed')
    :format(where, name, letters, words, length, count), 0)
end

return settings
