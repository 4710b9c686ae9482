-- rows.lua: batches of a task that is told a row at a time.
--
-- row(below, tokens, targets, note) changes two lists of `length` numbers: tokens, which begin as zeros, and
-- targets, which begin as -1 (no loss there). `below` is the row's stream of random numbers. What else is known of
-- the row goes into note: note[name] = the row's value of a declared field, and for a declared slice the list of
-- positions (from 1) that belong to it.
local core = require 'kvlab.core'
local draw = require 'kvlab.tasks.draw'

local rows = {}

-- batch(spec) -> batch(seed, step, size). spec: length, row, fields, slices (lists of names, or nil).
function rows.batch(spec)
  local length, row = spec.length, spec.row
  local fields, slices = spec.fields or {}, spec.slices or {}
  local zeros, nones = {}, {}
  for i = 1, length do zeros[i], nones[i] = 0, -1 end
  local function copy(list) -- unpacking makes the table at its full size at once, which is a third of the time
    return length <= 200 and { table.unpack(list) } or table.move(list, 1, length, 1, {})
  end
  return function(seed, step, size)
    local tokens, targets, others, marks = {}, {}, {}, {}
    for _, name in ipairs(fields) do others[name] = {} end
    for _, name in ipairs(slices) do marks[name] = {} end
    for b = 1, size do
      local note = {}
      tokens[b], targets[b] = copy(zeros), copy(nones)
      row(draw.stream(seed, step, b), tokens[b], targets[b], note)
      for _, name in ipairs(fields) do others[name][b] = note[name] end
      for _, name in ipairs(slices) do
        local mark = copy(zeros)
        for _, position in ipairs(note[name] or {}) do mark[position] = 1 end
        marks[name][b] = mark
      end
    end
    local batch = { tokens = core.tensor.tensor(tokens, 'int32'), targets = core.tensor.tensor(targets, 'int32') }
    for name, list in pairs(others) do batch[name] = core.tensor.tensor(list, 'int32') end
    for name, list in pairs(marks) do
      batch.slices = batch.slices or {}
      batch.slices[name] = core.tensor.tensor(list, 'int32')
    end
    return batch
  end
end

return rows
