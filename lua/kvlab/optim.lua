-- optim.lua: AdamW with clipping of the global norm, and learning-rate schedules. Documentation in meta/training.lua.
--
-- An optimiser owns the two moments of every parameter, by name, and counts its steps: one that is trained later starts
-- as if it were the first step. A tensor that stands under several names is one parameter and is stepped once. Matrices
-- decay, vectors (norms, biases, sinks) do not.
local core = require 'kvlab.core'
local options = require 'kvlab.options'
local tensor = require 'kvlab.tensor'

local optim = {}

local class = {}
local meta = { __index = class, __name = 'kvlab.AdamW' }

local SETTINGS = { lr = 1e-3, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, decay = 0.1, clip = 1 }
local NAMES = { 'lr', 'beta1', 'beta2', 'eps', 'decay', 'clip', 'schedule' }

local function number(value, name, low, below)
  if type(value) ~= 'number' or not (value >= low and value < below) then
    error(('adamw: %s = %s: expected a number from %g to below %g'):format(name, tostring(value), low, below), 0)
  end
end

-- kv.adamw(parameters, options): parameters is a model or a table of float32 tensors by name.
function optim.adamw(parameters, o)
  o = options.check(o, NAMES, 'adamw') or {}
  if type(parameters) ~= 'table' then
    error(('adamw: parameters is a %s, expected a model or tensors by name'):format(type(parameters)), 0)
  end
  local m = type(parameters.changed) == 'function' and parameters or nil
  local self = { model = m, parameters = m and m.parameters or parameters, names = {}, first = {}, m = {}, v = {},
    taken = {}, steps = 0, schedule = o.schedule or function() return 1 end }
  for name, missing in pairs(SETTINGS) do
    self[name] = o[name] == nil and missing or o[name]
    number(self[name], name, 0, (name == 'beta1' or name == 'beta2') and 1 or math.huge)
  end
  if type(self.schedule) ~= 'function' then
    error(('adamw: schedule is a %s, expected a function of the step'):format(type(self.schedule)), 0)
  end
  for name, t in pairs(self.parameters) do
    if not tensor.is_tensor(t) or t.dtype ~= 'float32' or not t:is_contiguous() then
      error(('adamw: the parameter %s is no float32 tensor without gaps'):format(tostring(name)), 0)
    end
    self.names[#self.names + 1] = name
  end
  table.sort(self.names)
  for _, name in ipairs(self.names) do -- the first name of a tensor stands for it
    local t = self.parameters[name]
    if not self.first[t] then self.first[t] = name end
  end
  return setmetatable(self, meta)
end

-- Gradients of distinct parameters: { name, parameter, gradient }, in the order of names.
local function collect(self, grads)
  local list, seen, by_name = {}, {}, {}
  for name, g in pairs(grads) do
    local p = self.parameters[name]
    if not p then
      error(("adamw: no parameter is called '%s'%s"):format(tostring(name), options.suggest(name, self.names)), 0)
    end
    if not tensor.is_tensor(g) or not options.same(g.shape, p.shape) then
      error(('adamw: the gradient of %s is {%s}, expected {%s}'):format(name, tensor.is_tensor(g)
        and table.concat(g.shape, ', ') or type(g), table.concat(p.shape, ', ')), 0)
    end
  end
  for _, name in ipairs(self.names) do
    local g, p = grads[name], self.parameters[name]
    if g and not seen[g] then
      seen[g] = true
      local first = self.first[p]
      if by_name[first] then by_name[first].gradient:add_(g) -- another name's share
      else
        by_name[first] = { name = first, parameter = p, gradient = g }
        list[#list + 1] = by_name[first]
      end
    end
  end
  return list
end

-- optimiser:step(gradients) -> the global norm before clipping, the learning rate. The gradients are used up: freed,
-- and taken out of the table. With a norm that is not finite nothing is changed but that.
function class:step(grads)
  if type(grads) ~= 'table' then error(('adamw: gradients is a %s, expected a table'):format(type(grads)), 0) end
  local list = collect(self, grads)
  local tensors = {}
  for i, entry in ipairs(list) do tensors[i] = entry.gradient end
  local norm = core.optim.global_norm(tensors)
  local factor = self.schedule(self.steps + 1)
  if type(factor) ~= 'number' then error(('adamw: schedule gave a %s, expected a number'):format(type(factor)), 0) end
  local lr = self.lr * factor
  if norm == norm and norm < math.huge then
    local scale = core.optim.clip_scale(norm, self.clip)
    local _ <close> = core.base.hold_interrupts(true) -- all parameters are stepped, or none
    self.steps = self.steps + 1
    for _, entry in ipairs(list) do
      local name, p = entry.name, entry.parameter
      if not self.m[name] then self.m[name], self.v[name] = tensor.zeros(p.shape), tensor.zeros(p.shape) end
      self.taken[name] = (self.taken[name] or 0) + 1
      core.optim.adamw(p, self.m[name], self.v[name], entry.gradient, lr, self.beta1, self.beta2, self.eps,
        #p.shape >= 2 and self.decay or 0, scale, self.taken[name])
    end
    if self.model then self.model:changed() end
  end
  for name, g in pairs(grads) do
    g:free()
    grads[name] = nil
  end
  return norm, lr
end

-- optimiser:state() -> tensors { ['m.NAME'], ['v.NAME'] }, which stay the optimiser's, and plain data: all that a
-- checkpoint needs beside the parameters.
function class:state()
  local tensors, taken = {}, {}
  for name, t in pairs(self.m) do
    tensors['m.' .. name], tensors['v.' .. name], taken[name] = t, self.v[name], self.taken[name]
  end
  return tensors, { steps = self.steps, taken = taken }
end

-- optimiser:restore(tensors, data): what state() gave, of an optimiser of the same parameters. Other tensors are left
-- alone.
function class:restore(tensors, data)
  local m, v, taken = {}, {}, {}
  for name, n in pairs(data.taken) do
    local p = self.parameters[name]
    local pair = { tensors['m.' .. name], tensors['v.' .. name] }
    for i = 1, 2 do
      if not p or not pair[i] or not options.same(pair[i].shape, p.shape) then
        error(('adamw: restore: the moments of %s do not fit the parameters'):format(name), 0)
      end
    end
    m[name], v[name], taken[name] = pair[1], pair[2], n
  end
  self.m, self.v, self.taken, self.steps = m, v, taken, data.steps
end

function meta.__tostring(self)
  return ('kvlab.AdamW: %d parameters, %d steps'):format(#self.names, self.steps)
end

-- --- schedules ----------------------------------------------------------------------------------------
-- Each is a function from the step, 1 for the first, to the factor of the learning rate.
local function warmed(o, where, rest)
  options.check(o, { 'warmup', 'steps', 'final' }, where)
  o = o or {}
  local warmup = options.whole(o.warmup or 0, 0, where .. ': warmup')
  local steps = o.steps and options.whole(o.steps, 1, where .. ': steps')
  if rest.needs_steps and not steps then error(where .. ': steps, the length of the run, is missing', 0) end
  local final = o.final or 0
  if type(final) ~= 'number' or not (final >= 0 and final <= 1) then
    error(('%s: final is %s, expected a part of the learning rate, 0 to 1'):format(where, tostring(final)), 0)
  end
  return function(step)
    if step <= warmup then return step / warmup end
    if not rest.needs_steps then return 1 end
    local done = math.min(1, (step - warmup) / math.max(1, steps - warmup))
    return final + (1 - final) * rest.shape(done)
  end
end

optim.schedule = {}
function optim.schedule.constant(o) return warmed(o, 'constant', {}) end
function optim.schedule.linear(o)
  return warmed(o, 'linear', { needs_steps = true, shape = function(x) return 1 - x end })
end
function optim.schedule.cosine(o)
  return warmed(o, 'cosine', { needs_steps = true, shape = function(x) return 0.5 * (1 + math.cos(math.pi * x)) end })
end

optim.class = class
return optim
