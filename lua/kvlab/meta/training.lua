---@meta
local kv = {}
local Tape = {}
local AdamW = {}
local Model = {}
---@within kv

--- An empty tape for reverse-mode differentiation.
---
--- tape:var(t) gives a Var: it has the value (var.value), after tape:backward the gradient (var.grad), and what tensors
--- have as far as it is differentiable: + - * / ^, maximum, minimum, neg, exp, log, sqrt, rsqrt, tanh, abs, relu, sigmoid,
--- silu, gelu, reshape, flatten, squeeze, unsqueeze, slice, select, transpose, permute, expand, contiguous, clone, gather,
--- index_select, matmul, sum, mean, max and min (without a dimension: a Var without dimensions; equal elements share the
--- gradient), cumsum, softmax, log_softmax, logsumexp, shape, size, dtype, item, detach. kv.cat, kv.where, kv.matmul,
--- kv.linear, kv.embedding, kv.rms_norm, kv.layer_norm, kv.hadamard, kv.rope, kv.swiglu, kv.attend, kv.roundtrip and
--- kv.cross_entropy take Vars in place of tensors.
--- Whoever makes a tape closes it or consumes it by backward; then all that it recorded is freed.
--- Example:
---   kv.tape()  --> kvlab.Tape: 0 operations
---@return Tape tape
function kv.tape() end

--- Whether x is a Var of a tape.
--- Example:
---   kv.is_var(kv.tape():var(kv.ones(2)))  --> true
---@param x any
---@return boolean is
function kv.is_var(x) end

--- x times a matrix as checkpoints hold it. x (..., in), w {out, in} -> (..., out).
--- Example:
---   kv.linear(kv.ones(1, 2), kv.tensor { { 1, 2 } }):item()  --> 3.0
---@param x Tensor
---@param w Tensor
---@return Tensor out
function kv.linear(x, w) end

--- silu(gate) * up, in one pass.
--- Example:
---   kv.swiglu(kv.zeros(2), kv.ones(2)):sum()  --> 0.0
---@param gate Tensor
---@param up Tensor
---@return Tensor out
function kv.swiglu(gate, up) end

--- What x becomes when a record stores it: encoded and decoded. The gradient of a Var goes straight through.
--- Example:
---   kv.roundtrip(kv.record_named('bf16'):plan { channels = 2 }, kv.ones(1, 2)):sum()  --> 2.0
---@param plan Plan
---@param x Tensor
---@return Tensor out
function kv.roundtrip(plan, x) end

--- The sum of cross-entropies of rows of logits {N, V} over those whose label is not -1, divided by `count`.
---
--- Errors: labels that are not int32 {N} or not ids.
--- Example:
---   ('%.4f'):format(kv.cross_entropy(kv.zeros(1, 4), kv.tensor({ 2 }, 'int32'), 1):item())  --> 1.3863
---@param logits Tensor
---@param labels Tensor
---@param count integer
---@return Tensor loss  without dimensions
function kv.cross_entropy(logits, labels, count) end

--- AdamW for a model, or for tensors by name. Matrices decay, vectors do not.
---
--- Options:
---   lr       1e-3; times schedule(step), where step is 1 for the first
---   beta1, beta2, eps, decay   0.9, 0.95, 1e-8, 0.1
---   clip     1: the largest global norm of the gradients; 0: any
---   schedule a function such as kv.schedule.cosine gives
--- Errors: an option out of range. Source: Loshchilov, Hutter, Decoupled weight decay regularization, algorithm 2.
--- Example:
---   kv.adamw({ w = kv.ones(2, 2) }, { lr = 0.1 })  --> kvlab.AdamW: 1 parameters, 0 steps
---@param parameters Model|table
---@param options? table
---@return AdamW optimiser
function kv.adamw(parameters, options) end

--- Keeps freed memory for this process instead of giving it back to the system. A program that trains calls it once: its
--- steps take the same memory again and again, and become up to twice as fast. With glibc; elsewhere nothing happens.
--- Example:
---   kv.keep_memory()  --> nil
---@return nil
function kv.keep_memory() end

--- What operations on Vars record, so that gradients can be computed backwards.
---@within Tape

--- A Var of a tensor, which stays the caller's, like its gradient.
---
--- Errors: t is not float32; grad is not of its shape.
--- Example:
---   kv.tape():var(kv.ones(2)) * 3  --> kvlab.Var {2}
---@param t Tensor
---@param grad? Tensor  the gradient is added to it
---@return Var var
function Tape:var(t, grad) end

--- An operation with a backward of one's own.
---
--- Options: inputs, a list of Vars; value, the tensor that comes out, which is the tape's from now on; backward, a function
--- from its gradient to a gradient for each input (nil: none). Saved tensors are what the function refers to.
--- Errors: an input of another tape; later, a gradient of another shape than its input.
--- Example:
---   kv.tape():op { inputs = {}, value = kv.ones(2), backward = function() end }  --> kvlab.Var {2}
---@param options table
---@return Var out
function Tape:op(options) end

--- Adds the gradients of factor * loss to all Vars of Tape:var, and consumes the tape: what it recorded is freed.
---
--- Errors: loss has more than one element; the tape is consumed already.
--- Example:
---   tape = kv.tape()
---   x = tape:var(kv.ones(3))
---   tape:backward((x * x):sum())
---   x.grad  --> float32 {3} {2, 2, 2}
---@param loss Var
---@param factor? number  1
---@return nil
function Tape:backward(loss, factor) end

--- Frees what the tape recorded, without gradients. Closing a tape does the same.
--- Example:
---   kv.tape():free()  --> nil
---@return nil
function Tape:free() end

--- An optimizer: decoupled weight decay, clipping, and a state for every parameter.
---@within AdamW

--- What a checkpoint needs beside the parameters: the moments, and how often each parameter was stepped.
--- Example:
---   select(2, kv.adamw({ w = kv.ones(2) }):state()).steps  --> 0
---@return table tensors  'm.NAME' and 'v.NAME', which stay the optimiser's
---@return table data  plain: { steps =, taken = { [name] = steps } }
function AdamW:state() end

--- Goes on from what AdamW:state gave, with the tensors as loaded from a file; they are the optimiser's from now on.
---
--- Errors: moments that are missing or of another shape than their parameter.
---@param tensors table  may hold others too
---@param data table
---@return nil
function AdamW:restore(tensors, data) end

--- One step. The gradients are used up: freed, and taken out of the table.
---
--- When their norm is not finite, no parameter changes.
--- Errors: the gradient of no parameter, or of another shape.
--- Example:
---   kv.adamw({ w = kv.ones(2) }):step { w = kv.tensor { 3, 4 } }  --> 5.0
---@param gradients table  by name of the parameter
---@return number norm  of all gradients, before clipping
---@return number lr
function AdamW:step(gradients) end

---@within kv.schedule

--- The learning rate stays, after a linear warm-up.
--- Example:
---   kv.schedule.constant { warmup = 4 }(1)  --> 0.25
---@param options? table  { warmup = steps (0) }
---@return function factor  from the step, 1 for the first, to a factor
function kv.schedule.constant(options) end

--- From 1 down to `final` in a straight line at `steps`, after a linear warm-up.
--- Example:
---   kv.schedule.linear { steps = 10 }(5)  --> 0.5
---@param options table  { warmup = (0), steps =, final = (0) }
---@return function factor
function kv.schedule.linear(options) end

--- From 1 down to `final` along half a cosine at `steps`, after a linear warm-up.
--- Example:
---   kv.schedule.cosine { steps = 10, final = 0.1 }(10)  --> 0.1
---@param options table  { warmup = (0), steps =, final = (0) }
---@return function factor
function kv.schedule.cosine(options) end

---@within Model

--- The loss of a batch and its gradients: mean cross-entropy over the targets that are not -1. Only rows with a target pay
--- for the head.
---
--- A batch is what a task gives: tokens and targets, int32 {B, T}. Options:
---   gradients  a table to add to (accumulation), or false: only the value
---   scale      1: factor of the gradients, such as 1 / accumulated batches
---   train      which parameters: parts of names, or a function of the name; missing: all
---   indexer    { select =, kl =, dense =, coefficient =, metrics =, seed = }: select is who selects, 'learned', 'oracle'
---              (the most attention mass), 'random', 'recent'; kl the set on which indexers learn from attention mass,
---              'selected', 'visible', 'pool', missing: they do not learn; dense = true lets attention read all entries
---              (warm-up); coefficient (1) of their losses; metrics = true adds `indexers` to the third result
--- The third result: loss, kl (by layer) and indexers (by layer: recall, oracle and their gap in attention mass, active,
--- overlap with the selection before).
--- Errors: no target; ids that the vocabulary does not have; unknown options; interrupted. Source: DeepSeek-V3.2 report
--- 2.1.1 for the indexer.
--- Example:
---   #select(2, kv.model('mha', { hidden_size = 8, num_attention_heads = 2, head_dim = 4, vocab_size = 9 }):loss { tokens = { 1, 2 }, targets = { 2, -1 } })['lm_head.weight'].shape  --> 2
---@param batch table
---@param options? table
---@return number loss
---@return table? gradients  by name of the parameter
---@return table more
function Model:loss(batch, options) end
