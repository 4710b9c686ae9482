---@meta
local kv = {}

---@within kv
--- A tensor from numbers: a number (no dimensions), nested tables of one shape, or a tensor, which is copied.
---
--- Types are float32 (to compute with) and int32 (ids, masks). The values of tables are copied.
---
--- Errors: tables of unequal length (the place is named), what int32 cannot hold.
--- Example:
---   kv.tensor({ 1, 2.5 })  --> float32 {2} {1, 2.5}
---   kv.tensor({ 1, 2 }, 'int32')  --> int32 {2} {1, 2}
---@param value number|table|Tensor
---@param dtype? string  'float32' (default) or 'int32'
---@return Tensor t
function kv.tensor(value, dtype) end

--- Zeros of a shape, given as integers or as one table of them, with the type behind.
---
--- A size may be 0; there are at most 8.
---
--- Errors: more elements than the memory limit allows; the shape and the figures are shown.
--- Example:
---   kv.zeros(2, 'int32')  --> int32 {2} {0, 0}
---@param ... integer|table|string  sizes, then 'float32' (default) or 'int32'
---@return Tensor t
function kv.zeros(...) end

--- Ones; the same as kv.zeros(...):fill_(1).
--- Example:
---   kv.ones(2)  --> float32 {2} {1, 1}
---@param ... integer|table|string  sizes, then 'float32' (default) or 'int32'
---@return Tensor t
function kv.ones(...) end

--- A tensor with one value everywhere.
--- Example:
---   kv.filled({ 3 }, 1)  --> float32 {3} {1, 1, 1}
---@param shape table
---@param value number
---@param dtype? string
---@return Tensor t
function kv.filled(shape, value, dtype) end

--- Equal steps: arange(n) is 0 .. n-1, arange(first, last, step) goes as a for loop of Lua, last included.
---
--- int32 when all arguments are integers, else float32.
--- Example:
---   kv.arange(3)  --> int32 {3} {0, 1, 2}
---   kv.arange(1, 2, 0.5)  --> float32 {3} {1, 1.5, 2}
---@param first number
---@param last? number
---@param step? number
---@return Tensor t
function kv.arange(first, last, step) end

--- The identity matrix (n, n).
--- Example:
---   kv.eye(2):sum()  --> 2.0
---@param n integer
---@return Tensor t
function kv.eye(n) end

--- An int32 mask (rows, cols): 1 where column <= row + diagonal, else 0. With diagonal 0, what a causal query sees.
--- Example:
---   kv.tril(3)[2]  --> int32 {3} {1, 1, 0}
---@param rows integer
---@param cols? integer  default: rows
---@param diagonal? integer  default: 0
---@return Tensor mask
function kv.tril(rows, cols, diagonal) end

--- Joins tensors along a dimension they already have; all other sizes are equal.
--- Example:
---   kv.cat({ kv.arange(2), kv.arange(1) })  --> int32 {3} {0, 1, 0}
---@param list Tensor[]
---@param dim? integer  default: 1
---@return Tensor t
function kv.cat(list, dim) end

--- Joins tensors of one shape along a new dimension.
--- Example:
---   kv.stack({ kv.zeros(3), kv.zeros(3) }).shape[1]  --> 2
---@param list Tensor[]
---@param dim? integer  place of the new dimension, default: 1
---@return Tensor t
function kv.stack(list, dim) end

--- True when x is a Tensor (freed or not).
--- Example:
---   kv.is_tensor(3)  --> false
---@param x any
---@return boolean yes
function kv.is_tensor(x) end

--- Random numbers that depend on the seed and the place of an element, not on threads or sizes.
---
--- Keys: the sizes; seed (an integer, needed: give every tensor its own); dist = 'normal' (default; mean, std),
--- 'uniform' (low <= x < high, default 0 and 1) or 'integer' (low <= x <= high, int32).
---
--- Source: Philox 4x32-10, Salmon et al., SC 2011.
---
--- Errors: a missing seed, unknown keys (with a suggestion).
--- Example:
---   kv.random({ 2, 3, seed = 1 }).size  --> 6
---   kv.random({ 4, seed = 1, dist = 'integer', low = 0, high = 9 }):max() <= 9  --> true
---@param opts table
---@return Tensor t
function kv.random(opts) end

--- int32 ids 0 .. n-1 in random order.
--- Example:
---   kv.permutation(4, 1):sum()  --> 6
---@param n integer
---@param seed integer
---@return Tensor ids
function kv.permutation(n, seed) end

local Tensor = {}

--- A dense array of float32 or int32 with up to eight dimensions; docs/tensors.md.
---@within Tensor
--- A view of a range of one dimension: first .. last, both included, every step-th. Negative counts from the end.
---
--- last = first - 1 gives an empty view. The view shares the storage: writing to it writes to t.
--- Example:
---   kv.arange(5):slice(1, 2, -1, 2)  --> int32 {2} {1, 3}
---@param dim integer
---@param first? integer  default: 1
---@param last? integer  default: the end
---@param step? integer  default: 1
---@return Tensor view
function Tensor:slice(dim, first, last, step) end

--- A view of one index of a dimension, which disappears. t[i] is t:select(1, i).
--- Example:
---   kv.eye(2):select(2, -1)  --> float32 {2} {0, 1}
---@param dim integer
---@param index integer
---@return Tensor view
function Tensor:select(dim, index) end

--- A view with two dimensions exchanged, the last two unless told otherwise.
--- Example:
---   kv.zeros(2, 3):transpose().shape[1]  --> 3
---@param a? integer
---@param b? integer
---@return Tensor view
function Tensor:transpose(a, b) end

--- A view with the dimensions in another order: dimension i of the result is dimension dims[i] of t.
--- Example:
---   kv.zeros(2, 3, 4):permute(3, 1, 2).shape[1]  --> 4
---@param ... integer|table  all dimensions
---@return Tensor view
function Tensor:permute(...) end

--- A view that repeats dimensions of size 1 without storing them, and adds dimensions in front. -1 keeps a size.
---
--- Such a view cannot be written.
--- Example:
---   kv.tensor({ 7 }):expand(3)  --> float32 {3} {7, 7, 7}
---@param ... integer|table  sizes
---@return Tensor view
function Tensor:expand(...) end

--- The same elements in another shape; one size may be -1. A view when the strides allow it, otherwise a copy.
---
--- t:shares(result) tells which.
---
--- Errors: the number of elements differs; both shapes are shown.
--- Example:
---   kv.arange(6):reshape(2, -1).shape[2]  --> 3
---@param ... integer|table  sizes
---@return Tensor t
function Tensor:reshape(...) end

--- All elements in one dimension, as reshape(-1).
--- Example:
---   kv.eye(2):flatten()  --> float32 {4} {1, 0, 0, 1}
---@return Tensor t
function Tensor:flatten() end

--- A view without a dimension of size 1.
--- Example:
---   kv.zeros(1, 3):squeeze(1).ndim  --> 1
---@param dim integer
---@return Tensor view
function Tensor:squeeze(dim) end

--- A view with a new dimension of size 1 at that place.
--- Example:
---   kv.zeros(3):unsqueeze(-1).shape[2]  --> 1
---@param dim integer
---@return Tensor view
function Tensor:unsqueeze(dim) end

--- The same values without gaps: t itself as a view when it is so already, else a copy.
--- Example:
---   kv.eye(2):transpose():contiguous():is_contiguous()  --> true
---@return Tensor t
function Tensor:contiguous() end

--- A copy with a storage of its own.
--- Example:
---   kv.eye(2):clone():shares(kv.eye(2))  --> false
---@return Tensor t
function Tensor:clone() end

--- The values as 'float32' or 'int32' (fractions are cut). A view when the type is right already.
---
--- Errors: NaN, inf and what int32 cannot hold.
--- Example:
---   kv.tensor({ 2.7 }):to('int32')  --> int32 {1} {2}
---@param dtype string
---@return Tensor t
function Tensor:to(dtype) end

--- One element, by its 1-based indices; negative counts from the end. int32 gives an integer, float32 a float.
--- Example:
---   kv.eye(2):get(2, -1)  --> 1.0
---@param ... integer  one for each dimension
---@return number x
function Tensor:get(...) end

--- Writes one element. For rows, t[i] = number or tensor.
--- Example:
---   kv.zeros(2):set(1, 5)  --> float32 {2} {5, 0}
---@param ... number  indices, then the value
---@return Tensor t  itself
function Tensor:set(...) end

--- The only element of a tensor that has just one.
---
--- Errors: more elements or none.
--- Example:
---   kv.tensor(2.5):item()  --> 2.5
---@return number x
function Tensor:item() end

--- Nested tables of all elements; a number when there are no dimensions.
---
--- Errors: more elements than a table should have.
--- Example:
---   #kv.zeros(3, 2):totable()  --> 3
---@return table|number values
function Tensor:totable() end

--- For loops: for i, row in t:rows() do ... end. Rows are views, or numbers when t has one dimension.
--- Example:
---   kv.zeros(3):rows() ~= nil  --> true
---@return function next
---@return Tensor t
---@return integer start
function Tensor:rows() end

--- Sets every element to a number, in place.
---
--- Errors: t repeats elements (expand).
--- Example:
---   kv.zeros(2):fill_(3)  --> float32 {2} {3, 3}
---@param value number
---@return Tensor t  itself
function Tensor:fill_(value) end

--- Copies a tensor or a number over t, in place; it broadcasts to the shape of t and may overlap it.
--- Example:
---   kv.zeros(2):copy_(kv.tensor({ 1, 2 }))  --> float32 {2} {1, 2}
---@param source Tensor|number
---@return Tensor t  itself
function Tensor:copy_(source) end

--- True when type, shape and all values are equal; NaN equals nothing. == on tensors asks for the same object.
--- Example:
---   kv.arange(2):equal(kv.arange(2))  --> true
---@param other Tensor
---@return boolean yes
function Tensor:equal(other) end

--- True when both look at one storage.
--- Example:
---   kv.eye(2):shares(kv.eye(2))  --> false
---@param other Tensor
---@return boolean yes
function Tensor:shares(other) end

--- True when the elements lie in row-major order without gaps.
--- Example:
---   kv.zeros(2, 3):transpose():is_contiguous()  --> false
---@return boolean yes
function Tensor:is_contiguous() end

--- Drops the tensor now instead of at the next collection; views of it stay. Using it afterwards is an error.
--- Example:
---   kv.zeros(2):free()  --> nil
---@return nil nothing
function Tensor:free() end

--- The same as free: for <close> variables and by habit.
--- Example:
---   kv.zeros(2):close()  --> nil
---@return nil nothing
function Tensor:close() end
