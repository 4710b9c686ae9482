---@meta
local kv = {}

---@within kv
--- condition ~= 0 and a or b, for every element; all three broadcast, and each may be a number.
--- Example:
---   kv.where(kv.arange(3):lt(2), 1, 0)  --> int32 {3} {1, 1, 0}
---@param condition Tensor|number
---@param a Tensor|number
---@param b Tensor|number
---@return Tensor t
function kv.where(condition, a, b) end

--- Matrix product: (..., m, k) with (..., k, n) gives (..., m, n). Leading dimensions broadcast; a vector is one row
---
--- on the left and one column on the right. Transposed views are used without copying.
---
--- Errors: inner sizes differ; both shapes are shown.
--- Example:
---   kv.matmul(kv.tensor({ { 1, 2 } }), kv.tensor({ 3, 4 }))  --> float32 {1} {11}
---@param a Tensor
---@param b Tensor
---@return Tensor c
function kv.matmul(a, b) end

--- Rows of weight (vocabulary, width) for int32 ids of any shape, 0-based: (ids..., width).
---
--- Errors: an id outside 0 .. vocabulary - 1.
--- Example:
---   kv.embedding(kv.eye(3), kv.tensor({ 2 }, 'int32'))[1]  --> float32 {3} {0, 0, 1}
---@param weight Tensor
---@param ids Tensor
---@return Tensor rows
function kv.embedding(weight, ids) end

local Tensor = {}

---@within Tensor
--- Matrix product, as kv.matmul(t, b).
--- Example:
---   kv.tensor({ 1, 2 }):matmul(kv.tensor({ 3, 4 })):item()  --> 11.0
---@param b Tensor
---@return Tensor c
function Tensor:matmul(b) end

--- t + x. int32 with int32 stays int32 and must fit, otherwise the result is float32. Shapes broadcast.
--- Example:
---   kv.arange(2):add(1)  --> int32 {2} {1, 2}
---@param x Tensor|number
---@return Tensor y
function Tensor:add(x) end

--- t - x. Shapes broadcast.
--- Example:
---   kv.arange(2):sub(1)  --> int32 {2} {-1, 0}
---@param x Tensor|number
---@return Tensor y
function Tensor:sub(x) end

--- t * x. Shapes broadcast.
--- Example:
---   kv.arange(2):mul(0.5)  --> float32 {2} {0, 0.5}
---@param x Tensor|number
---@return Tensor y
function Tensor:mul(x) end

--- t / x, always float32. Shapes broadcast.
--- Example:
---   kv.arange(2):div(2)  --> float32 {2} {0, 0.5}
---@param x Tensor|number
---@return Tensor y
function Tensor:div(x) end

--- t ^ x, always float32. Shapes broadcast.
--- Example:
---   kv.arange(3):pow(2)  --> float32 {3} {0, 1, 4}
---@param x Tensor|number
---@return Tensor y
function Tensor:pow(x) end

--- The smaller of t and x; NaN on either side is the result. Shapes broadcast.
--- Example:
---   kv.arange(3):minimum(1)  --> int32 {3} {0, 1, 1}
---@param x Tensor|number
---@return Tensor y
function Tensor:minimum(x) end

--- The larger of t and x; NaN on either side is the result. Shapes broadcast.
--- Example:
---   kv.arange(3):maximum(1)  --> int32 {3} {1, 1, 2}
---@param x Tensor|number
---@return Tensor y
function Tensor:maximum(x) end

--- int32 1 where t = x, else 0. Shapes broadcast.
--- Example:
---   kv.arange(3):eq(1)  --> int32 {3} {0, 1, 0}
---@param x Tensor|number
---@return Tensor y
function Tensor:eq(x) end

--- int32 1 where t and x differ, else 0. Shapes broadcast.
--- Example:
---   kv.arange(3):ne(1)  --> int32 {3} {1, 0, 1}
---@param x Tensor|number
---@return Tensor y
function Tensor:ne(x) end

--- int32 1 where t < x, else 0. Shapes broadcast.
--- Example:
---   kv.arange(3):lt(1)  --> int32 {3} {1, 0, 0}
---@param x Tensor|number
---@return Tensor y
function Tensor:lt(x) end

--- int32 1 where t <= x, else 0. Shapes broadcast.
--- Example:
---   kv.arange(3):le(1)  --> int32 {3} {1, 1, 0}
---@param x Tensor|number
---@return Tensor y
function Tensor:le(x) end

--- int32 1 where t > x, else 0. Shapes broadcast.
--- Example:
---   kv.arange(3):gt(1)  --> int32 {3} {0, 0, 1}
---@param x Tensor|number
---@return Tensor y
function Tensor:gt(x) end

--- int32 1 where t >= x, else 0. Shapes broadcast.
--- Example:
---   kv.arange(3):ge(1)  --> int32 {3} {0, 1, 1}
---@param x Tensor|number
---@return Tensor y
function Tensor:ge(x) end

--- Adds x to t, in place.
---
--- Errors: the result would have another shape or type than t.
--- Example:
---   kv.arange(2):add_(1)  --> int32 {2} {1, 2}
---@param x Tensor|number
---@return Tensor t  itself
function Tensor:add_(x) end

--- Takes x off t, in place.
---
--- Errors: the result would have another shape or type than t.
--- Example:
---   kv.arange(2):sub_(1)  --> int32 {2} {-1, 0}
---@param x Tensor|number
---@return Tensor t  itself
function Tensor:sub_(x) end

--- Multiplies t by x, in place.
---
--- Errors: the result would have another shape or type than t.
--- Example:
---   kv.arange(2):mul_(3)  --> int32 {2} {0, 3}
---@param x Tensor|number
---@return Tensor t  itself
function Tensor:mul_(x) end

--- Divides t by x, in place.
---
--- Errors: the result would have another shape or type than t.
--- Example:
---   kv.zeros(1):div_(2)  --> float32 {1} {0}
---@param x Tensor|number
---@return Tensor t  itself
function Tensor:div_(x) end

--- -t, element by element.
--- Example:
---   kv.arange(2):neg()  --> int32 {2} {0, -1}
---@return Tensor y
function Tensor:neg() end

--- Magnitudes, element by element.
--- Example:
---   kv.tensor({ -2 }):abs()  --> float32 {1} {2}
---@return Tensor y
function Tensor:abs() end

--- e^t, element by element.
--- Example:
---   kv.zeros(1):exp()  --> float32 {1} {1}
---@return Tensor y
function Tensor:exp() end

--- Natural logarithms, element by element.
--- Example:
---   kv.tensor({ 1 }):log()  --> float32 {1} {0}
---@return Tensor y
function Tensor:log() end

--- Square roots, element by element.
--- Example:
---   kv.tensor({ 9 }):sqrt()  --> float32 {1} {3}
---@return Tensor y
function Tensor:sqrt() end

--- 1 / sqrt(t), element by element.
--- Example:
---   kv.tensor({ 4 }):rsqrt()  --> float32 {1} {0.5}
---@return Tensor y
function Tensor:rsqrt() end

--- max(0, t), element by element.
--- Example:
---   kv.tensor({ -1, 2 }):relu()  --> float32 {2} {0, 2}
---@return Tensor y
function Tensor:relu() end

--- 1 / (1 + e^-t), element by element.
--- Example:
---   kv.zeros(1):sigmoid()  --> float32 {1} {0.5}
---@return Tensor y
function Tensor:sigmoid() end

--- t sigmoid(t), element by element.
--- Example:
---   kv.zeros(1):silu()  --> float32 {1} {0}
---@return Tensor y
function Tensor:silu() end

--- t Phi(t), with the exact normal distribution, element by element.
--- Example:
---   kv.zeros(1):gelu()  --> float32 {1} {0}
---@return Tensor y
function Tensor:gelu() end

--- Hyperbolic tangents, element by element.
--- Example:
---   kv.zeros(1):tanh()  --> float32 {1} {0}
---@return Tensor y
function Tensor:tanh() end

--- Sum. Added in double precision, in an order that depends on sizes only.
---
--- Without dim over all elements, as a Lua value; with dim a tensor in which that dimension is gone, or 1 with keep.
--- Example:
---   kv.arange(4):sum()  --> 6
---@param dim? integer
---@param keep? boolean
---@return number|Tensor s
function Tensor:sum(dim, keep) end

--- Mean.
---
--- Without dim over all elements, as a Lua value; with dim a tensor in which that dimension is gone, or 1 with keep.
--- Example:
---   kv.arange(4):mean()  --> 1.5
---@param dim? integer
---@param keep? boolean
---@return number|Tensor m
function Tensor:mean(dim, keep) end

--- Variance: mean squared distance from the mean (divided by n, not n - 1).
---
--- Without dim over all elements, as a Lua value; with dim a tensor in which that dimension is gone, or 1 with keep.
--- Example:
---   kv.tensor({ 1, 3 }):var()  --> 1.0
---@param dim? integer
---@param keep? boolean
---@return number|Tensor v
function Tensor:var(dim, keep) end

--- Largest element; NaN when there is one.
---
--- Without dim over all elements, as a Lua value; with dim a tensor in which that dimension is gone, or 1 with keep.
---
--- Errors: no elements.
--- Example:
---   kv.tensor({ 1, 3 }):max()  --> 3.0
---@param dim? integer
---@param keep? boolean
---@return number|Tensor x
function Tensor:max(dim, keep) end

--- Smallest element; NaN when there is one.
---
--- Without dim over all elements, as a Lua value; with dim a tensor in which that dimension is gone, or 1 with keep.
---
--- Errors: no elements.
--- Example:
---   kv.tensor({ 1, 3 }):min()  --> 1.0
---@param dim? integer
---@param keep? boolean
---@return number|Tensor x
function Tensor:min(dim, keep) end

--- True (1 in a tensor) when some element is not 0.
---
--- Without dim over all elements, as a Lua value; with dim a tensor in which that dimension is gone, or 1 with keep.
--- Example:
---   kv.arange(2):any()  --> true
---@param dim? integer
---@param keep? boolean
---@return boolean|Tensor yes
function Tensor:any(dim, keep) end

--- True (1 in a tensor) when no element is 0.
---
--- Without dim over all elements, as a Lua value; with dim a tensor in which that dimension is gone, or 1 with keep.
--- Example:
---   kv.arange(2):all()  --> false
---@param dim? integer
---@param keep? boolean
---@return boolean|Tensor yes
function Tensor:all(dim, keep) end

--- int32 ids (0-based) of the largest elements along a dimension, by default the last; the lower id among equals.
---
--- Errors: no elements.
--- Example:
---   kv.tensor({ 1, 3, 3 }):argmax():item()  --> 1
---@param dim? integer
---@param keep? boolean
---@return Tensor ids
function Tensor:argmax(dim, keep) end

--- int32 ids (0-based) of the smallest elements along a dimension, by default the last; the lower id among equals.
---
--- Errors: no elements.
--- Example:
---   kv.tensor({ 1, 3, 0 }):argmin():item()  --> 2
---@param dim? integer
---@param keep? boolean
---@return Tensor ids
function Tensor:argmin(dim, keep) end

--- e^t / sum e^t along a dimension, by default the last. A row without anything above -inf gives zeros.
--- Example:
---   kv.zeros(2):softmax()  --> float32 {2} {0.5, 0.5}
---@param dim? integer
---@return Tensor y
function Tensor:softmax(dim) end

--- Logarithms of the softmax along a dimension, by default the last.
--- Example:
---   kv.zeros(1):log_softmax()  --> float32 {1} {0}
---@param dim? integer
---@return Tensor y
function Tensor:log_softmax(dim) end

--- log sum e^t along a dimension, by default the last, which disappears.
--- Example:
---   kv.zeros(1):logsumexp():item()  --> 0.0
---@param dim? integer
---@return Tensor y
function Tensor:logsumexp(dim) end

--- Sums of the elements so far along a dimension, by default the last.
--- Example:
---   kv.arange(4):cumsum()  --> int32 {4} {0, 1, 3, 6}
---@param dim? integer
---@return Tensor y
function Tensor:cumsum(dim) end

--- The k largest of each row of the last dimension: int32 ids (0-based) and their scores.
---
--- Equal scores: the lower id. -inf and NaN are never taken; places that stay empty come last, with id -1 and score
--- -inf. Order 'score' (default): best first; 'index': ascending ids.
--- Example:
---   kv.tensor({ 5, 7, 7 }):topk(2)  --> int32 {2} {1, 2}
---@param k integer
---@param order? string
---@return Tensor ids
---@return Tensor scores
function Tensor:topk(k, order) end

--- Elements by ids along a dimension: the result has the shape of ids, and its element (.., j, ..) is
---
--- t (.., ids[.., j, ..], ..). ids are int32 and 0-based; their other sizes are those of t.
---
--- Errors: an id outside the dimension.
--- Example:
---   kv.tensor({ 5, 6, 7 }):gather(1, kv.tensor({ 2, 0 }, 'int32'))  --> float32 {2} {7, 5}
---@param dim integer
---@param ids Tensor
---@return Tensor y
function Tensor:gather(dim, ids) end

--- A copy of t with element (.., ids[.., j, ..], ..) set to source (.., j, ..). Of repeated ids the last one counts.
---
--- Errors: an id outside the dimension.
--- Example:
---   kv.zeros(3):scatter(1, kv.tensor({ 2 }, 'int32'), kv.tensor({ 9 }))  --> float32 {3} {0, 0, 9}
---@param dim integer
---@param ids Tensor
---@param source Tensor
---@return Tensor y
function Tensor:scatter(dim, ids, source) end

--- As scatter, with the source added instead of stored.
---
--- Errors: an id outside the dimension.
--- Example:
---   kv.zeros(2):scatter_add(1, kv.tensor({ 1, 1 }, 'int32'), kv.tensor({ 2, 3 }))  --> float32 {2} {0, 5}
---@param dim integer
---@param ids Tensor
---@param source Tensor
---@return Tensor y
function Tensor:scatter_add(dim, ids, source) end

--- Whole slices of a dimension, in the order of ids (int32, 0-based, one dimension).
---
--- Errors: an id outside the dimension.
--- Example:
---   kv.tensor({ 5, 6 }):index_select(1, kv.tensor({ 1, 1, 0 }, 'int32'))  --> float32 {3} {6, 6, 5}
---@param dim integer
---@param ids Tensor
---@return Tensor y
function Tensor:index_select(dim, ids) end
