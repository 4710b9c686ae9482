-- trace.lua: one token is decoded while somebody looks on: which entries each layer could read, which it scored and
-- selected, and which bytes were read for that; and what a prefill evaluated.
--
-- The sets come from what the layers hand to each other and to the kernels in that step (a study, see kvlab.attention),
-- the bytes from the counters of the pools before and after each layer. Nothing here knows a formula for either; what
-- kvlab.count computes stands beside them.
local count = require 'kvlab.count'
local exact = require 'kvlab.exact'
local layout = require 'kvlab.layout'
local measure = require 'kvlab.measure'
local model = require 'kvlab.model'
local opts = require 'kvlab.options'
local tensor = require 'kvlab.tensor'

local trace = {}

local class = {}
local meta = { __index = class, __name = 'kvlab.Trace' }
trace.class = class

local SMALL <const> = 1 << 24 -- weights of a model that is made for a picture

-- --- what is looked at --------------------------------------------------------------------------------------------

-- The model that is run, the count beside it, and `borrowed`: are the widths those of v4.1-flash? A layout gets random
-- weights when they are few, and stand-ins when not (kvlab.measure), unless `all` of a layer has to run.
local function subject(what, o, where, all)
  if model.is(what) then
    if o.widths then error(where .. ': widths belong to a layout; the model has its own', 0) end
    return what, what.layout:labelled { widths = what.widths }
  end
  local widths, borrowed = count.model_widths(what, o.widths)
  local L = what:labelled { widths = widths }
  local options = { seed = o.seed, hidden_only = not o.tokens, ffn = not all and 0 or nil }
  if not widths.hidden_size then widths.hidden_size = 1 end -- rows and counts do not depend on it
  local size = model.size(L, widths, options)
  if size <= SMALL then return model.new(L, widths, options), L, borrowed end
  if o.tokens or all then
    error(('%s: the model has %.0f million weights, at most %.0f are made for this; give smaller widths (hidden_size, '
      .. 'num_attention_heads, vocab_size, ...) or a model'):format(where, size / 1e6, SMALL / 1e6), 0)
  end
  return nil, L, borrowed
end

-- The inputs of a model: embeddings of the tokens, or random ones.
local function inputs_of(m, o, n)
  if o.tokens then return m:embed(m:tokens(o.tokens), 0) end
  if m:weight('embed.weight') or m:weight('model.embed_tokens.weight') then
    return m:embed(tensor.random { 1, n, dist = 'integer', low = 0, high = m.widths.vocab_size - 1,
      seed = o.seed or 1 }, 0)
  end
  return tensor.random { 1, n, m.widths.hidden_size, seed = o.seed or 1 }
end

local function length_of(tokens, where)
  local n = tensor.is_tensor(tokens) and tokens.size or type(tokens) == 'table' and #tokens or 0
  if n == 0 then error(where .. ': tokens: expected a list of one or more ids, or a tensor of them', 0) end
  return n
end

-- --- looking on ---------------------------------------------------------------------------------------------------

-- 0, 1, ..., n - 1. Layers that see as many share the list.
local function upto(watch, n)
  local list = watch.lists[n]
  if not list then
    list = {}
    for at = 1, n do list[at] = at - 1 end
    watch.lists[n] = list
  end
  return list
end

-- The ids of the last query in an int32 list [1, T, k], without -1.
local function ids_of(list)
  local out = {}
  for _, id in ipairs(list:select(2, -1):flatten():totable()) do
    if id >= 0 then out[#out + 1] = id end
  end
  return out
end

-- What the indexer scored: entries whose score it gave.
local function scored_of(watch, scores)
  local out = {}
  for at, score in ipairs(scores:select(2, -1):flatten():totable()) do
    if score > -math.huge then out[#out + 1] = at - 1 end
  end
  local all = upto(watch, scores.shape[3])
  return #out == #all and all or out
end

local ROLES = { 'selected', 'window', 'index' }

local function total(counts)
  local bytes = 0
  for _, role in ipairs(ROLES) do bytes = bytes + counts[role .. '_bytes'] end
  return bytes
end

local Watch = {}
Watch.__index = Watch

-- Reads as the layer does, and notes what went in and what the counters say of it.
function Watch:read(A, p, pos0, cell, shared)
  local s, l = A.shape, A.shape.layer
  local one = { layer = A.index, text = tostring(l), owner = s.owner, selector = s.selector, ratio = s.ratio,
    overlap = l.overlap or nil, readable = {}, scored = {}, selected = {}, window = {} }
  local before = cell.counters:get()
  if s.topk then
    local found = A:select(p, pos0, cell, shared, true)
    if found.scores then
      one.scored = scored_of(self, found.scores)
      one.scores = found.scores:select(2, -1):flatten():clone()
    end
    if found.pool then one.pool = ids_of(found.pool)
    elseif s.pool and found.scores then one.pool = one.scored end
  end
  local out = A:attend(p, pos0, cell, shared)
  if s.owner then
    one.readable = upto(self, shared.cells[s.owner].main:count())
    local list = shared.lists[s.selector]
    one.selected = list and ids_of(list) or one.readable
  end
  if cell.window then
    local last = cell.window.first + cell.window:count()
    for at = last - math.min(s.window, cell.window:count()), last - 1 do one.window[#one.window + 1] = at end
  end
  local after = cell.counters:get()
  one.reads = {}
  for name, value in pairs(after) do one.reads[name] = value - before[name] end
  one.before, self.total = self.total, self.total + total(one.reads)
  one.after = self.total
  self.layers[#self.layers + 1] = one
  return out
end

local function watcher() return setmetatable({ layers = {}, lists = {}, total = 0 }, Watch) end

-- --- the step -----------------------------------------------------------------------------------------------------

-- With stand-ins nothing but the cache side of the layers can run, as in kvlab.measure.
local function stand_in(result, records, watch)
  local refusal = measure.refusal(result)
  if refusal then error('trace: ' .. refusal, 0) end
  local m = measure.model(result)
  local seq = m:sequence { records = records }
  local ok, problem = pcall(function()
    for i, one in ipairs(seq.cells) do one:reserve(0, result.context, m.layers[i].shape.ratio or 1) end
    measure.fill(seq, result.context - 1)
    local x, pos0, cells = measure.inputs(1), seq.position, seq.cells
    local shared = { cells = cells, lists = {}, pools = {} }
    for i, A in ipairs(m.layers) do
      if A.shape.owns then A:store(A:project_owner(x), pos0, cells[i]) end
      watch:read(A, A:project(x, pos0), pos0, cells[i], shared)
    end
  end)
  measure.free(m, seq)
  if not ok then error(problem, 0) end
end

local function decode(m, o, n, watch)
  local h = inputs_of(m, o, n)
  if h.shape[1] ~= 1 then error(('trace: expected one sequence of tokens, got a batch of %d'):format(h.shape[1]), 0) end
  local seq <close> = m:sequence { records = o.records }
  if n > 1 then seq:extend(h:slice(2, 1, n - 1), { replay = o.replay }) end
  seq.study = watch
  seq:extend(h:slice(2, n, n))
end

-- What kv.count says of a layer, beside what was read there.
local function counted_of(result, i)
  local c = count.layer(result, i)
  return { selected_bytes = c.selected:tonumber(), window_bytes = c.window:tonumber(), index_bytes = c.keys:tonumber() }
end

local OPTIONS = { 'tokens', 'position', 'widths', 'records', 'seed', 'replay' }

-- kv.trace(what, options) -> Trace: see meta/trace.lua.
local function of(what, options)
  if not model.is(what) then what = layout.of(what, 'trace') end
  local o = opts.check(options or {}, OPTIONS, 'trace', 'option')
  if (o.tokens == nil) == (o.position == nil) then
    error('trace: give either tokens = a list of ids, the last of which is decoded, or position = the position that is '
      .. 'decoded, from 0', 0)
  end
  local n = o.tokens and length_of(o.tokens, 'trace') or opts.whole(o.position, 0, 'trace: position') + 1
  local seed = opts.whole(o.seed or 1, 0, 'trace: seed')
  local m, L, borrowed = subject(what, o, 'trace')
  local result = count.layout(L, { context = n, records = o.records })
  local watch = watcher()
  if m then
    decode(m, { tokens = o.tokens, records = o.records, replay = o.replay, seed = seed }, n, watch)
  else
    if o.replay then error('trace: replay needs all of a model; give smaller widths, or a model', 0) end
    stand_in(result, o.records, watch)
  end
  local self = setmetatable({ layout = L, name = L.name, position = n - 1, context = n, layers = watch.layers,
    read_bytes = watch.total, counted_bytes = result.read.total_bytes:tonumber(), equal = true,
    widths = borrowed and 'v4.1-flash' or nil, stand_ins = not m }, meta)
  for i, one in ipairs(self.layers) do
    one.counted = counted_of(result, i)
    for name, bytes in pairs(one.counted) do self.equal = self.equal and exact(bytes) == exact(one.reads[name]) end
  end
  return self
end

function class:draw(options) return require('kvlab.draw.trace').step(self, options) end
function meta.__tostring(self) return self:draw() end

-- --- prefill ------------------------------------------------------------------------------------------------------

local grid_class = {}
local grid_meta = { __index = grid_class, __name = 'kvlab.Prefill' }
trace.grid_class = grid_class

-- Notes which positions a layer was run for, and leaves everything as it is.
local Steps = {}
Steps.__index = Steps

function Steps:read(A, p, pos0, cell, shared)
  self[#self + 1] = { first = pos0, last = pos0 + p.T - 1 }
  if A.shape.topk then A:select(p, pos0, cell, shared) end
  return A:attend(p, pos0, cell, shared)
end

-- One prefill: what it ran and stored, and the output of its last position.
local function prefill(m, h, records, replay)
  local seq <close> = m:sequence { records = records }
  seq.study = setmetatable({}, Steps)
  local out = seq:extend(h, { replay = replay })
  local layers = {}
  for i, one in ipairs(seq.study) do
    local main = seq.cells[i].main
    layers[i] = { first = one.first, last = one.last, entries = main and main:count() or nil,
      ratio = m.layers[i].shape.owns and m.layers[i].shape.ratio or nil }
  end
  return { layers = layers, evaluations = seq.evaluations }, out:slice(2, -1, -1):flatten():clone()
end

local PREFILL <const> = { 'tokens', 'length', 'replay', 'widths', 'records', 'seed' }

-- kv.trace.prefill(what, options) -> Prefill: see meta/trace.lua.
function trace.prefill(what, options)
  if not model.is(what) then what = layout.of(what, 'trace.prefill') end
  local o = opts.check(options or {}, PREFILL, 'trace.prefill', 'option')
  if (o.tokens == nil) == (o.length == nil) then
    error('trace.prefill: give either tokens = a list of ids or length = how many tokens', 0)
  end
  local n = o.tokens and length_of(o.tokens, 'trace.prefill') or opts.whole(o.length, 1, 'trace.prefill: length')
  local replay = o.replay and opts.whole(o.replay, 1, 'trace.prefill: replay')
  local seed = opts.whole(o.seed or 1, 0, 'trace.prefill: seed')
  local m, L = subject(what, o, 'trace.prefill', true)
  if replay and not L.cut then
    error('trace.prefill: replay needs a layout with an encoder and a decoder (a | in its text)', 0)
  end
  local h = inputs_of(m, { tokens = o.tokens, seed = seed }, n)
  if h.shape[1] ~= 1 then
    error(('trace.prefill: expected one sequence of tokens, got a batch of %d'):format(h.shape[1]), 0)
  end
  local records = o.records or 'f32'
  local whole, exact_out = prefill(m, h, records)
  local self = setmetatable({ layout = L, name = L.name, length = n, replay = replay, whole = whole }, grid_meta)
  self.layers, self.evaluations = whole.layers, whole.evaluations
  if replay then
    local part, out = prefill(m, h, records, replay)
    self.layers, self.evaluations = part.layers, part.evaluations
    self.error = (out - exact_out):pow(2):sum() ^ 0.5 / math.max(exact_out:pow(2):sum() ^ 0.5, 1e-30)
  end
  return self
end

function grid_class:draw(options) return require('kvlab.draw.trace').grid(self, options) end
function grid_meta.__tostring(self) return self:draw() end

-- kv.trace is a function with another one inside.
trace.public = setmetatable({ prefill = trace.prefill }, { __call = function(_, ...) return of(...) end })

return trace
