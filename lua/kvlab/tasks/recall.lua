-- recall.lua: multi-query associative recall, MQAR (Arora et al.: Zoology, arXiv 2312.04927).
--
-- A row binds keys to values, then asks for the values of some keys:
--
--   offset fillers | k v  k v  k v  k v | queries in slots: k .  . .  k .  ...
--
-- Ids: 0 filler, then the keys, then the values. A key is key_tokens tokens in a row; the target of a query stands
-- at its last token, and no value follows it in the tokens. Bindings are written once, or `rewrites` of the keys a
-- second time with another value: the last one counts. Values of a row are all different. Queries lie in slots of
-- key_tokens + 1 positions: with place = 'power', slot g is drawn with weight g^(0.01 - 1), so that near ones are
-- frequent, as in the paper. With fill = 'random' the positions that are neither binding nor query hold key tokens
-- that are in no key of the row: they bind nothing and cover nothing.
local draw = require 'kvlab.tasks.draw'
local settings = require 'kvlab.tasks.settings'
local task = require 'kvlab.tasks.task'

local WHERE = 'kv.tasks.recall'

local SPEC = {
  vocab = { 128, 3 }, length = { 32, 1 }, keys = { false, 1 }, pairs = { 4, 1 }, queries = { false, 1 },
  key_tokens = { 1, 1 }, rewrites = { 0, 0 }, offset = { 0, 0 },
  place = { 'power', { 'power', 'uniform', 'end' } }, fill = { 'zero', { 'zero', 'random' } },
}

local POWER = 0.01 -- the paper's

-- Draws k different slots of 1 .. n. Drawing by weight and throwing repetitions away is drawing without replacement.
local function slots_of(place, n)
  if place == 'end' then
    return function(_, k)
      local list = {}
      for i = 1, k do list[i] = n - k + i end
      return list
    end
  elseif place == 'uniform' then
    return function(below, k)
      local list = draw.distinct(below, n, k)
      for i, slot in ipairs(list) do list[i] = slot + 1 end
      return list
    end
  end
  local sums, total = {}, 0
  for g = 1, n do
    total = total + g ^ (POWER - 1)
    sums[g] = total
  end
  return function(below, k)
    local list, taken = {}, {}
    while #list < k do
      local at, low, high = below(0x7fffffff) / 0x7fffffff * total, 1, n
      while low < high do
        local middle = (low + high) // 2
        if at < sums[middle] then high = middle else low = middle + 1 end
      end
      if not taken[low] then
        taken[low] = true
        list[#list + 1] = low
      end
    end
    return list
  end
end

local function check(given)
  local o = settings.read(WHERE, given, SPEC)
  o.keys = o.keys or math.max(1, o.vocab // 2 - 1)
  settings.at_most(WHERE, 'keys', o.keys, o.vocab - 2, ('vocab = %d also needs a filler and a value'):format(o.vocab))
  settings.at_most(WHERE, 'rewrites', o.rewrites, o.pairs // 2,
    ('each takes two of %d pairs'):format(o.pairs))
  local different, values = o.pairs - o.rewrites, o.vocab - 1 - o.keys
  o.queries = o.queries or different
  settings.at_most(WHERE, 'queries', o.queries, different,
    ('%d pairs with %d rewrites bind %d keys, each asked once'):format(o.pairs, o.rewrites, different))
  settings.words_enough(WHERE, 'keys', o.keys, o.key_tokens, different)
  if values < o.pairs then
    error(('%s: vocab = %d with %d keys leaves %d values, but %d pairs need as many different ones')
      :format(WHERE, o.vocab, o.keys, values, o.pairs), 0)
  end
  if o.fill == 'random' then
    settings.at_least(WHERE, 'keys', o.keys, different * o.key_tokens + 1,
      "fill = 'random' takes key tokens that are in no key of the row")
  end
  local width = o.key_tokens + 1
  settings.at_least(WHERE, 'length', o.length, o.offset + (o.pairs + o.queries) * width,
    ('%d offset, %d pairs and %d queries of %d tokens each need more'):format(o.offset, o.pairs, o.queries, width))
  return o, different, values
end

return function(given)
  local o, different, values = check(given)
  local width = o.key_tokens + 1
  local start = o.offset + o.pairs * width -- positions before the first slot
  local slots = slots_of(o.place, (o.length - start) // width)

  local function random_fill(below, tokens, keys)
    local used = {}
    for _, key in ipairs(keys) do
      for _, token in ipairs(key) do used[token] = true end
    end
    for i = 1, o.length do
      if tokens[i] == 0 then
        local token
        repeat token = below(o.keys) until not used[token]
        tokens[i] = 1 + token
      end
    end
  end

  local function row(below, tokens, targets, note)
    local keys
    if o.key_tokens == 1 then
      keys = draw.distinct(below, o.keys, different)
      for i, key in ipairs(keys) do keys[i] = { key } end
    else
      keys = draw.words(below, o.keys, o.key_tokens, different)
    end
    local writes = {} -- which key each pair binds
    for i = 1, different do writes[i] = i end
    if o.rewrites > 0 then
      for _, key in ipairs(draw.distinct(below, different, o.rewrites)) do writes[#writes + 1] = key + 1 end
      draw.shuffle(below, writes)
    end
    local candidates = draw.distinct(below, values, o.pairs)
    local bound, twice, at = {}, {}, o.offset
    for i, which in ipairs(writes) do
      for j, token in ipairs(keys[which]) do tokens[at + j] = 1 + token end
      candidates[i] = 1 + o.keys + candidates[i]
      tokens[at + width] = candidates[i]
      twice[which] = bound[which] ~= nil
      bound[which] = candidates[i]
      at = at + width
    end
    local rewritten = {}
    local asked = draw.distinct(below, different, o.queries)
    for i, slot in ipairs(slots(below, o.queries)) do
      local which = asked[i] + 1
      local first = start + (slot - 1) * width
      for j, token in ipairs(keys[which]) do tokens[first + j] = 1 + token end
      targets[first + o.key_tokens] = bound[which]
      if twice[which] then rewritten[#rewritten + 1] = first + o.key_tokens end
    end
    if o.fill == 'random' then random_fill(below, tokens, keys) end
    note.candidates, note.rewritten = candidates, rewritten
  end

  return task.new {
    name = 'recall', vocab = o.vocab, length = o.length, answers = { 1 + o.keys, o.vocab - 1 },
    candidate_chance = 1 / o.pairs, options = o, row = row, fields = { 'candidates' },
    slices = o.rewrites > 0 and { 'rewritten' } or nil,
    about = ('%d pairs from position %d, keys of %d tokens, %d rewritten; %d queries (%s), fill %s')
      :format(o.pairs, o.offset + 1, o.key_tokens, o.rewrites, o.queries, o.place, o.fill),
  }
end
