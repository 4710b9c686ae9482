-- tensor.lua: constructors and functions on tensors, as they appear in kv. Documentation in
-- meta/tensor.lua and meta/ops.lua; methods of Tensor are in C.
local core = require 'kvlab.core'
local options = require 'kvlab.options'

local M = {
  tensor = core.tensor.tensor,
  zeros = core.tensor.zeros,
  filled = core.tensor.filled,
  arange = core.tensor.arange,
  eye = core.tensor.eye,
  tril = core.tensor.tril,
  cat = core.tensor.cat,
  stack = core.tensor.stack,
  is_tensor = core.tensor.is_tensor,
  where = core.ops.where,
  embedding = core.ops.embedding,
  matmul = core.ops.matmul,
  permutation = core.ops.permutation,
}

-- ones(sizes...) or ones{sizes...}: float32 ones.
function M.ones(...)
  return M.zeros(...):fill_(1)
end

-- What the two numbers of a distribution are called, and what they are when not given.
local distributions = {
  normal = { 'mean', 'std', 0, 1 },
  uniform = { 'low', 'high', 0, 1 },
  integer = { 'low', 'high' },
}

local function check_number(value, name)
  if type(value) ~= 'number' then
    error(('random: %s is %s, expected a number'):format(name, tostring(value)), 0)
  end
  return value
end

-- random{sizes..., seed =, dist =, mean =, std =, low =, high =}
function M.random(opts)
  if type(opts) ~= 'table' then
    error('random: expected a table of sizes and options, such as {3, 4, seed = 1}', 0)
  end
  local named, shape = {}, {}
  for key, value in pairs(opts) do
    if math.type(key) == 'integer' then shape[key] = value else named[key] = value end
  end
  local dist = opts.dist == nil and 'normal' or opts.dist
  options.word(dist, { 'normal', 'uniform', 'integer' }, 'random: dist')
  local spec = distributions[dist]
  options.check(named, { 'seed', 'dist', spec[1], spec[2] }, ("random (%s)"):format(dist))
  if math.type(opts.seed) ~= 'integer' then
    error(('random: seed is %s, expected an integer; give every tensor a seed of its own')
      :format(tostring(opts.seed)), 0)
  end
  local function pick(i)
    local value = opts[spec[i]]
    if value == nil then value = spec[i + 2] end
    return check_number(value, spec[i])
  end
  return core.ops.random(dist, shape, opts.seed, pick(1), pick(2))
end

return M
