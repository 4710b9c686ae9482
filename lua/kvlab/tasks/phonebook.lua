-- phonebook.lua: look a number up (Jelassi et al.: Repeat after me, arXiv 2402.01032).
--
--   fillers | name number 0  name number 0  ... | name number  name number(without its last digit)
--
-- Names and numbers are several tokens long; names share tokens, so that only the whole name tells the entry. All
-- names and all numbers of a row are different. Targets are the digits of the numbers asked for at the end, each at
-- the position before it. Ids: 0 filler, then the letters of names, then the digits.
local draw = require 'kvlab.tasks.draw'
local score = require 'kvlab.tasks.score'
local settings = require 'kvlab.tasks.settings'
local task = require 'kvlab.tasks.task'

local WHERE = 'kv.tasks.phonebook'
local SPEC = { length = { 64, 1 }, letters = { 20, 1 }, digits = { 10, 1 }, name_tokens = { 2, 1 },
  number_tokens = { 3, 1 }, entries = { 8, 1 }, queries = { 1, 1 } }

local function check(given)
  local o = settings.read(WHERE, given, SPEC)
  settings.at_most(WHERE, 'queries', o.queries, o.entries, 'each entry is asked once')
  settings.words_enough(WHERE, 'letters', o.letters, o.name_tokens, o.entries)
  settings.words_enough(WHERE, 'digits', o.digits, o.number_tokens, o.entries)
  local asked = o.name_tokens + o.number_tokens
  settings.at_least(WHERE, 'length', o.length, o.entries * (asked + 1) + o.queries * asked - 1,
    ('%d entries of %d tokens and %d queries need more'):format(o.entries, asked + 1, o.queries))
  return o, asked
end

return function(given)
  local o, asked = check(given)
  local queries = o.length - o.queries * asked + 1 -- positions before the first query
  local start = queries - o.entries * (asked + 1)

  local function row(below, tokens, targets, note)
    local names = draw.words(below, o.letters, o.name_tokens, o.entries)
    local numbers = draw.words(below, o.digits, o.number_tokens, o.entries)
    local at = start
    for i, name in ipairs(names) do
      for j, letter in ipairs(name) do tokens[at + j] = 1 + letter end
      for j, digit in ipairs(numbers[i]) do
        numbers[i][j] = 1 + o.letters + digit
        tokens[at + o.name_tokens + j] = numbers[i][j]
      end
      at = at + asked + 1
    end
    at = queries
    for _, which in ipairs(draw.distinct(below, o.entries, o.queries)) do
      for j, letter in ipairs(names[which + 1]) do tokens[at + j] = 1 + letter end
      local name_end = at + o.name_tokens
      for j, digit in ipairs(numbers[which + 1]) do
        targets[name_end + j - 1] = digit
        if name_end + j <= o.length then tokens[name_end + j] = digit end
      end
      at = at + asked
    end
    note.numbers = numbers
  end

  -- Besides the digits, whole numbers: right, of somebody else in the book, asked for. Digits are predicted with the
  -- right ones before them as input.
  local function count(batch, predictions)
    local result = score.count(batch, predictions)
    local ids = score.predicted(batch, predictions)
    local correct, known = 0, 0
    for q = 0, o.queries - 1 do
      local first = queries + q * asked + o.name_tokens
      local number = ids:slice(2, first, first + o.number_tokens - 1)
      correct = correct + number:eq(batch.targets:slice(2, first, first + o.number_tokens - 1)):min(2):sum()
      known = known + number:unsqueeze(2):eq(batch.numbers):min(3):sum()
    end
    result.numbers = { correct = correct, count = o.queries * #batch.tokens,
      candidate = known - correct }
    return result
  end

  return task.new {
    name = 'phonebook', vocab = 1 + o.letters + o.digits, length = o.length, score = count,
    answers = { 1 + o.letters, o.letters + o.digits }, options = o, row = row, fields = { 'numbers' },
    about = ('%d entries, names of %d and numbers of %d tokens; %d asked'):format(o.entries, o.name_tokens,
      o.number_tokens, o.queries),
  }
end
