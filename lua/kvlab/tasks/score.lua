-- score.lua: how many predictions of a batch are right.
--
-- A score holds counts only, so that scores of several batches add up (score.sum).
local core = require 'kvlab.core'

local score = {}

-- positions(batch) -> int32 {n}: where the targets are, as indices (from 0) into the B * T positions, row by row.
function score.positions(batch)
  local there = batch.targets:ge(0):flatten()
  local count = there:sum()
  if count == 0 then return core.tensor.zeros(0, 'int32') end
  local ids = there:to('float32'):topk(count, 'index')
  return ids
end

-- Predicted ids {B, T} from what the model gave; where there is no target they mean nothing.
local function predicted(batch, predictions)
  local targets = batch.targets
  local B, T = targets.shape[1], targets.shape[2]
  if not core.tensor.is_tensor(predictions) then
    error(('score: predictions are a %s, expected a tensor'):format(type(predictions)), 0)
  end
  local shape = predictions.shape
  if predictions.dtype == 'int32' and #shape == 2 and shape[1] == B and shape[2] == T then return predictions end
  if predictions.dtype == 'float32' and #shape == 3 and shape[1] == B and shape[2] == T then
    return predictions:argmax()
  end
  local count = targets:ge(0):sum()
  if predictions.dtype == 'float32' and #shape == 2 and shape[1] == count then
    local flat = core.tensor.filled({ B * T }, -1, 'int32')
    if count > 0 then flat = flat:scatter(1, score.positions(batch), predictions:argmax()) end
    return flat:reshape(B, T)
  end
  error(('score: predictions are %s {%s}; expected int32 {%d, %d}, or logits: float32 {%d, vocab}, a row for each '
    .. 'target, or float32 {%d, %d, vocab}'):format(predictions.dtype, table.concat(shape, ', '), B, T, count, B, T), 0)
end
score.predicted = predicted

-- count(batch, predictions) -> { correct, count, candidate?, slices? }
function score.count(batch, predictions)
  local ids = predicted(batch, predictions)
  local there = batch.targets:ge(0)
  local right = ids:eq(batch.targets):mul(there)
  local result = { correct = right:sum(), count = there:sum() }
  if batch.candidates then
    -- {B, T, 1} beside {B, 1, C}: is the prediction one of the row's candidates?
    local among = ids:unsqueeze(3):eq(batch.candidates:unsqueeze(2)):max(3)
    result.candidate = among:mul(there):sum() - among:mul(right):sum()
  end
  for name, mark in pairs(batch.slices or {}) do
    result.slices = result.slices or {}
    result.slices[name] = { correct = right:mul(mark):sum(), count = there:mul(mark):sum() }
  end
  return result
end

-- sum(scores) -> one score: numbers of the same name added, tables one level down alike.
function score.sum(scores)
  local total = {}
  local function add(into, from)
    for key, value in pairs(from) do
      if type(value) == 'table' then
        into[key] = into[key] or {}
        add(into[key], value)
      else
        into[key] = (into[key] or 0) + value
      end
    end
  end
  for _, one in ipairs(scores) do add(total, one) end
  return total
end

return score
