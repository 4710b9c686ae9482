-- task.lua: what a task is. A plain table:
--
--   name, vocab, length   ids are 0 .. vocab - 1; rows have at most `length` tokens
--   chance                accuracy of guessing evenly among `answers` = { first id, last id }
--   candidate_chance      accuracy of guessing evenly among a row's candidates, where there are some
--   batch(seed, step, size)    a training batch; depends on its arguments and the options, on nothing before
--   validation(index, size)    a batch that no training sees; the same for every seed
--   score(batch, predictions), describe(), options
--   encode(text), decode(ids), windows (validation windows): of tasks on text
--
-- A batch: tokens and targets, int32 {size, T}; targets are -1 where there is no loss. Perhaps candidates, int32
-- {size, C}, and slices, name -> int32 {size, T} of 0 and 1: targets to report on apart.
local core = require 'kvlab.core'
local options = require 'kvlab.options'
local rows = require 'kvlab.tasks.rows'
local score = require 'kvlab.tasks.score'

local task = {}

local FIELDS = { 'name', 'vocab', 'length', 'answers', 'chance', 'candidate_chance', 'about', 'options',
  'row', 'fields', 'slices', 'batch', 'validation', 'score', 'describe', 'encode', 'decode', 'windows' }
local FUNCTIONS = { 'row', 'batch', 'validation', 'score', 'describe', 'encode', 'decode' }

-- The seed of validation batches where a task does not make its own; no run should train with it.
task.VALIDATION_SEED = 0x7fffffffffffffff

local function check_ids(where, what, tensor, low, vocab)
  if tensor.size == 0 then return end
  local least, most = tensor:min(), tensor:max()
  if least < low or most >= vocab then
    error(('%s: %s hold %d, expected %d to vocab - 1 = %d')
      :format(where, what, least < low and least or most, low, vocab - 1), 0)
  end
end

local function check_batch(t, batch, size)
  local where = t.name
  if type(batch) ~= 'table' then
    error(('%s: batch gave a %s, expected a table with tokens and targets'):format(where, type(batch)), 0)
  end
  for _, what in ipairs { 'tokens', 'targets' } do
    local tensor = batch[what]
    local is = core.tensor.is_tensor(tensor)
    local shape = is and tensor.shape or {}
    if not is or tensor.dtype ~= 'int32' or #shape ~= 2 or shape[1] ~= size or shape[2] > t.length then
      local shown = is and ('%s {%s}'):format(tensor.dtype, table.concat(shape, ', ')) or type(tensor)
      error(('%s: %s are %s, expected an int32 tensor {%d, T} with T at most %d')
        :format(where, what, shown, size, t.length), 0)
    end
  end
  if batch.tokens.shape[2] ~= batch.targets.shape[2] then
    error(('%s: tokens have %d columns, targets %d'):format(where, batch.tokens.shape[2], batch.targets.shape[2]), 0)
  end
  check_ids(where, 'tokens', batch.tokens, 0, t.vocab)
  check_ids(where, 'targets', batch.targets, -1, t.vocab)
  return batch
end

local function integer(value, where, what)
  local n = type(value) == 'number' and math.tointeger(value)
  if not n then error(('%s: %s is %s, expected an integer'):format(where, what, tostring(value)), 0) end
  return n
end

local function fraction(t, name)
  local value = t[name]
  if value ~= nil and not (type(value) == 'number' and value >= 0 and value <= 1) then
    error(('task %s: %s is %s, expected a number from 0 to 1'):format(t.name, name, tostring(value)), 0)
  end
end

local function check_fields(given)
  options.check(given, FIELDS, 'task')
  if given == nil then error('task: expected a table', 0) end
  local t = {}
  for key, value in pairs(given) do t[key] = value end
  if type(t.name) ~= 'string' or t.name == '' then
    error(('task: name is %s, expected a string'):format(tostring(t.name)), 0)
  end
  local where = 'task ' .. t.name
  t.vocab = options.whole(t.vocab, 1, where .. ': vocab')
  t.length = options.whole(t.length, 1, where .. ': length')
  for _, name in ipairs(FUNCTIONS) do
    if t[name] ~= nil and type(t[name]) ~= 'function' then
      error(('%s: %s is a %s, expected a function'):format(where, name, type(t[name])), 0)
    end
  end
  if (t.row == nil) == (t.batch == nil) then
    error(('%s: give either batch(seed, step, size) or row(below, tokens, targets, note)'):format(where), 0)
  end
  if t.answers ~= nil then
    local first, last = (type(t.answers) == 'table') and t.answers[1], (type(t.answers) == 'table') and t.answers[2]
    if not (math.type(first) == 'integer' and math.type(last) == 'integer' and first >= 0 and first <= last
      and last < t.vocab) then
      error(('%s: answers must be { first id, last id } within 0 to %d'):format(where, t.vocab - 1), 0)
    end
  end
  t.chance = t.chance or t.answers and 1 / (t.answers[2] - t.answers[1] + 1)
  if t.chance == nil then error(('%s: give its chance level: chance, or answers'):format(where), 0) end
  fraction(t, 'chance')
  fraction(t, 'candidate_chance')
  return t
end

-- new(given) -> a checked task with everything that was left out. What it returns may be given again.
function task.new(given)
  local t = check_fields(given)
  local make, validation = t.batch or rows.batch(t), t.validation
  t.row, t.fields, t.slices = nil, nil, nil
  function t.batch(seed, step, size)
    return check_batch(t, make(integer(seed, t.name, 'seed'), integer(step, t.name, 'step'),
      options.whole(size, 1, t.name .. ': size')), size)
  end
  function t.validation(index, size)
    index = integer(index, t.name, 'index')
    size = options.whole(size, 1, t.name .. ': size')
    if not validation then return check_batch(t, make(task.VALIDATION_SEED, index, size), size) end
    return check_batch(t, validation(index, size), size)
  end
  t.score = t.score or score.count
  t.options = t.options or {}
  local about = t.about
  t.describe = t.describe or function()
    local lines = { about and ('%s: %s'):format(t.name, about) or t.name,
      ('%d ids, %d tokens; chance %.4g%s'):format(t.vocab, t.length, t.chance,
        t.candidate_chance and (', among the candidates of a row %.4g'):format(t.candidate_chance) or '') }
    return table.concat(lines, '\n')
  end
  return t
end

return task
