-- diagnose.lua: where a number that is not finite came from. A training step whose loss or gradient is NaN or infinite
-- is done again, looking at what every part of the model gives.
local ops = require 'kvlab.ops'
local study = require 'kvlab.study'

local diagnose = {}

local function finite(t)
  local zeros <close> = t:mul(0) -- but for NaN and infinity, which give NaN
  return zeros:sum() == 0
end

local function shown(x) return x ~= x and 'NaN' or x > 0 and 'infinite' or '-infinite' end

-- The name of the first parameter that is not finite, or nil.
local function bad_parameter(m)
  for _, name in ipairs(m.names) do
    if not finite(m.parameters[name]) then return name end
  end
  return nil
end

-- Runs the model over the batch and returns the first part whose output is not finite, in words, or nil.
local function first_part(m, batch, options)
  local found
  local function look(t, text, ...)
    if not found and not finite(t) then found = text:format(...) end
    return t
  end
  local layers = {}
  for i, A in ipairs(m.layers) do
    layers[i] = setmetatable({ forward = function(_, ...)
      return look(A:forward(...), 'the attention of %s', A.shape.at)
    end }, { __index = A })
  end
  local seen = setmetatable({ layers = layers, add_ffn = function(_, i, h)
    return look(m:add_ffn(i, h), 'the residual stream after %s', m.layers[i].shape.at)
  end }, { __index = m })
  local ids = m:tokens(batch.tokens)
  local h = look(seen:embed(ids, 0), 'the embedding')
  local indexer = options and options.indexer
  h = seen:run(h, 0, seen:tensor_cells(ids.shape[1]), nil, indexer and study.new(indexer, m, ids))
  local normed, head = seen:head(h)
  look(ops.linear(normed, head), 'the logits')
  return found
end

-- diagnose.loss(m, batch, step, loss, options of model:loss) -> a message.
function diagnose.loss(m, batch, step, loss, options)
  local parameter = bad_parameter(m)
  local where = parameter and ('the parameter %s is not finite'):format(parameter)
  if not where then
    local part = first_part(m, batch, options)
    where = part and 'it began in ' .. part or 'all outputs of the model are finite, so it is the loss itself'
  end
  return ('the loss is %s at step %d: %s'):format(shown(loss), step, where)
end

-- diagnose.gradient(m, batch, step, norm, options) -> a message. The optimiser has used up the gradients, so they are
-- computed again.
function diagnose.gradient(m, batch, step, norm, options)
  local _, gradients = m:loss(batch, options)
  local nearest -- to the loss: names are in the order of computation, gradients go through it backwards
  for _, name in ipairs(m.names) do
    if gradients[name] and not finite(gradients[name]) then nearest = name end
  end
  for _, g in pairs(gradients) do g:free() end
  return ('the gradient is %s at step %d, with a finite loss: %s'):format(shown(norm), step, nearest
    and 'it began at or behind ' .. nearest or 'every part of it is finite, only their norm is not')
end

return diagnose
