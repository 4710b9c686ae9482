-- curriculum.lua: tasks one after the other, by the number of the step: the first for its `steps`, and so on, the
-- last for ever. Validation and chance are the last one's. As every task, it depends on nothing but seed and step.
local options = require 'kvlab.options'
local task = require 'kvlab.tasks.task'

local WHERE = 'kv.tasks.curriculum'

return function(stages)
  if type(stages) ~= 'table' or #stages == 0 then
    error(('%s: expected a list of stages { task =, steps = }'):format(WHERE), 0)
  end
  for key in pairs(stages) do
    if math.type(key) ~= 'integer' then
      error(("%s: unknown key '%s'; expected a list of stages { task =, steps = }"):format(WHERE, tostring(key)), 0)
    end
  end
  local list, vocab, length, last_step, words = {}, 1, 1, 0, {}
  for i, stage in ipairs(stages) do
    local where = ('%s: stage %d'):format(WHERE, i)
    options.check(stage, { 'task', 'steps' }, where)
    if i < #stages then
      last_step = last_step + options.whole(stage.steps, 1, where .. ': steps')
    elseif stage.steps ~= nil then
      error(('%s: the last one takes no steps, it never ends'):format(where), 0)
    end
    local t = task.new(stage.task)
    list[i] = { task = t, last = i < #stages and last_step or math.huge }
    vocab, length = math.max(vocab, t.vocab), math.max(length, t.length)
    words[i] = i < #stages and ('%s to step %d'):format(t.name, last_step) or t.name
  end
  local final = list[#list].task

  local function batch(seed, step, size)
    local i = 1
    while step > list[i].last do i = i + 1 end
    local result = list[i].task.batch(seed, step, size)
    result.stage = i
    return result
  end

  local described = {}
  for i, stage in ipairs(list) do
    described[i] = { task = stage.task.name, options = stage.task.options, steps = stages[i].steps }
  end
  return task.new {
    name = 'curriculum', vocab = vocab, length = length, answers = final.answers, chance = final.chance,
    candidate_chance = final.candidate_chance, encode = final.encode, decode = final.decode,
    windows = final.windows, options = { stages = described }, batch = batch, validation = final.validation,
    score = function(one, predictions) return list[one.stage or #list].task.score(one, predictions) end,
    about = table.concat(words, ', then '),
  }
end
