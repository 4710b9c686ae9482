-- ops.lua: the functions that layers and models call: on tensors the plain kernels, and as soon as an argument is a
-- Var (kvlab.tape) the recorded ones. So one code is the full sequence, decoding through caches, and training.
--
-- On tensors a call costs one or two comparisons of metatables more than the kernel itself.
local core = require 'kvlab.core'
local gradients = require 'kvlab.gradients'
local kernels = require 'kvlab.kernels'
local tape = require 'kvlab.tape'
local tensor = require 'kvlab.tensor'

local is = tape.is

-- What is the same for both: functions that make tensors of numbers or ids.
local ops = { tensor = tensor.tensor, filled = tensor.filled, arange = tensor.arange,
  rope_freqs = kernels.rope_freqs, compressor = kernels.compressor, tape_compressor = gradients.compressor,
  is_var = is, value = tape.value, detach = tape.value, index_loss = gradients.index_loss,
  head_loss = gradients.head_loss, cross_entropy = gradients.cross_entropy }

function ops.is_tensor(x) return is(x) or tensor.is_tensor(x) end

function ops.cat(list, dim)
  for _, x in ipairs(list) do
    if is(x) then return tape.cat(list, dim) end
  end
  return tensor.cat(list, dim)
end

-- split(x, dim, n) -> the first n of x along dim, and the rest.
function ops.split(x, dim, n)
  if is(x) then return tape.split(x, dim, n) end
  return x:slice(dim, 1, n), x:slice(dim, n + 1, -1)
end

function ops.where(condition, a, b)
  if is(a) or is(b) then return tape.where(condition, a, b) end
  return tensor.where(tape.value(condition), a, b)
end

function ops.embedding(w, ids)
  if is(w) then return gradients.embedding(w, ids) end
  return tensor.embedding(w, ids)
end

-- linear(x, w): x (..., in) times a checkpoint matrix [out, in].
function ops.linear(x, w)
  if is(w) or is(x) then return gradients.linear(x, w) end
  return x:matmul(w:transpose(1, 2))
end

-- add(a, b): a + b, where only b may be a Var too: operators go by the left operand.
function ops.add(a, b)
  if is(b) then return tape.add(a, b) end
  return a + b
end

-- matmul(a, b): like a:matmul(b), where only b may be a Var too.
function ops.matmul(a, b)
  if is(b) then return tape.matmul(a, b) end
  return a:matmul(b)
end

function ops.rms_norm(x, weight, eps)
  if is(x) or is(weight) then return gradients.rms_norm(x, weight, eps) end
  return kernels.rms_norm(x, weight, eps)
end

function ops.layer_norm(x, weight, bias, eps)
  if is(x) or is(weight) or is(bias) then return gradients.layer_norm(x, weight, bias, eps) end
  return kernels.layer_norm(x, weight, bias, eps)
end

function ops.hadamard(x)
  if is(x) then return gradients.hadamard(x) end
  return kernels.hadamard(x)
end

function ops.rope(x, freqs, o)
  if is(x) then return gradients.rope(x, freqs, o) end
  return kernels.rope(x, freqs, o)
end

-- swiglu(gate, up) = silu(gate) * up
function ops.swiglu(gate, up)
  if is(gate) or is(up) then return gradients.swiglu(gate, up) end
  return core.grad.swiglu(gate, up)
end

-- roundtrip(plan, x): as a record would give x back.
function ops.roundtrip(plan, x)
  if is(x) then return gradients.roundtrip(plan, x) end
  return plan:roundtrip(x)
end

function ops.attend(o)
  local own = gradients.tape_of_attend(o)
  if own then return gradients.attend(o, own) end
  return kernels.attend(o)
end

-- index(o): selections have no gradient.
function ops.index(o)
  if is(o.q) or is(o.w) or is(o.keys.rows) then
    local plain = {}
    for name, setting in pairs(o) do plain[name] = tape.value(setting) end
    plain.keys = { rows = tape.value(o.keys.rows) }
    return kernels.index(plain)
  end
  return kernels.index(o)
end

return ops
