-- inspect.lua: the matrices inside a layer's attention, which the kernels never make as a whole: scores, mask,
-- probabilities, scores of the indexer, and the weights with which tokens are pooled into an entry.
--
-- Nothing is computed by a second formula. The layer runs as in Attention:full up to the call of kv.attend, and that
-- call is asked again with other numbers: with the unit vectors as values its output is the probabilities; with queries
-- of zero as well, what is above zero is visible. A compressor is linear in its candidates, so candidates that are 1 in
-- one row and 0 elsewhere make it return the weight of that row.
local attention = require 'kvlab.attention'
local cells = require 'kvlab.cell'
local ops = require 'kvlab.ops'
local opts = require 'kvlab.options'
local tensor = require 'kvlab.tensor'

local inspect = {}

local class = attention.class

local BLOCK <const> = 1 << 22 -- numbers in the unit vectors of one call

-- What the layer asks kv.attend for x, with keys [B, S, kv heads, width] in every source, and the rows of each.
local function asked(A, x)
  local own, shared = A:alone(x)
  if A.shape.owns then A:store(A:project_owner(x), 0, own) end
  local p = A:project(x, 0)
  if A.shape.topk then A:select(p, 0, own, shared) end
  local call, rows = A:attention_call(p, 0, A:sources(p, 0, own, shared)), 0
  for i, source in ipairs(call.sources) do
    local keys = source.key_rows
    if not keys then
      local part = source.rows:slice(3, source.key[1], source.key[2]):contiguous()
      keys = part:reshape(part.shape[1], part.shape[2], source.kv_heads, -1)
    end
    call.sources[i] = { key_rows = keys, pos0 = source.pos0, see = source.see, list = source.list, ratio = source.ratio,
      window = source.window }
    rows = rows + keys.shape[2]
  end
  return call, rows
end

-- attend with the unit vectors as values -> [B, T, H, rows], in parts of as many columns as are worth their memory.
local function weights_of(call, rows, q, sink)
  local widest = 1
  for _, source in ipairs(call.sources) do
    local B, S, heads = table.unpack(source.key_rows.shape)
    widest = math.max(widest, B * S * heads)
  end
  local step, parts = math.max(1, BLOCK // widest), {}
  local unit = tensor.eye(rows)
  for first = 1, rows, step do
    local last, before, sources = math.min(rows, first + step - 1), 0, {}
    for i, source in ipairs(call.sources) do
      local B, S, heads = table.unpack(source.key_rows.shape)
      local twin = {}
      for name, value in pairs(source) do twin[name] = value end
      twin.value_rows = unit:slice(1, before + 1, before + S):slice(2, first, last):reshape(1, S, 1, -1)
        :expand(B, S, heads, last - first + 1):contiguous()
      sources[i], before = twin, before + S
    end
    parts[#parts + 1] = ops.attend { q = q, sources = sources, sink = sink, scale = call.scale, pos0 = call.pos0 }
  end
  return tensor.cat(parts, 4)
end

-- The labels of queries and of rows: a position, or e and the number of an entry that several tokens share.
local function labels_of(A, T, call)
  local labels = { rows = {}, columns = {} }
  for t = 1, T do labels.rows[t] = tostring(t - 1) end
  for i, source in ipairs(call.sources) do
    local entries = A.shape.owner and i == #call.sources and (#call.sources > 1 or A.shape.ratio > 1)
    for at = 0, source.key_rows.shape[2] - 1 do
      labels.columns[#labels.columns + 1] = (entries and 'e' or '') .. at
    end
  end
  return labels
end

local function by_head(x) return x:permute(1, 3, 2, 4):contiguous() end

-- 0 where the query sees the row, -inf elsewhere: [B, T, rows].
local function mask_of(call, rows)
  local seen = weights_of(call, rows, call.q * 0, nil):slice(3, 1, 1)
  return tensor.where(seen:gt(0), 0.0, -math.huge):reshape(seen.shape[1], seen.shape[2], rows)
end

-- A:probabilities(x) -> [B, H, T, rows], labels
function class:probabilities(x)
  local call, rows = asked(self, x)
  return by_head(weights_of(call, rows, call.q, call.sink)), labels_of(self, x.shape[2], call)
end

-- A:mask(x) -> [B, T, rows], labels
function class:mask(x)
  local call, rows = asked(self, x)
  return mask_of(call, rows), labels_of(self, x.shape[2], call)
end

-- A:scores(x) -> [B, H, T, rows], labels
function class:scores(x)
  local call, rows = asked(self, x)
  local q = call.q
  local B, T, H = q.shape[1], q.shape[2], q.shape[3]
  local parts = {}
  for i, source in ipairs(call.sources) do
    local S, heads, width = source.key_rows.shape[2], source.key_rows.shape[3], source.key_rows.shape[4]
    local keys = source.key_rows:permute(1, 3, 4, 2):contiguous()                 -- [B, kv heads, width, S]
      :reshape(B, heads, 1, width, S):expand(B, heads, H // heads, width, S):contiguous():reshape(B, H, width, S)
    parts[i] = ops.matmul(by_head(q), keys)
  end
  local scores = tensor.cat(parts, 4) * call.scale
  return scores + mask_of(call, rows):unsqueeze(2), labels_of(self, T, call)
end

-- A:index_scores(x) -> [B, T, entries], labels
function class:index_scores(x)
  local own, shared = self:alone(x)
  if not (self.shape.owns and self.shape.topk) then
    error(('index_scores: %s has no indexer; expected a layer with select = topk'):format(tostring(self.shape.layer)),
      0)
  end
  self:store(self:project_owner(x), 0, own)
  local scores = self:select(self:project(x, 0), 0, own, shared, true).scores
  if not scores then
    error(('index_scores: %d tokens complete no entry of %d'):format(x.shape[2], self.shape.ratio), 0)
  end
  local labels = { rows = {}, columns = {} }
  for t = 1, scores.shape[2] do labels.rows[t] = tostring(t - 1) end
  for at = 1, scores.shape[3] do labels.columns[at] = (self.shape.ratio > 1 and 'e' or '') .. at - 1 end
  return scores, labels
end

-- Candidates that are 1 in the rows of tokens at place `at` of their block, in one half of the columns when there are
-- two of them.
local function unit_rows(gate, ratio, at, half, halves)
  local B, T, columns = gate.shape[1], gate.shape[2], gate.shape[3]
  local on = {}
  for t = 1, T do on[t] = (t - 1) % ratio == at and 1 or 0 end
  local part = tensor.tensor(on):reshape(1, T, 1):expand(B, T, columns // halves):contiguous()
  if halves == 1 then return part end
  local none = part * 0
  return tensor.cat(half == 1 and { part, none } or { none, part }, 3)
end

local POOLED = { 'entry', 'index' }

-- A:pooling(x [, 'entry' | 'index']) -> [B, entries, rows, channels], labels
function class:pooling(x, which)
  local s, l = self.shape, self.shape.layer
  self:alone(x)
  which = opts.word(which or 'entry', POOLED, 'pooling')
  local name = which == 'index' and 'index_compressor' or 'compressor'
  local p = s.owns and self:project_owner(x) or {}
  local gate = which == 'index' and p.index_gate or which == 'entry' and p.gate or nil
  if not gate then
    error(('pooling: %s has no compressor that weighs tokens%s; expected a ratio of 2 or more'):format(tostring(l),
      which == 'index' and ' for its index keys' or ''), 0)
  end
  if x.shape[2] < s.ratio then
    error(('pooling: %d tokens complete no entry of %d'):format(x.shape[2], s.ratio), 0)
  end
  local halves = l.overlap and 2 or 1
  local rows, labels = {}, { rows = {}, columns = {} }
  for half = 1, halves do
    for at = 0, s.ratio - 1 do
      local compressor = cells.of_tensors(self, x.shape[1])[name]
      rows[#rows + 1] = compressor:push(unit_rows(gate, s.ratio, at, half, halves), gate)
      labels.rows[#rows] = tostring(half < halves and at - s.ratio or at)
    end
  end
  local weights = tensor.stack(rows, 3)
  for c = 1, weights.shape[4] do labels.columns[c] = tostring(c - 1) end
  return weights, labels
end

return inspect
