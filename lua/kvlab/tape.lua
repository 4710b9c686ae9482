-- tape.lua: reverse-mode differentiation. A Var is a tensor whose computation is recorded on a tape.
--
--   local tape = kv.tape()
--   local w = tape:var(weights)
--   local loss = (x:matmul(w) - y):pow(2):mean()       -- Vars have the methods and operators of tensors
--   tape:backward(loss)                                -- w.grad
--
-- Ownership: the tape owns the value and gradient of every Var that an operation made, and what operations saved.
-- backward walks the operations from the last to the first and frees all of that as it goes, so that memory does not
-- wait for the garbage collector. What tape:var was given stays the caller's, and so does its gradient.
--
-- Invariant: a gradient is a tensor without gaps, of the shape of its Var, and nothing else looks at its storage.
-- Operations of more than a few lines (norms, attention, losses) are in kvlab.gradients.
local core = require 'kvlab.core'
local options = require 'kvlab.options'
local tensor = require 'kvlab.tensor'

local getmetatable, setmetatable = getmetatable, setmetatable -- called many times for each operation

local M = {}

local class = {} -- methods of Var
local var_meta = { __name = 'kvlab.Var', __index = class }
local methods = {} -- methods of Tape
local tape_meta = { __name = 'kvlab.Tape', __index = methods }
M.class, M.tape_class = class, methods

-- --- the parts ----------------------------------------------------------------------------------------
local function is(x) return getmetatable(x) == var_meta end
M.is = is

-- The tensor of a Var; anything else as it is.
local function value(x)
  if is(x) then return x.value end
  return x
end
M.value = value

local function new_var(tape, made, grad)
  return setmetatable({ value = made, grad = grad, tape = tape, shape = made.shape, dtype = 'float32',
    size = made.size }, var_meta)
end

-- record(tape, made, backward, saved) -> Var of the new tensor `made`. backward(g) gets its gradient and hands
-- gradients on by `give` or `buffer`; `saved` is a list of tensors that are freed after it.
local function record(tape, made, backward, saved)
  if tape.consumed then error('tape: it was consumed by backward; make a new one', 0) end
  local out = new_var(tape, made)
  tape.nodes[#tape.nodes + 1] = { out = out, backward = backward, saved = saved }
  return out
end
M.record = record

local function one_of(first, second)
  if first and second and first ~= second then error('tape: the arguments are Vars of different tapes', 0) end
  return first or second
end

-- tape_of(...) -> the tape of the Vars among the arguments, which must all be of one, or nil.
local function tape_of(a, b, ...)
  local found = one_of(is(a) and a.tape or nil, is(b) and b.tape or nil)
  if select('#', ...) == 0 then return found end
  return one_of(found, tape_of(...))
end
M.tape_of = tape_of

-- give(x, g): adds g to the gradient of x, when x is a Var. The storage of g is then no longer the caller's.
local function give(x, g)
  if not is(x) then return g:free() end
  if x.grad then
    x.grad:add_(g)
    g:free()
  elseif g:is_contiguous() then
    x.grad = g
  else
    x.grad = g:contiguous()
    g:free()
  end
end
M.give = give

-- lend(x, g): the same, but g stays the caller's.
local function lend(x, g)
  if not is(x) then return end
  if x.grad then x.grad:add_(g) else x.grad = g:clone() end
end

-- buffer(x) -> the gradient of x, for a kernel to add to (zeros at first); nil for what is no Var.
local function buffer(x)
  if not is(x) then return nil end
  if not x.grad then x.grad = tensor.zeros(x.shape) end
  return x.grad
end
M.buffer = buffer

-- g summed over what broadcasting repeated, so that it has `shape`. g is consumed.
local function reduce(g, shape)
  local have = g.shape
  for _ = 1, #have - #shape do
    local sum = g:sum(1)
    g:free()
    g = sum
  end
  have = g.shape
  for i, size in ipairs(shape) do
    if size == 1 and have[i] ~= 1 then
      local sum = g:sum(i, true)
      g:free()
      g = sum
    end
  end
  return g
end

-- --- tapes --------------------------------------------------------------------------------------------
-- kv.tape() -> an empty tape.
function M.new() return setmetatable({ nodes = {}, consumed = false }, tape_meta) end

-- tape:var(t, grad) -> a Var of the caller's tensor t. Its gradient is added to `grad` when that is given.
function methods:var(t, grad)
  if not tensor.is_tensor(t) or t.dtype ~= 'float32' then
    error(('tape: var is %s, expected a float32 tensor'):format(tensor.is_tensor(t) and t.dtype or type(t)), 0)
  end
  if grad ~= nil and not (tensor.is_tensor(grad) and grad.dtype == 'float32' and grad:is_contiguous()
    and options.same(grad.shape, t.shape)) then
    error(('tape: grad is not a float32 tensor {%s} without gaps'):format(table.concat(t.shape, ', ')), 0)
  end
  return new_var(self, t, grad)
end

-- tape:op { inputs =, value =, backward = } -> a Var with a backward of the caller's: backward(grad) returns a
-- gradient for each input, nil where there is none.
function methods:op(o)
  options.check(o, { 'inputs', 'value', 'backward' }, 'tape: op')
  if type(o) ~= 'table' or type(o.inputs) ~= 'table' or type(o.backward) ~= 'function'
    or not tensor.is_tensor(o.value) then
    error('tape: op needs { inputs = list of Vars, value = tensor, backward = function(grad) -> gradients }', 0)
  end
  local inputs = table.move(o.inputs, 1, #o.inputs, 1, {})
  for i = 1, #inputs do
    if is(inputs[i]) and inputs[i].tape ~= self then
      error(('tape: input %d of op is a Var of another tape'):format(i), 0)
    end
  end
  return record(self, o.value, function(g)
    local grads = table.pack(o.backward(g))
    for i, x in ipairs(inputs) do
      local d = grads[i]
      if d ~= nil and is(x) then
        if not tensor.is_tensor(d) or not options.same(d.shape, x.shape) then
          error(('tape: backward of op gave {%s} for input %d, expected a tensor {%s}'):format(
            tensor.is_tensor(d) and table.concat(d.shape, ', ') or type(d), i, table.concat(x.shape, ', ')), 0)
        end
        lend(x, d)
      end
    end
  end)
end

local function free_node(node, keep)
  local out = node.out
  if out.grad then out.grad:free() end
  if out ~= keep then out.value:free() end
  out.grad = nil
  for _, t in ipairs(node.saved or {}) do t:free() end
end

-- tape:backward(loss [, factor]): gradients of factor * loss for all Vars of tape:var. loss has one element. The
-- tape is then consumed: what it held is freed, but for the value of the loss.
function methods:backward(loss, factor)
  if not is(loss) or loss.tape ~= self then error('tape: backward needs a Var of this tape', 0) end
  if loss.size ~= 1 then
    error(('tape: backward from {%s}, expected one element'):format(table.concat(loss.shape, ', ')), 0)
  end
  if self.consumed then error('tape: it was consumed already; make a new one', 0) end
  self.consumed = true
  local seed <close> = tensor.ones(loss.shape):fill_(factor or 1)
  lend(loss, seed)
  for i = #self.nodes, 1, -1 do
    local node = self.nodes[i]
    if node.out.grad then node.backward(node.out.grad) end
    free_node(node, loss)
    self.nodes[i] = nil
  end
end

-- tape:free(): frees what the tape holds, without a backward.
function methods:free()
  self.consumed = true
  for i = #self.nodes, 1, -1 do
    free_node(self.nodes[i])
    self.nodes[i] = nil
  end
end
tape_meta.__close = methods.free

function tape_meta.__tostring(self)
  return ('kvlab.Tape: %s'):format(self.consumed and 'consumed' or #self.nodes .. ' operations')
end

function var_meta.__tostring(self) return ('kvlab.Var {%s}'):format(table.concat(self.shape, ', ')) end

-- --- shapes -------------------------------------------------------------------------------------------
-- All of these only move elements. back(g, x) is the gradient as a view of g or a copy.
local function moves(name, back)
  class[name] = function(x, ...)
    local sizes = table.pack(...)
    return record(x.tape, x.value[name](x.value, ...), function(g)
      give(x, back(g, x, table.unpack(sizes, 1, sizes.n)))
    end)
  end
end

local function as_before(g, x) return g:reshape(x.shape) end
for _, name in ipairs { 'reshape', 'flatten', 'squeeze', 'unsqueeze' } do moves(name, as_before) end
moves('contiguous', function(g) return g:contiguous() end)
moves('clone', function(g) return g:contiguous() end)
moves('transpose', function(g, _, a, b) return g:transpose(a, b) end)
moves('permute', function(g, _, ...)
  local dims = type(...) == 'table' and ... or { ... }
  local inverse = {}
  for i, dim in ipairs(dims) do inverse[dim > 0 and dim or #dims + 1 + dim] = i end
  return g:permute(inverse)
end)
moves('expand', function(g, x) return reduce(g:contiguous(), x.shape) end)

-- A part of x: its gradient is added to that part.
local function part(name)
  class[name] = function(x, ...)
    local at = table.pack(...)
    return record(x.tape, x.value[name](x.value, ...), function(g)
      local whole = buffer(x)
      local place <close> = whole[name](whole, table.unpack(at, 1, at.n))
      place:add_(g)
    end)
  end
end
part 'slice'
part 'select'

-- split(x, dim, n) -> the first n of x along dim, and the rest. Both are recorded one after the other, so all that uses
-- them comes later: when the gradient of the rest is there, that of the first is complete, and both together are that
-- of x, which is written once.
function M.split(x, dim, n)
  local first, v = x:slice(dim, 1, n), x.value
  return first, record(x.tape, v:slice(dim, n + 1, -1), function(g)
    if first.grad then
      give(x, tensor.cat({ first.grad, g }, dim))
      first.grad:free()
      first.grad = nil
    else
      local whole = buffer(x)
      local place <close> = whole:slice(dim, n + 1, -1)
      place:add_(g)
    end
  end)
end

function class.index_select(x, dim, ids)
  return record(x.tape, x.value:index_select(dim, ids), function(g)
    local shape = g.shape
    for i in ipairs(shape) do shape[i] = i == (dim > 0 and dim or #shape + 1 + dim) and shape[i] or 1 end
    local none <close> = tensor.zeros(x.shape)
    give(x, none:scatter_add(dim, ids:reshape(shape):expand(g.shape):contiguous(), g))
  end)
end

-- cat(list, dim) with Vars among the tensors of the list.
function M.cat(list, dim)
  local tape = tape_of(table.unpack(list))
  local values, parts = {}, table.move(list, 1, #list, 1, {})
  for i, x in ipairs(parts) do values[i] = value(x) end
  local sizes = {}
  for i, t in ipairs(values) do sizes[i] = t.shape[dim > 0 and dim or #t.shape + 1 + dim] end
  return record(tape, tensor.cat(values, dim), function(g)
    local at = 0
    for i, x in ipairs(parts) do
      if is(x) and sizes[i] > 0 then
        local place <close> = g:slice(dim, at + 1, at + sizes[i])
        lend(x, place)
      end
      at = at + sizes[i]
    end
  end)
end

-- --- elementwise --------------------------------------------------------------------------------------
-- An operand that is a Var, a tensor or a number; its shape.
local function shape_of(x) return type(x) == 'number' and {} or x.shape end

-- binary(f, da, db): f on values; da(g, a, b, out) and db(...) give new tensors of the shape of the result.
local function binary(f, da, db)
  return function(a, b)
    local u, v = value(a), value(b)
    local shape_a, shape_b = shape_of(a), shape_of(b)
    local out = f(u, v)
    return record(tape_of(a, b), out, function(g)
      if is(a) then give(a, reduce(da(g, u, v, out), shape_a)) end
      if is(b) then give(b, reduce(db(g, u, v, out), shape_b)) end
    end)
  end
end

local function copy(g) return g:clone() end
local add = binary(function(a, b) return a + b end, copy, copy)
-- Sums of one shape are the residual stream: g is copied only where there is no gradient yet.
function var_meta.__add(a, b)
  if not (is(a) and is(b) and options.same(a.shape, b.shape)) then return add(a, b) end
  return record(tape_of(a, b), a.value + b.value, function(g)
    lend(a, g)
    give(b, g:contiguous())
  end)
end
var_meta.__sub = binary(function(a, b) return a - b end, copy, function(g) return -g end)
var_meta.__mul = binary(function(a, b) return a * b end, function(g, _, b) return g * b end,
  function(g, a) return g * a end)
var_meta.__div = binary(function(a, b) return a / b end, function(g, _, b) return g / b end,
  function(g, _, b, out)
    return (g * out):div_(b):mul_(-1)
  end)
-- The slope in the exponent is out * log(base), and 0 at the base 0, where the logarithm is not.
var_meta.__pow = binary(function(a, b) return a ^ b end, function(g, a, b) return a ^ (b - 1) * b * g end,
  function(g, a, _, out)
    if type(a) == 'number' then return g * out * (a == 0 and 0 or math.log(a)) end
    return tensor.where(a:eq(0), 0, out * a:log()) * g
  end)
-- Where both are equal, each gets half.
local function larger(u, v) return u:gt(v):to 'float32' + u:eq(v):to 'float32' * 0.5 end
local function from_larger(g, a, b) return g * larger(a, b) end
local function from_smaller(g, a, b) return g * (1 - larger(a, b)) end
class.maximum = binary(function(a, b) return a:maximum(b) end, from_larger, from_smaller)
class.minimum = binary(function(a, b) return a:minimum(b) end, from_smaller, from_larger)
M.add = var_meta.__add
class.add, class.sub, class.mul, class.div, class.pow = var_meta.__add, var_meta.__sub, var_meta.__mul, var_meta.__div,
  var_meta.__pow

-- where(condition, a, b) with Vars for a or b; the condition has no gradient.
function M.where(condition, a, b)
  local chosen = value(condition)
  return record(tape_of(a, b), tensor.where(chosen, value(a), value(b)), function(g)
    if is(a) then give(a, reduce(tensor.where(chosen, g, 0), a.shape)) end
    if is(b) then give(b, reduce(tensor.where(chosen, 0, g), b.shape)) end
  end)
end

local function unary(name, back)
  class[name] = function(x)
    local v = x.value
    local out = v[name](v)
    return record(x.tape, out, function(g) give(x, back(g, v, out)) end)
  end
end
unary('neg', function(g) return -g end)
unary('exp', function(g, _, out) return g * out end)
unary('log', function(g, v) return g / v end)
unary('sqrt', function(g, _, out) return (g / out):mul_(0.5) end)
unary('rsqrt', function(g, _, out) return (g * out ^ 3):mul_(-0.5) end)
unary('tanh', function(g, _, out) return g - g * out * out end)
unary('abs', function(g, v) return g * (v:gt(0) - v:lt(0)) end)
var_meta.__unm = class.neg
for _, name in ipairs { 'relu', 'sigmoid', 'silu', 'gelu' } do
  class[name] = function(x)
    local v = x.value
    return record(x.tape, v[name](v), function(g)
      core.grad.unary(name, g, v)
      give(x, g:contiguous()) -- g has become the gradient of x
    end)
  end
end

-- --- sums ---------------------------------------------------------------------------------------------
-- g with the reduced dimension back, repeated over the shape of x.
local function spread(g, x, dim)
  if not dim then return g:reshape(1):expand(x.size):reshape(x.shape) end
  local shape = table.move(x.shape, 1, #x.shape, 1, {})
  shape[dim > 0 and dim or #shape + 1 + dim] = 1
  return g:reshape(shape):expand(x.shape)
end

-- back(d, x, dim, out): the gradient from d, which is that of the result, repeated over the shape of x.
local function reduction(name, back)
  class[name] = function(x, dim, keep)
    local v = x.value
    local out
    if dim then out = v[name](v, dim, keep)
    else
      local flat <close> = v:reshape(-1)
      out = flat[name](flat, 1)
    end
    return record(x.tape, out, function(g) give(x, back(spread(g, x, dim), x, dim, out)) end)
  end
end
reduction('sum', function(d) return d:clone() end)
reduction('mean', function(d, x, dim)
  return d * (1 / (dim and x.shape[dim > 0 and dim or #x.shape + 1 + dim] or x.size))
end)
-- Elements that are equally large share the gradient.
local function extreme(d, x, dim, out)
  local there = x.value:eq(spread(out, x, dim)):to 'float32'
  if dim then return d * there / there:sum(dim, true) end
  return d * there * (1 / there:sum())
end
reduction('max', extreme)
reduction('min', extreme)

function class.softmax(x, dim)
  dim = dim or #x.shape
  local out = x.value:softmax(dim)
  return record(x.tape, out, function(g) give(x, out * (g - (g * out):sum(dim, true))) end)
end

function class.log_softmax(x, dim)
  dim = dim or #x.shape
  local out = x.value:log_softmax(dim)
  return record(x.tape, out, function(g) give(x, g - out:exp() * g:sum(dim, true)) end)
end

function class.logsumexp(x, dim)
  dim = dim or #x.shape
  local v = x.value
  return record(x.tape, v:logsumexp(dim), function(g) give(x, v:softmax(dim) * spread(g, x, dim)) end)
end

-- The gradient of an element is the sum of those from it to the end.
function class.cumsum(x, dim)
  dim = dim or #x.shape
  return record(x.tape, x.value:cumsum(dim), function(g)
    local n = x.shape[dim > 0 and dim or #x.shape + 1 + dim]
    local backwards = (n - 1) - tensor.arange(0, n - 1)
    give(x, g:index_select(dim, backwards):cumsum(dim):index_select(dim, backwards))
  end)
end

function class.gather(x, dim, ids)
  return record(x.tape, x.value:gather(dim, ids), function(g)
    local none <close> = tensor.zeros(x.shape)
    give(x, none:scatter_add(dim, ids, g))
  end)
end

function class.item(x) return x.value:item() end

-- x:detach() -> its tensor, which is the tape's: gone when the tape is consumed.
function class.detach(x) return x.value end

-- --- products -----------------------------------------------------------------------------------------
-- matmul(a, b) of matrices and batches of matrices; for a linear layer use kv.linear, which is faster.
function M.matmul(a, b)
  local u, v = value(a), value(b)
  local tape = tape_of(a, b)
  if #u.shape < 2 or #v.shape < 2 then error('tape: matmul of a Var needs matrices: two dimensions or more', 0) end
  return record(tape, u:matmul(v), function(g)
    if is(a) then give(a, reduce(g:matmul(v:transpose(-2, -1)), a.shape)) end
    if is(b) then give(b, reduce(u:transpose(-2, -1):matmul(g), b.shape)) end
  end)
end
class.matmul = M.matmul

return M
