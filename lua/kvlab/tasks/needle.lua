-- needle.lua: one or several needles in a haystack, at a stated distance (after RULER's niah tasks, Hsieh et al.,
-- arXiv 2404.06654, as single tokens).
--
--   hay hay  key value  hay ... hay | key  hay  key                    targets: the value, at each key of the end
--
-- The last 2n - 1 positions ask for n needles, every second one. The distance of a needle is the number of positions
-- from its value to its query. A single number puts every needle exactly there; {low, high} draws each needle's own.
-- Ids: the keys, the values, the hay. With hay = 'values' the hay consists of values, so that a value is known only
-- by the key in front of it.
local draw = require 'kvlab.tasks.draw'
local options = require 'kvlab.options'
local settings = require 'kvlab.tasks.settings'
local task = require 'kvlab.tasks.task'

local WHERE = 'kv.tasks.needle'
local SPEC = { vocab = { 128, 3 }, length = { 128, 3 }, needles = { 1, 1 }, keys = { false, 1 }, values = { false, 1 },
  hay = { 'own', { 'own', 'values' } }, distance = { false, 'any' } }

-- low, high: the distances wanted, as far as the length allows.
local function distances(given, o)
  local low, high = 2 * o.needles - 1, o.length - 2 * o.needles
  settings.at_least(WHERE, 'length', o.length, 4 * o.needles - 1, ('%d needles need more'):format(o.needles))
  if given == nil then return low, high end
  local from, to = given, given
  if type(given) == 'table' then
    options.check(given, { 1, 2 }, WHERE .. ': distance')
    from, to = given[1], given[2]
  end
  from = options.whole(from, 1, WHERE .. ': distance')
  to = options.whole(to, 1, WHERE .. ': distance')
  if from > to then
    error(('%s: distance is {%d, %d}, expected {low, high}'):format(WHERE, from, to), 0)
  end
  if from < low or to > high then
    error(('%s: distance is %s, but %d needles in %d tokens can lie %d to %d away'):format(WHERE,
      from == to and from or ('{%d, %d}'):format(from, to), o.needles, o.length, low, high), 0)
  end
  return from, to
end

local function check(given)
  local o = settings.read(WHERE, given, SPEC)
  o.keys, o.values = o.keys or math.max(1, o.vocab // 4), o.values or math.max(1, o.vocab // 4)
  settings.at_least(WHERE, 'keys', o.keys, o.needles, 'each needle has a key of its own')
  settings.at_least(WHERE, 'values', o.values, o.needles, 'each needle has a value of its own')
  settings.at_least(WHERE, 'vocab', o.vocab, o.keys + o.values + (o.hay == 'own' and 1 or 0),
    ('%d keys, %d values and the hay need more'):format(o.keys, o.values))
  local low, high = distances(o.distance, o)
  -- A needle keeps three places from each other one; with more places than that there is always one left.
  if low < high and high - low + 1 <= 3 * (o.needles - 1) then
    error(('%s: distances %d to %d leave too little room for %d needles; give one distance, or %d more of them')
      :format(WHERE, low, high, o.needles, 3 * (o.needles - 1) - (high - low)), 0)
  end
  o.distance = { low, high }
  return o, low, high
end

return function(given)
  local o, low, high = check(given)
  local first, count = o.keys + o.values, o.vocab - o.keys - o.values -- the hay's ids
  if o.hay == 'values' then first, count = o.keys, o.values end

  local function row(below, tokens, targets, note)
    for i = 1, o.length do tokens[i] = first + below(count) end
    local keys, values = draw.distinct(below, o.keys, o.needles), draw.distinct(below, o.values, o.needles)
    local taken = {}
    for i = 1, o.needles do
      local query = o.length - 2 * (o.needles - i)
      local at -- of the value; its key is in front of it
      repeat at = query - low - below(high - low + 1)
      until not (taken[at - 1] or taken[at] or taken[at + 1])
      taken[at] = true
      values[i] = o.keys + values[i]
      tokens[at - 1], tokens[at] = keys[i], values[i]
      tokens[query], targets[query] = keys[i], values[i]
    end
    note.candidates = values
  end

  local many = o.needles > 1
  return task.new {
    name = 'needle', vocab = o.vocab, length = o.length, answers = { o.keys, o.keys + o.values - 1 },
    candidate_chance = many and 1 / o.needles or nil, options = o, row = row,
    fields = many and { 'candidates' } or nil,
    about = ('%d needles, %d to %d positions before their queries; hay of %s ids'):format(o.needles, low, high,
      o.hay == 'own' and 'its own' or 'value'),
  }
end
