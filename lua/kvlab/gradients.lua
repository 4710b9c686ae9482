-- gradients.lua: what models are made of, on Vars (kvlab.tape): the forward by the kernel, and a backward by the
-- kernel of core.grad that belongs to it. kvlab.ops decides whether a call comes here.
--
-- Not differentiated: selections (ids have no gradient). Straight through: quantisers. The indexer learns only from
-- index_loss (semantics: DeepSeek-V3.2 report 2.1.1): its inputs are detached where they are projected
-- (kvlab.attention).
local core = require 'kvlab.core'
local kernels = require 'kvlab.kernels'
local tape = require 'kvlab.tape'
local tensor = require 'kvlab.tensor'

local G = {}

local buffer, give, is, record, tape_of, value = tape.buffer, tape.give, tape.is, tape.record, tape.tape_of, tape.value

-- --- layers -------------------------------------------------------------------------------------------
-- linear(x, w): x (..., in) times w [out, in].
function G.linear(x, w)
  local u, v = value(x), value(w)
  return record(tape_of(x, w), u:matmul(v:transpose(1, 2)), function(g)
    if is(x) then
      if x.grad then core.grad.input(g, v, x.grad) else give(x, g:matmul(v)) end
    end
    if is(w) then core.grad.weight(g, u, buffer(w)) end
  end)
end

function G.embedding(w, ids)
  return record(w.tape, tensor.embedding(w.value, ids), function(g) core.grad.embedding(g, ids, buffer(w)) end)
end

function G.rms_norm(x, weight, eps)
  local u, v = value(x), value(weight)
  eps = eps or 1e-6
  return record(tape_of(x, weight), kernels.rms_norm(u, v, eps), function(g)
    core.grad.rms_norm(g, u, v, eps, buffer(x), buffer(weight))
  end)
end

function G.layer_norm(x, weight, bias, eps)
  local u, v = value(x), value(weight)
  eps = eps or 1e-6
  return record(tape_of(x, weight, bias), kernels.layer_norm(u, v, value(bias), eps), function(g)
    core.grad.layer_norm(g, u, v, eps, buffer(x), buffer(weight), buffer(bias))
  end)
end

-- The rotation is its own adjoint.
function G.hadamard(x)
  return record(x.tape, kernels.hadamard(x.value), function(g) give(x, kernels.hadamard(g)) end)
end

-- The gradient of a rotation turns back.
function G.rope(x, freqs, o)
  local back = {}
  for name, setting in pairs(o or {}) do back[name] = setting end
  back.inverse = not back.inverse
  return record(x.tape, kernels.rope(x.value, freqs, o), function(g) give(x, kernels.rope(g, freqs, back)) end)
end

function G.swiglu(gate, up)
  local u, v = value(gate), value(up)
  return record(tape_of(gate, up), core.grad.swiglu(u, v), function(g)
    give(up, core.grad.swiglu_grad(g, u, v))
    give(gate, g:contiguous()) -- g has become the gradient of gate
  end)
end

-- roundtrip(plan, x): a record's decode of its encode, straight through.
function G.roundtrip(plan, x)
  return record(x.tape, plan:roundtrip(x.value), function(g) give(x, g:clone()) end)
end

-- --- compressors --------------------------------------------------------------------------------------
-- A compressor for whole sequences from position 0, each of which is pushed once.
local Compressor = {}
Compressor.__index = Compressor

function G.compressor(o) return setmetatable({ o = o }, Compressor) end

function Compressor:push(c, z)
  local o = self.o
  if o.ratio == 1 and not o.overlap and not z and not o.bias then return c end -- an entry is its token
  local u, v, bias = value(c), value(z), value(o.bias)
  local state = kernels.compressor { ratio = o.ratio, width = o.width, overlap = o.overlap, bias = bias,
    batch = o.batch }
  local out = state:push(u, v)
  state:free()
  local own = tape_of(c, z, o.bias)
  if not own then return out end
  return record(own, out, function(g)
    if g.size > 0 then
      core.grad.compress(g, o.ratio, o.overlap, bias, u, v or tensor.zeros(u.shape), buffer(c), buffer(z),
        buffer(o.bias))
    end
  end)
end

-- --- attention ----------------------------------------------------------------------------------------
local ROWS = { 'rows', 'key_rows', 'value_rows' }

-- plain(o) -> the same call to attend on tensors.
function G.plain(o)
  local call = {}
  for name, setting in pairs(o) do call[name] = value(setting) end
  call.sources = {}
  for i, source in ipairs(o.sources) do
    local twin = {}
    for name, setting in pairs(source) do twin[name] = value(setting) end
    call.sources[i] = twin
  end
  return call
end

-- vars(o) -> the tape of an attend call, or nil.
function G.tape_of_attend(o)
  local found = tape_of(o.q, o.sink)
  for _, source in ipairs(o.sources) do
    found = found or tape_of(source.rows, source.key_rows, source.value_rows)
  end
  return found
end

-- attend(o, own) -> out, lse; own = G.tape_of_attend(o). lse is the tape's.
function G.attend(o, own)
  local call, vars = G.plain(o), {}
  for i, source in ipairs(o.sources) do
    vars[i] = {}
    for _, name in ipairs(ROWS) do vars[i][name] = source[name] end
  end
  local q, sink = o.q, o.sink
  call.lse = true
  local out, lse = kernels.attend(call)
  return record(own, out, function(g)
    for i, source in ipairs(call.sources) do
      for _, name in ipairs(ROWS) do source['d_' .. name] = buffer(vars[i][name]) end
    end
    core.grad.attend(g, out, lse, call.q, call.sources, call.sink, call.scale or 1, call.pos0 or 0, buffer(q),
      buffer(sink))
  end, { lse }), lse
end

-- --- losses -------------------------------------------------------------------------------------------
-- head_loss(x [N, D], w [V, D], labels {N}, count) -> the sum of cross-entropies over the rows that have a label,
-- by count, and the loss of each row. The gradients come from the same pass, so they wait for the factor.
function G.head_loss(x, w, labels, count)
  local u, v = value(x), value(w)
  local own = tape_of(x, w)
  local d_x = is(x) and tensor.zeros(x.shape) or nil
  local d_w = is(w) and tensor.zeros(w.shape) or nil
  local losses = core.grad.head_loss(u, v, labels, 1 / count, d_x, d_w)
  local mean = losses:sum(1):div_(count)
  if not own then return mean, losses end
  return record(own, mean, function(g)
    local factor = g:item()
    for _, pair in ipairs { { x, d_x }, { w, d_w } } do
      if pair[2] then
        if factor ~= 1 then pair[2]:mul_(factor) end
        give(pair[1], pair[2])
      end
    end
  end, { losses }), losses
end

-- cross_entropy(logits [N, V], labels {N}, count): the same from logits.
function G.cross_entropy(logits, labels, count)
  local losses, d = core.grad.cross_entropy(value(logits), labels, 1 / count)
  local mean = losses:sum(1):div_(count)
  losses:free()
  if not is(logits) then
    d:free()
    return mean
  end
  return record(logits.tape, mean, function(g) give(logits, d * g:item()) end, { d })
end

-- index_loss { q, w, keys, pos0, ratio, set, target } -> the mean of KL(target || softmax(scores)) on the set (nil: all
-- visible entries) over the queries that see an entry; gradients for q, w and keys.
function G.index_loss(o)
  local B, T = o.q.shape[1], o.q.shape[2]
  local count = B * math.max(1, T - math.max(0, o.ratio - 1 - o.pos0))
  local own = tape_of(o.q, o.w, o.keys)
  local parts = {}
  for i, x in ipairs { o.q, o.w, o.keys } do parts[i] = { x, is(x) and tensor.zeros(x.shape) or nil } end
  local losses = core.grad.index(value(o.q), value(o.w), value(o.keys), o.pos0, o.ratio, o.set, o.target, 1 / count,
    parts[1][2], parts[2][2], parts[3][2])
  local flat = losses:reshape(-1)
  local mean = flat:sum(1):div_(count)
  flat:free()
  losses:free()
  if not own then return mean end
  return record(own, mean, function(g)
    local factor = g:item()
    for _, pair in ipairs(parts) do
      if pair[2] then
        if factor ~= 1 then pair[2]:mul_(factor) end
        give(pair[1], pair[2])
      end
    end
  end)
end

return G
