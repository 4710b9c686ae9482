-- Tasks. The right answers are found by solvers that read the tokens from scratch: they know a task's rules and
-- options, and nothing of how the rows were made.
local lu = require 'luaunit'
local check = require 'check'
local kv = require 'kvlab'

-- --- solvers: solve(options, tokens) -> targets, all positions, -1 where nothing is asked ----------------

local function nothing(tokens)
  local list = {}
  for i = 1, #tokens do list[i] = -1 end
  return list
end

local function word(tokens, first, last) return table.concat(tokens, ' ', first, last) end

local solve = {}

function solve.recall(o, tokens)
  local targets, bound, at = nothing(tokens), {}, o.offset + 1
  for _ = 1, o.pairs do
    bound[word(tokens, at, at + o.key_tokens - 1)] = tokens[at + o.key_tokens]
    at = at + o.key_tokens + 1
  end
  for i = at + o.key_tokens - 1, #tokens do
    targets[i] = bound[word(tokens, i - o.key_tokens + 1, i)] or -1
  end
  return targets
end

function solve.induction(o, tokens)
  local function find(i)
    for j = i, 2, -1 do
      if tokens[j - 1] == tokens[i] then return j end
    end
  end
  local targets = nothing(tokens)
  for i = 1, #tokens do
    local at = i
    for _ = 1, o.hops do at = at and find(at) end
    targets[i] = at and tokens[at] or -1
  end
  return targets
end

local function place_of(tokens, id)
  for i, token in ipairs(tokens) do
    if token == id then return i end
  end
end

local function repeat_behind(tokens, separator, smallest)
  local targets, at = nothing(tokens), place_of(tokens, separator)
  local next_one = at
  for i = 1, at - 1 do
    if tokens[i] >= smallest then
      targets[next_one] = tokens[i]
      next_one = next_one + 1
    end
  end
  for i = at + 1, #tokens do lu.assertEquals(tokens[i], targets[i - 1], 'the input is the string so far') end
  return targets
end

function solve.copy(_, tokens) return repeat_behind(tokens, 1, 2) end

function solve.selective_copy(o, tokens) return repeat_behind(tokens, o.noise, o.noise + 1) end

function solve.needle(o, tokens)
  local targets = nothing(tokens)
  for i = #tokens - 2 * o.needles + 2, #tokens, 2 do
    local at = place_of(tokens, tokens[i])
    targets[i] = tokens[at + 1]
    local distance = i - (at + 1)
    lu.assertTrue(distance >= o.distance[1] and distance <= o.distance[2], 'distance ' .. distance)
  end
  return targets
end

function solve.phonebook(o, tokens)
  local targets, book, at = nothing(tokens), {}, 1
  while tokens[at] == 0 do at = at + 1 end
  local asked = o.name_tokens + o.number_tokens
  while tokens[at + asked] == 0 do -- an entry ends with 0
    local name = word(tokens, at, at + o.name_tokens - 1)
    lu.assertNil(book[name], 'a name twice')
    book[name] = { table.unpack(tokens, at + o.name_tokens, at + asked - 1) }
    at = at + asked + 1
  end
  while at <= #tokens do
    local number = book[word(tokens, at, at + o.name_tokens - 1)]
    for j, digit in ipairs(number) do
      targets[at + o.name_tokens + j - 2] = digit
      local input = tokens[at + o.name_tokens + j - 1]
      lu.assertTrue(input == nil or input == digit, 'digits follow')
    end
    at = at + asked
  end
  return targets
end

function solve.variables(_, tokens)
  local targets, source, at = nothing(tokens), {}, 1
  while tokens[at + 1] == 1 do
    source[tokens[at]] = tokens[at + 2]
    at = at + 3
  end
  for i = at, #tokens - 1 do
    if tokens[i] == 2 then
      local name = tokens[i + 1]
      while source[name] do name = source[name] end
      targets[i + 1] = name
    end
  end
  return targets
end

-- Every shipped task that makes its rows, with the options to try.
local CASES = {
  { 'recall', {} },
  { 'recall', { vocab = 8192, length = 64 } },
  { 'recall', { length = 33, offset = 1, place = 'uniform' } },
  { 'recall', { pairs = 6, rewrites = 3, length = 40, place = 'end', fill = 'random' } },
  { 'recall', { pairs = 5, key_tokens = 2, keys = 5, length = 64, queries = 3, offset = 3 } },
  { 'recall', { pairs = 5, key_tokens = 3, keys = 40, length = 64, rewrites = 1, fill = 'random' } },
  { 'recall', { vocab = 4, keys = 2, pairs = 1, length = 4, offset = 0 } },
  { 'induction', {} },
  { 'induction', { vocab = 4, length = 100, hops = 3 } },
  { 'copy', {} },
  { 'copy', { length = 33, span = 10, gap = 5, vocab = 3 } },
  { 'selective_copy', {} },
  { 'selective_copy', { noise = 5, items = 16, length = 32 } },
  { 'needle', {} },
  { 'needle', { length = 64, distance = 40 } },
  { 'needle', { length = 64, needles = 4, distance = 20, hay = 'values' } },
  { 'needle', { length = 64, needles = 5, distance = { 15, 40 } } },
  { 'phonebook', {} },
  { 'phonebook', { length = 90, entries = 9, letters = 3, queries = 3 } },
  { 'variables', {} },
  { 'variables', { vocab = 40, length = 60, chains = 3, hops = 4, queries = 7, order = 'shuffled' } },
}

-- each(f): f(task, options, label) for every case.
local function each(f)
  for _, case in ipairs(CASES) do
    local t = kv.tasks[case[1]](case[2])
    f(t, t.options, case[1] .. ' ' .. kv.json.encode(case[2]))
  end
end

local function same(a, b)
  return a.tokens:equal(b.tokens) and a.targets:equal(b.targets)
end

TestShipped = {}

function TestShipped:test_answers_are_right()
  each(function(t, o, label)
    for step = 1, 3 do
      local batch = t.batch(7, step, 20)
      local targets = batch.targets:totable()
      for b, tokens in ipairs(batch.tokens:totable()) do
        lu.assertEquals(#tokens, t.length)
        lu.assertEquals(targets[b], solve[t.name](o, tokens), label)
      end
    end
  end)
end

function TestShipped:test_names()
  lu.assertEquals(kv.tasks.names(), { 'copy', 'induction', 'needle', 'phonebook', 'recall', 'selective_copy', 'text',
    'variables' })
  each(function(t) lu.assertStrContains(t.describe(), t.name .. ': ') end)
  lu.assertStrContains(kv.tasks.recall().describe(), 'chance 0.01562, among the candidates of a row 0.25')
end

-- A guesser with another generator. 5 standard deviations, so that one check in a million fails by bad luck; the
-- numbers are the same in every run.
local function near(label, correct, count, chance)
  local deviation = math.sqrt(chance * (1 - chance) / count)
  local rate = correct / count
  lu.assertTrue(math.abs(rate - chance) <= 5 * deviation + 1e-12,
    ('%s: %.4f of %d, expected %.4f'):format(label, rate, count, chance))
end

function TestShipped:test_chance_is_what_guessing_gets()
  math.randomseed(1, 2)
  each(function(t, _, label)
    local batch = t.batch(3, 1, 100)
    local targets, guesses, among = batch.targets:totable(), {}, {}
    local candidates = batch.candidates and batch.candidates:totable()
    for b, row in ipairs(targets) do
      guesses[b], among[b] = {}, {}
      for i = 1, #row do
        guesses[b][i] = math.random(t.answers[1], t.answers[2])
        among[b][i] = candidates and candidates[b][math.random(#candidates[b])] or 0
        if row[i] >= 0 then
          lu.assertTrue(row[i] >= t.answers[1] and row[i] <= t.answers[2], label)
        end
      end
    end
    local score = t.score(batch, kv.tensor(guesses, 'int32'))
    near(label, score.correct, score.count, t.chance)
    lu.assertEquals(candidates ~= nil, t.candidate_chance ~= nil, label)
    if candidates then
      score = t.score(batch, kv.tensor(among, 'int32'))
      near(label, score.correct, score.count, t.candidate_chance)
      lu.assertEquals(score.correct + score.candidate, score.count)
    end
    score = t.score(batch, batch.targets)
    lu.assertEquals(score.correct, score.count, label)
    lu.assertTrue(score.count >= 100, label)
  end)
end

-- The candidates are the values that the row binds, each once, in whatever order.
function TestShipped:test_candidates()
  local t = kv.tasks.recall { pairs = 6, rewrites = 2, length = 40, offset = 2 }
  local batch = t.batch(1, 1, 30)
  local candidates = batch.candidates:totable()
  for b, tokens in ipairs(batch.tokens:totable()) do
    local values = {}
    for i = 1, 6 do values[i] = tokens[2 + 2 * i] end
    table.sort(values)
    table.sort(candidates[b])
    lu.assertEquals(candidates[b], values)
    for i = 2, 6 do lu.assertTrue(values[i] > values[i - 1]) end
  end
end

function TestShipped:test_slices()
  -- rewritten: the keys that are bound twice
  local t = kv.tasks.recall { pairs = 6, rewrites = 2, length = 40 }
  local batch = t.batch(1, 1, 30)
  local marks, targets = batch.slices.rewritten:totable(), batch.targets:totable()
  for b, tokens in ipairs(batch.tokens:totable()) do
    local times = {}
    for i = 1, 11, 2 do times[tokens[i]] = (times[tokens[i]] or 0) + 1 end
    local twice = 0
    for i = 13, #tokens do
      local expected = targets[b][i] >= 0 and times[tokens[i]] == 2
      lu.assertEquals(marks[b][i], expected and 1 or 0)
      if expected then twice = twice + 1 end
    end
    lu.assertEquals(twice, 2)
  end
  -- hop h: h statements are read
  t = kv.tasks.variables { chains = 2, hops = 3, length = 40 }
  batch = t.batch(1, 1, 30)
  local hops = {}
  for h = 1, 3 do hops[h] = batch.slices['hop' .. h]:totable() end
  for b, tokens in ipairs(batch.tokens:totable()) do
    local source = {}
    for i = 1, 18, 3 do source[tokens[i]] = tokens[i + 2] end
    for i = 1, #tokens do
      local reads, name = 0, tokens[i - 1] == 2 and tokens[i]
      while source[name] do reads, name = reads + 1, source[name] end
      for h = 1, 3 do lu.assertEquals(hops[h][b][i], reads == h and 1 or 0) end
    end
  end
  local score = t.score(batch, batch.targets)
  lu.assertEquals(score.slices.hop3, { correct = 60, count = 60 })
end

-- Chained: a source is assigned before it is used. Shuffled: often after. Chains are interleaved in both.
function TestShipped:test_order_of_assignments()
  for order, expected in pairs { chained = false, shuffled = true } do
    local late, interleaved = false, false
    local t = kv.tasks.variables { chains = 2, hops = 3, length = 40, order = order }
    for _, tokens in ipairs(t.batch(1, 1, 20).tokens:totable()) do
      local assigned = {}
      for i = 1, 18, 3 do
        local source = tokens[i + 2]
        if source < 3 + t.options.names and not assigned[source] then late = true end
        if i > 1 and tokens[i + 2] ~= tokens[i - 3] and source < 3 + t.options.names then interleaved = true end
        assigned[tokens[i]] = true
      end
    end
    lu.assertEquals({ late, interleaved }, { expected, true }, order)
  end
end

function TestShipped:test_phonebook_numbers()
  local t = kv.tasks.phonebook { entries = 3, queries = 1, length = 32 }
  local batch = t.batch(1, 1, 2)
  -- row 1: another entry's number; row 2: the right number but for its last digit
  local book, targets = batch.numbers:totable(), batch.targets:totable()
  local wrong = {}
  for i = 1, 3 do
    if word(book[1][i]) ~= word(targets[1], 30, 32) then wrong = book[1][i] end
  end
  local guess = kv.tensor(batch.targets)
  for j = 1, 3 do guess:set(1, 29 + j, wrong[j]) end
  guess:set(2, 32, 0)
  lu.assertEquals(t.score(batch, guess).numbers, { correct = 0, count = 2, candidate = 1 })
  lu.assertEquals(t.score(batch, batch.targets).numbers, { correct = 2, count = 2, candidate = 0 })
end

TestRandom = {}

-- The first numbers of splitmix64 from state 1234567, as published with its reference implementations.
function TestRandom:test_splitmix64()
  local mix = require('kvlab.tasks.draw').mix
  for i, expected in ipairs { '6457827717110365317', '3203168211198807973', '9817491932198370423' } do
    local value = mix(1234567 + i * 0x9e3779b97f4a7c15)
    -- as an unsigned decimal: Lua's integers are signed
    local tens = math.tointeger((value >> 1) // 5)
    lu.assertEquals(('%d%d'):format(tens, value - tens * 10), expected)
  end
end

function TestRandom:test_stream_is_even()
  local below = kv.tasks.stream(1, 2, 3)
  local counts = { 0, 0, 0, 0, 0, 0, 0 }
  for _ = 1, 70000 do
    local i = below(7) + 1
    counts[i] = counts[i] + 1
  end
  local chi = 0
  for _, n in ipairs(counts) do chi = chi + (n - 10000) ^ 2 / 10000 end
  lu.assertTrue(chi < 27.9, 'chi-square ' .. chi) -- 6 degrees of freedom, one in 10,000
  lu.assertEquals(kv.tasks.stream(1, 2, 3)(1), 0)
  lu.assertTrue(kv.tasks.stream(1, 2, 3)(0x7fffffff) >= 0)
end

function TestRandom:test_distinct_and_shuffle()
  local seen = {}
  for seed = 1, 600 do
    local below = kv.tasks.stream(seed, 0, 0)
    local list = kv.tasks.distinct(below, 3, 3)
    local name = word(list)
    seen[name] = (seen[name] or 0) + 1
    lu.assertEquals(kv.tasks.distinct(below, 1000, 0), {})
    local shuffled = kv.tasks.shuffle(below, { 1, 2, 3, 4 })
    table.sort(shuffled)
    lu.assertEquals(shuffled, { 1, 2, 3, 4 })
  end
  local kinds = 0
  for _, n in pairs(seen) do
    kinds = kinds + 1
    lu.assertTrue(n > 60 and n < 140, 'an order came ' .. n .. ' times of 100')
  end
  lu.assertEquals(kinds, 6)
end

-- A batch depends on (options, seed, step, size) alone: a resumed run sees what the other one saw.
function TestRandom:test_resumed_runs_see_the_same()
  each(function(t, _, label)
    local through = {}
    for step = 1, 5 do through[step] = t.batch(11, step, 6) end
    local again = kv.tasks[t.name](t.options) -- the resolved options make the same task
    lu.assertTrue(same(again.batch(11, 4, 6), through[4]), label)
    lu.assertTrue(same(t.batch(11, 4, 6), through[4]), label)
    lu.assertTrue(same(t.batch(11, 5, 6), through[5]), label)
    lu.assertTrue(t.batch(11, 4, 9).tokens:slice(1, 1, 6):equal(through[4].tokens), 'rows do not know the size')
    if t.vocab > 4 then
      lu.assertFalse(same(through[4], through[5]), label)
      lu.assertFalse(same(t.batch(12, 4, 6), through[4]), label)
      lu.assertFalse(same(t.validation(4, 6), through[4]), label)
    end
    lu.assertTrue(same(t.validation(4, 6), again.validation(4, 6)), label)
  end)
end

function TestRandom:test_everything_occurs()
  local t = kv.tasks.recall { vocab = 32, length = 24 }
  local tokens, answers, places, ids = {}, {}, {}, 0
  for step = 1, 10 do
    local batch = t.batch(1, step, 128)
    local targets = batch.targets:totable()
    for b, row in ipairs(batch.tokens:totable()) do
      for i, token in ipairs(row) do
        tokens[token] = true
        if targets[b][i] >= 0 then
          answers[targets[b][i]] = (answers[targets[b][i]] or 0) + 1
          places[i] = true
        end
      end
    end
  end
  for _ in pairs(tokens) do ids = ids + 1 end
  lu.assertEquals(ids, 32)
  local chi, expected = 0, 10 * 128 * 4 / 16
  for id = 16, 31 do chi = chi + (answers[id] - expected) ^ 2 / expected end
  lu.assertTrue(chi < 44.3, 'chi-square ' .. chi) -- 15 degrees of freedom, one in 10,000
  for i = 9, 23, 2 do lu.assertTrue(places[i], 'a query at ' .. i) end
end

-- place = 'power' prefers near slots in the paper's proportion: the first of two is drawn first with 1 / (1 + 2^-0.99).
function TestRandom:test_power_law()
  local t = kv.tasks.recall { pairs = 1, queries = 1, length = 6 }
  local targets, first = t.batch(1, 1, 4000).targets:totable(), 0
  for _, row in ipairs(targets) do first = first + (row[3] >= 0 and 1 or 0) end
  near('first slot', first, 4000, 1 / (1 + 2 ^ -0.99))
end

function TestRandom:test_is_fast()
  local t = kv.tasks.recall()
  local start = os.clock()
  for step = 1, 20 do t.batch(1, step, 128) end
  lu.assertTrue((os.clock() - start) / 20 < 0.02, 'seconds a batch: ' .. (os.clock() - start) / 20)
end

TestOptions = {}

function TestOptions:test_bad_options()
  local cases = {
    { 'recall', { pair = 3 }, "kv.tasks.recall: unknown option 'pair'; did you mean 'pairs'?" },
    { 'recall', { 5 }, "unknown option '1'" },
    { 'recall', { pairs = 0 }, 'pairs is 0, expected a whole number, 1 or more' },
    { 'recall', { pairs = 2.5 }, 'pairs is 2.5' },
    { 'recall', { pairs = 1 << 40 }, 'at most 2147483647' },
    { 'recall', { length = 12 }, 'length is 12, but 0 offset, 4 pairs and 4 queries of 2 tokens each need more: 16' },
    { 'recall', { length = 16, offset = 1 }, '17 or more' },
    { 'recall', { vocab = 8, pairs = 5 }, 'but 5 are needed' },
    { 'recall', { vocab = 8, keys = 5, pairs = 3 }, 'leaves 2 values, but 3 pairs need' },
    { 'recall', { keys = 127 }, 'keys is 127, but vocab = 128 also needs a filler and a value: at most 126' },
    { 'recall', { rewrites = 3 }, 'rewrites is 3, but each takes two of 4 pairs: at most 2' },
    { 'recall', { queries = 5 }, 'queries is 5' },
    { 'recall', { rewrites = 1, queries = 4 }, 'bind 3 keys, each asked once: at most 3' },
    { 'recall', { place = 'spread' }, "place: 'spread' is unknown" },
    { 'recall', { fill = 'randm' }, "did you mean 'random'?" },
    { 'recall', { fill = 'random', keys = 4 }, 'keys is 4' },
    { 'recall', { keys = 2, key_tokens = 2, pairs = 5, length = 64 }, 'only 4 different words of 2' },
    { 'induction', { vocab = 1 }, 'vocab is 1' },
    { 'induction', { hops = 70 }, '70 hops need a place to start from: 71 or more' },
    { 'copy', { span = 17 }, 'length is 32, but a span of 17 twice and a gap of 0 need more: 34' },
    { 'copy', { gap = 31 }, '33 or more' },
    { 'selective_copy', { noise = 15 }, 'at most 14' },
    { 'selective_copy', { items = 40 }, '80 or more' },
    { 'needle', { needles = 50 }, 'keys is 32, but each needle has a key of its own: 50' },
    { 'needle', { needles = 30, length = 100 }, '119 or more' },
    { 'needle', { distance = 127 }, 'distance is 127, but 1 needles in 128 tokens can lie 1 to 126 away' },
    { 'needle', { distance = { 9, 5 } }, 'distance is {9, 5}, expected {low, high}' },
    { 'needle', { distance = { low = 5 } }, "unknown key 'low'" },
    { 'needle', { distance = 'far' }, "distance is 'far'" },
    { 'needle', { needles = 4, distance = { 10, 15 } }, 'too little room for 4 needles' },
    { 'needle', { keys = 64, values = 64 }, 'vocab is 128, but 64 keys, 64 values and the hay need more: 129' },
    { 'phonebook', { queries = 9 }, 'each entry is asked once: at most 8' },
    { 'phonebook', { letters = 2, name_tokens = 2 }, 'only 4 different words of 2, but 8' },
    { 'phonebook', { length = 50 }, '52 or more' },
    { 'variables', { hops = 4, length = 64, chains = 8 }, 'names is 30' },
    { 'variables', { names = 59, chains = 3 }, 'leaves 2 values, but 3 chains' },
    { 'variables', { length = 19 }, '20 or more' },
    { 'text', { file = 'x' }, "unknown option 'file'; did you mean 'files'?" },
  }
  for _, case in ipairs(cases) do check.fails(case[3], kv.tasks[case[1]], case[2]) end
  check.fails('kv.tasks.copy: expected a table, not a number', kv.tasks.copy, 3)
end

-- Every case at the smallest length that its own message names still works.
function TestOptions:test_smallest_lengths_work()
  for _, name in ipairs { 'recall', 'copy', 'selective_copy', 'needle', 'phonebook', 'variables' } do
    local given = name == 'copy' and { span = 5 } or {}
    given.length = name == 'needle' and 3 or nil
    if name ~= 'needle' then
      local _, message = pcall(kv.tasks[name], { length = 2, span = given.span })
      given.length = math.tointeger(message:match('(%d+) or more'))
    end
    local t = kv.tasks[name](given)
    local batch = t.batch(1, 1, 10)
    local targets = batch.targets:totable()
    for b, tokens in ipairs(batch.tokens:totable()) do
      lu.assertEquals(targets[b], solve[name](t.options, tokens), name)
    end
  end
end

check.main()
