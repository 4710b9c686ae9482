-- tasks: the training tasks that come with kvlab, each a function from options to a task (task.lua), and what one
-- needs to write another. Rows are made on the fly from the seed: a fixed small set would be learnt by heart.
local draw = require 'kvlab.tasks.draw'
local score = require 'kvlab.tasks.score'

local names = { 'copy', 'induction', 'needle', 'phonebook', 'recall', 'selective_copy', 'text', 'variables' }

local tasks = {
  curriculum = require 'kvlab.tasks.curriculum',
  stream = draw.stream,
  distinct = draw.distinct,
  shuffle = draw.shuffle,
  positions = score.positions,
  score = score.count,
  sum = score.sum,
}
for _, name in ipairs(names) do tasks[name] = require('kvlab.tasks.' .. name) end

-- names() -> a list of the names of the shipped tasks.
function tasks.names()
  return table.move(names, 1, #names, 1, {})
end

return tasks
