-- options.lua: checks of option tables and names, with a suggestion for what was misspelt.
local suggest = require 'kvlab.suggest'

local options = {}

-- suggest(word, words) -> "; did you mean 'x'?", or the whole list when it is short, or nothing.
function options.suggest(word, words)
  local phrase = suggest.phrase(tostring(word), words)
  if phrase ~= '' then return phrase end
  if #words <= 12 then return '; expected ' .. table.concat(words, ', ') end
  return ''
end

-- Whether two lists, such as shapes, hold the same.
function options.same(a, b)
  for i = 1, math.max(#a, #b) do
    if a[i] ~= b[i] then return false end
  end
  return true
end

-- The names of a list as keys; made once for each list, which does not change.
local sets = setmetatable({}, { __mode = 'k' })
local function set_of(list)
  local set = sets[list]
  if not set then
    set = {}
    for _, name in ipairs(list) do set[name] = true end
    sets[list] = set
  end
  return set
end

-- check(t, allowed, where [, noun]): t is a table whose keys are all in the list `allowed`; nil is an empty one.
-- `noun` is what the message calls a key: key, option, field or role. Returns t.
function options.check(t, allowed, where, noun)
  if t == nil then return nil end
  if type(t) ~= 'table' then
    error(('%s: expected a table, not a %s'):format(where, type(t)), 0)
  end
  local known = set_of(allowed)
  for key in pairs(t) do
    if not known[key] then
      error(("%s: unknown %s '%s'%s"):format(where, noun or 'key', tostring(key), options.suggest(key, allowed)), 0)
    end
  end
  return t
end

-- word(value, words, where): value is one of the words; returns it.
function options.word(value, words, where)
  for _, name in ipairs(words) do
    if name == value then return value end
  end
  local shown = type(value) == 'string' and ("'%s'"):format(value) or tostring(value)
  error(('%s: %s is unknown%s'):format(where, shown, options.suggest(value, words)), 0)
end

-- whole(value, low, where): value is a whole number, low or more; returns it as an integer.
function options.whole(value, low, where)
  local n = type(value) == 'number' and math.tointeger(value)
  if not n or n < low then
    local shown = type(value) == 'string' and ("'%s'"):format(value) or tostring(value)
    error(('%s is %s, expected a whole number, %d or more'):format(where, shown, low), 0)
  end
  return n
end

return options
