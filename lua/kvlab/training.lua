-- training.lua: the loss of a model and its gradients: one pass of the model's own code over Vars.
--
-- For the time of one pass the model is looked at through a view in which every trained parameter is a Var; layers,
-- cells and the pass itself are those of kvlab.model. A tensor that stands under two names is one Var: its gradient is
-- the sum. The tape is freed at the end, also after an error, so a loop's memory is flat.
local ops = require 'kvlab.ops'
local opts = require 'kvlab.options'
local study = require 'kvlab.study'
local tape = require 'kvlab.tape'

local training = {}

training.fields = { 'gradients', 'scale', 'train', 'indexer', 'loss' }

-- Which parameters are trained: all, those whose name has one of the parts in a list, or those a function says.
local function chooser(train)
  if train == nil then return function() return true end end
  if type(train) == 'function' then return train end
  if type(train) == 'string' then train = { train } end
  if type(train) ~= 'table' then
    error(('loss: train is a %s, expected parts of names or a function'):format(type(train)), 0)
  end
  return function(name)
    for _, part in ipairs(train) do
      if name:find(part, 1, true) then return true end
    end
    return false
  end
end

-- view(m, own, grads, train) -> the model with Vars of the tape `own`, and the Vars by name.
local function view(m, own, grads, train)
  local var_of, by_name, parameters = {}, {}, {}
  local trained, chosen = chooser(train), 0
  for _, name in ipairs(m.names) do
    local t = m.parameters[name]
    if trained(name) then
      var_of[t] = var_of[t] or own:var(t, grads[name])
      by_name[name] = var_of[t]
      chosen = chosen + 1
    end
  end
  if chosen == 0 then error('loss: train names no parameter of the model', 0) end
  for name, t in pairs(m.parameters) do parameters[name] = var_of[t] or t end
  local layers = {}
  for i, A in ipairs(m.layers) do
    local w = {}
    for name, t in pairs(A.w) do w[name] = var_of[t] or t end
    local layer = setmetatable({ w = w, tape = own, query_merged = false }, { __index = A })
    if A.key_up then layer:split_up_projection() end
    layers[i] = layer
  end
  return setmetatable({ parameters = parameters, layers = layers }, { __index = m }), by_name
end

-- The cross-entropy of a batch { tokens, targets } through the model or its view: mean over targets that are not -1.
local function cross_entropy(m, batch, observed)
  local ids = m:tokens(batch.tokens)
  local targets = m:tokens(batch.targets, -1)
  if table.concat(targets.shape, ', ') ~= table.concat(ids.shape, ', ') then
    error(('loss: targets are {%s}, expected the {%s} of tokens'):format(table.concat(targets.shape, ', '),
      table.concat(ids.shape, ', ')), 0)
  end
  local count = targets:ge(0):sum()
  if count == 0 then error('loss: the batch has no target; all of them are -1', 0) end
  local h, _, shared = m:run(m:embed(ids, 0), 0, m:tensor_cells(ids.shape[1]), nil, observed)
  local n, head = m:head(h)
  local D = m.widths.hidden_size
  return ops.head_loss(n:reshape(-1, D), head, targets:reshape(-1):contiguous(), count), shared
end

-- training.loss(m, batch, options) -> loss (a number), gradients { [name] = Tensor }, more { loss, kl, indexers }.
-- Documentation in meta/training.lua.
function training.loss(m, batch, o)
  o = opts.check(o, training.fields, 'loss') or {}
  if type(batch) ~= 'table' then
    error(('loss: the batch is a %s, expected { tokens =, targets = }'):format(type(batch)), 0)
  end
  local grads = o.gradients
  if grads ~= nil and grads ~= false and type(grads) ~= 'table' then
    error(('loss: gradients is a %s, expected a table to add to, or false'):format(type(grads)), 0)
  end
  local scale = o.scale or 1
  if type(scale) ~= 'number' then error(('loss: scale is a %s, expected a number'):format(type(scale)), 0) end
  local observed = o.indexer and study.new(o.indexer, m, m:tokens(batch.tokens)) or nil
  if grads == false then
    local loss = cross_entropy(m, batch, observed)
    local more = { loss = loss:item() }
    if observed then
      local _, kl = observed:losses()
      more.kl, more.indexers = kl, observed:report()
    end
    return more.loss, nil, more
  end
  grads = grads or {}
  local own <close> = tape.new()
  local seen, vars = view(m, own, grads, o.train)
  local loss = cross_entropy(seen, batch, observed)
  local more = { loss = loss:item() }
  if observed then
    local sum, kl = observed:losses()
    more.kl, more.indexers = kl, observed:report()
    if sum then loss = ops.add(loss, sum) end
  end
  if ops.is_var(loss) then own:backward(loss, scale) end
  for name, var in pairs(vars) do grads[name] = var.grad end
  return more.loss, grads, more
end

return training
