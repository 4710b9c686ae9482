-- Tasks that users write, the score, and tasks one after the other.
local lu = require 'luaunit'
local check = require 'check'
local kv = require 'kvlab'

local function same(a, b)
  return a.tokens:equal(b.tokens) and a.targets:equal(b.targets)
end

TestOwn = {}

local function parity()
  return kv.task {
    name = 'parity', vocab = 2, length = 5, answers = { 0, 1 },
    row = function(below, tokens, targets)
      local sum = 0
      for i = 1, 5 do
        tokens[i] = below(2)
        sum = sum + tokens[i]
      end
      targets[5] = sum % 2
    end,
  }
end

function TestOwn:test_by_row()
  local t = parity()
  local batch = t.batch(1, 1, 50)
  local targets = batch.targets:totable()
  for b, row in ipairs(batch.tokens:totable()) do
    lu.assertEquals(targets[b], { -1, -1, -1, -1, (row[1] + row[2] + row[3] + row[4] + row[5]) % 2 })
  end
  lu.assertEquals(t.chance, 0.5)
  lu.assertEquals(t.describe(), 'parity\n2 ids, 5 tokens; chance 0.5')
  lu.assertTrue(same(kv.task(t).batch(1, 1, 50), batch)) -- what it returns may be given again
  lu.assertFalse(same(t.validation(1, 50), batch))
end

function TestOwn:test_bad_tasks()
  local function with(changes)
    local t = { name = 'mine', vocab = 4, length = 3, chance = 0.25,
      batch = function(_, _, size)
        return { tokens = kv.zeros(size, 3, 'int32'), targets = kv.zeros(size, 3, 'int32') }
      end }
    for key, value in pairs(changes) do t[key] = value end
    for key, value in pairs(t) do
      if value == 'none' then t[key] = nil end
    end
    return t
  end
  local cases = {
    { { nam = 'x' }, "task: unknown key 'nam'; did you mean 'name'?" },
    { { name = 'none' }, 'task: name is nil' },
    { { vocab = 0 }, 'task mine: vocab is 0' },
    { { length = 1.5 }, 'task mine: length is 1.5' },
    { { chance = 'none' }, 'give its chance level' },
    { { chance = 2 }, 'chance is 2, expected a number from 0 to 1' },
    { { chance = 'none', answers = { 0, 4 } }, 'answers must be { first id, last id } within 0 to 3' },
    { { batch = 'none' }, 'either batch(seed, step, size) or row' },
    { { row = print }, 'either batch(seed, step, size) or row' },
    { { score = 3 }, 'score is a number, expected a function' },
  }
  for _, case in ipairs(cases) do check.fails(case[2], kv.task, with(case[1])) end
  check.fails('task: expected a table', kv.task, nil)

  local good = kv.task(with {})
  check.fails('mine: size is 0', good.batch, 1, 1, 0)
  check.fails('mine: seed is x, expected an integer', good.batch, 'x', 1, 1)
  check.fails('mine: step is 1.5', good.batch, 1, 1.5, 1)
  local function gives(tokens, targets, what)
    local t = kv.task(with { batch = function() return { tokens = tokens, targets = targets } end })
    check.fails(what, t.batch, 1, 1, 2)
  end
  local fine = kv.zeros(2, 3, 'int32')
  gives(kv.zeros(2, 3), fine, 'mine: tokens are float32 {2, 3}, expected an int32 tensor {2, T} with T at most 3')
  gives(kv.zeros(2, 4, 'int32'), fine, 'tokens are int32 {2, 4}')
  gives(fine, nil, 'targets are nil')
  gives(fine, kv.zeros(2, 2, 'int32'), 'tokens have 3 columns, targets 2')
  gives(kv.filled({ 2, 3 }, 4, 'int32'), fine, 'tokens hold 4, expected 0 to vocab - 1 = 3')
  gives(kv.filled({ 2, 3 }, -1, 'int32'), fine, 'tokens hold -1')
  gives(fine, kv.filled({ 2, 3 }, -2, 'int32'), 'targets hold -2, expected -1 to vocab - 1 = 3')
  check.fails('batch gave a nil', kv.task(with { batch = function() end }).batch, 1, 1, 1)
end

function TestOwn:test_score()
  local t = kv.task { name = 's', vocab = 4, length = 3, chance = 0.25, batch = function()
    return { tokens = kv.zeros(2, 3, 'int32'), targets = kv.tensor({ { -1, 2, 3 }, { 1, -1, -1 } }, 'int32'),
      candidates = kv.tensor({ { 2, 3 }, { 0, 1 } }, 'int32'),
      slices = { late = kv.tensor({ { 0, 0, 1 }, { 0, 1, 1 } }, 'int32') } }
  end }
  local batch = t.batch(1, 1, 2)
  -- right; the other candidate; not a candidate; what stands where nothing is asked does not count
  local guess = kv.tensor({ { 3, 2, 2 }, { 3, 0, 1 } }, 'int32')
  local expected = { correct = 1, count = 3, candidate = 1, slices = { late = { correct = 0, count = 1 } } }
  lu.assertEquals(t.score(batch, guess), expected)
  lu.assertTrue(kv.tasks.positions(batch):equal(kv.tensor({ 1, 2, 3 }, 'int32')))
  -- the same as logits: a row for each target, in order, or for each position
  local eye = kv.eye(4)
  lu.assertEquals(t.score(batch, eye:index_select(1, kv.tensor({ 2, 2, 3 }, 'int32'))), expected)
  lu.assertEquals(t.score(batch, eye:index_select(1, guess:flatten()):reshape(2, 3, 4)), expected)
  check.fails({ 'predictions are float32 {4, 4}; expected int32 {2, 3}', 'float32 {3, vocab}' },
    t.score, batch, eye)
  check.fails('predictions are a nil', t.score, batch)
  lu.assertEquals(kv.tasks.sum { expected, expected },
    { correct = 2, count = 6, candidate = 2, slices = { late = { correct = 0, count = 2 } } })
  lu.assertEquals(expected.correct, 1)
end

function TestOwn:test_curriculum()
  local one, two = kv.tasks.variables { hops = 1 }, kv.tasks.variables { hops = 2 }
  local t = kv.tasks.curriculum { { task = one, steps = 100 }, { task = two } }
  lu.assertTrue(same(t.batch(1, 100, 4), one.batch(1, 100, 4)))
  lu.assertTrue(same(t.batch(1, 101, 4), two.batch(1, 101, 4)))
  lu.assertTrue(same(t.validation(1, 4), two.validation(1, 4)))
  lu.assertEquals(t.score(t.batch(1, 7, 4), one.batch(1, 7, 4).targets).slices.hop1.count, 8)
  lu.assertStrContains(t.describe(), 'variables to step 100, then variables')
  check.fails('stage 1: steps is nil', kv.tasks.curriculum, { { task = one }, { task = two } })
  check.fails('the last one takes no steps', kv.tasks.curriculum, { { task = one, steps = 3 } })
  check.fails("stage 1: unknown key 'step'", kv.tasks.curriculum, { { task = one, step = 3 } })
  check.fails("unknown key 'steps'", kv.tasks.curriculum, { { task = one }, steps = 3 })
  check.fails('expected a list of stages', kv.tasks.curriculum, {})
end

check.main()
