-- model.lua: a layout with widths and weights: token embedding, pre-norm layers of attention and SwiGLU, head.
--
--   h = embed[tokens];  for each layer  h = h + attention(norm(h)),  h = h + ffn(norm(h));  logits = head norm(h)
--
-- model:forward runs whole sequences through tensors; a sequence (kvlab.sequence) runs the same layers through
-- caches. Both call model:run, which knows neither.
local attention = require 'kvlab.attention'
local cell = require 'kvlab.cell'
local layout = require 'kvlab.layout'
local ops = require 'kvlab.ops'
local opts = require 'kvlab.options'
local progress = require 'kvlab.progress'
local record = require 'kvlab.record'
local shape = require 'kvlab.shape'
local training = require 'kvlab.training'
local weights = require 'kvlab.weights'
local width_rules = require 'kvlab.widths'

local model = {}

local class = {} -- what users call
local internal = setmetatable({}, { __index = class }) -- what other modules call besides
local meta = { __name = 'kvlab.Model', __index = internal }

function model.is(value) return getmetatable(value) == meta end

local OPTIONS = { 'seed', 'weights', 'tied', 'ffn', 'order', 'quantisers', 'hidden_only', 'norm', 'mlp',
  'positions', 'init', 'records' }
local QUANTISERS = { 'main', 'index', 'window', 'index_query' }

-- --- names and shapes of everything outside attention (as in the released checkpoints) ------------------
local function block_names(s, i)
  if s.form == 'entry' then
    local at = ('layers.%d.'):format(i - 1)
    return { attn_norm = at .. 'attn_norm.weight', ffn_norm = at .. 'ffn_norm.weight', gate = at .. 'ffn.w1.weight',
      up = at .. 'ffn.w3.weight', down = at .. 'ffn.w2.weight' }
  end
  local at = ('model.layers.%d.'):format(i - 1)
  return { attn_norm = at .. 'input_layernorm.weight', ffn_norm = at .. 'post_attention_layernorm.weight',
    gate = at .. 'mlp.gate_proj.weight', up = at .. 'mlp.up_proj.weight', down = at .. 'mlp.down_proj.weight' }
end

-- model.parameters(L, widths, options) -> an ordered list of { name, shape, per (kvlab.weights) }. options: ffn, the
-- width of the FFN (intermediate_size), 0 leaves it out; mlp and positions as in model.new; tied leaves the
-- head out, hidden_only everything but the layers and their norms.
function model.parameters(L, widths, options)
  local list = {}
  local function add(name, ...) list[#list + 1] = { name = name, shape = { ... } } end
  local D = widths.hidden_size
  if not D then error('model: the width hidden_size is missing', 0) end
  local ffn = options.ffn or widths.intermediate_size or 0
  local released = shape.of(L, 1, widths).form == 'entry'
  if not options.hidden_only then
    if not widths.vocab_size then error('model: the width vocab_size is missing', 0) end
    add(released and 'embed.weight' or 'model.embed_tokens.weight', widths.vocab_size, D)
    if options.positions == 'learned' then
      if not widths.max_position_embeddings then
        error('model: learned positions need the width max_position_embeddings', 0)
      end
      add('positions.weight', widths.max_position_embeddings, D)
    end
  end
  for i = 1, #L do
    local s = shape.of(L, i, widths)
    local names = block_names(s, i)
    add(names.attn_norm, D)
    list[#list].optional = options.hidden_only -- a layer by itself gets its input normed already
    for _, w in ipairs(weights.of(s)) do
      list[#list + 1] = { name = weights.prefix(s, i) .. w.name, shape = w.shape, per = w.per }
    end
    if ffn > 0 then
      add(names.ffn_norm, D)
      if options.mlp ~= 'gelu' then add(names.gate, ffn, D) end
      add(names.up, ffn, D)
      add(names.down, D, ffn)
    end
  end
  if not options.hidden_only then
    add(released and 'norm.weight' or 'model.norm.weight', D)
    if not options.tied then add(released and 'head.weight' or 'lm_head.weight', widths.vocab_size, D) end
  end
  return list
end

-- model.size(L, widths, options) -> how many parameters it has, without making it.
function model.size(L, widths, options)
  local n = 0
  for _, spec in ipairs(model.parameters(L, widths, options)) do n = n + weights.size(spec.shape) end
  return n
end

-- model.check_options(options) -> seed, the width of the FFN or nil: raises for what no model can have.
function model.check_options(options)
  opts.check(options, OPTIONS, 'model')
  local seed = opts.whole(options.seed or 1, 0, 'model: seed')
  local ffn = options.ffn and opts.whole(options.ffn, 0, 'model: ffn')
  weights.init(options.init, 'model: init')
  local q, given = options.quantisers, options.weights
  if q and options.records then error('model: quantisers and records are both given, expected one of them', 0) end
  if q then opts.check(q, QUANTISERS, 'model: quantisers', 'role') end
  opts.word(options.norm or 'rms', { 'rms', 'layer' }, 'model: norm')
  opts.word(options.mlp or 'swiglu', { 'swiglu', 'gelu' }, 'model: mlp')
  opts.word(options.positions or 'rope', { 'rope', 'learned', 'none' }, 'model: positions')
  if options.order then opts.word(options.order, attention.orders, 'model: order') end
  if given ~= nil and type(given) ~= 'table' then
    error(('model: weights is a %s, expected a table of tensors by checkpoint name'):format(type(given)), 0)
  end
  return seed, ffn
end

-- kv.model(L, widths, options) -> a model.
-- options: seed (1) or weights (a table of tensors by checkpoint name); tied (false); ffn (intermediate_size; 0:
-- none); order (MLA); quantisers (records main, index, window, index_query that the full-sequence form applies) or
-- records (as of a sequence: that form then computes with rows as caches give them back); init (kvlab.weights); norm =
-- 'rms' or 'layer' (LayerNorm without bias), mlp = 'swiglu' or 'gelu', positions = 'rope', 'learned' or 'none'.
function model.new(L, widths, options)
  L = layout.of(L, 'model')
  options = options or {}
  local seed, ffn = model.check_options(options)
  local init = weights.init(options.init, 'model: init')
  local q, stored = options.quantisers, options.records
  widths = width_rules.merge(L.widths, widths)
  ffn = ffn or widths.intermediate_size or 0
  local given = options.weights
  local self = setmetatable({ layout = L, widths = widths, layers = {}, blocks = {}, parameters = {}, names = {},
    eps = widths.rms_norm_eps or 1e-6, ffn = ffn, pools = {}, layer_norm = options.norm == 'layer' }, meta)
  for _, spec in ipairs(model.parameters(L, widths, { ffn = ffn, tied = options.tied, mlp = options.mlp,
    positions = options.positions, hidden_only = options.hidden_only })) do
    local value = given and given[spec.name]
    if given and (value ~= nil or not spec.optional) then weights.check(value, spec, 'model') end
    self.names[#self.names + 1] = spec.name
    self.parameters[spec.name] = value or weights.random(spec, seed, init, #L)
  end
  self.quantisers = {}
  for i = 1, #L do
    local s = shape.of(L, i, widths)
    local own = {}
    local prefix = weights.prefix(s, i)
    for _, w in ipairs(weights.of(s)) do own[w.name] = self.parameters[prefix .. w.name] end
    local index_query = q and q.index_query and s.topk
      and record.of(q.index_query):plan { channels = s.index.channels, rotary = s.index.rotary }
    self.layers[i] = attention.new(L, i, widths, { weights = own, order = options.order,
      index_query = index_query or nil, no_rope = (options.positions or 'rope') ~= 'rope' })
    self.blocks[i] = block_names(s, i)
    if stored then self.quantisers[i] = shape.plans(s, shape.asked(stored), shape.deployed(L, stored))
    elseif q then self.quantisers[i] = model.plans(s, q) end
  end
  return self
end

-- The plans of a layer's rows under a set of records (main, index, window) or their names; none where none is given.
function model.plans(s, records)
  local function plan(rec, dims)
    return rec and dims and record.of(rec):plan { channels = dims.channels, rotary = dims.rotary, key = dims.key,
      value = dims.value } or nil
  end
  return { main = s.owns and plan(records.main, s.main) or nil, index = s.owns and plan(records.index, s.index) or nil,
    window = plan(records.window, s.local_kv) }
end

-- m:weight(name) -> the tensor of that name, or nil.
function class:weight(name) return self.parameters[name] end

function internal:norm(h, name)
  if self.layer_norm then return ops.layer_norm(h, self.parameters[name], nil, self.eps) end
  return ops.rms_norm(h, self.parameters[name], self.eps)
end

-- The FFN of layer i (SwiGLU, or GELU where there is no gate), added to h.
function internal:add_ffn(i, h)
  if self.ffn == 0 then return h end
  local names, p = self.blocks[i], self.parameters
  local n = self:norm(h, names.ffn_norm)
  if not p[names.gate] then return ops.add(h, ops.linear(ops.linear(n, p[names.up]):gelu(), p[names.down])) end
  return ops.add(h, ops.linear(ops.swiglu(ops.linear(n, p[names.gate]), ops.linear(n, p[names.up])), p[names.down]))
end

-- model:run(h, pos0, cells, replay) -> h of the last layer [B, T', D], evaluations, what the layers published.
-- The chunk h [B, T, D] is at positions pos0 ...; replay = n runs the layers after the cut on its last n positions
-- only (V4.1 report 3.2.2), while owners there still take in the encoder's output at every position. study:
-- kvlab.study.
function internal:run(h, pos0, cells, replay, study)
  local cut = self.layout.cut or #self.layers
  local shared = { cells = cells, lists = {}, pools = {}, study = study }
  local evaluations = 0
  local encoder_out, encoder_pos0 -- what the owners after the cut are fed from
  local bar <close> = progress.start('layers', #self.layers)
  for i, A in ipairs(self.layers) do
    bar:to(i - 1)
    if i == cut + 1 then
      encoder_out, encoder_pos0 = h, pos0
      local T = h.shape[2]
      if replay and replay < T then
        h, pos0 = h:slice(2, T - replay + 1, T), pos0 + T - replay
      end
    end
    local norm = self.blocks[i].attn_norm
    local x = self:norm(h, norm)
    local source, from = x, pos0 -- what an owner is fed, and the position of its first token
    if A.shape.owns and i > cut then
      if A:fed_by_encoder(cut) then
        from = encoder_pos0
        if i > cut + 1 or from ~= pos0 then source = self:norm(encoder_out, norm) end
      elseif encoder_pos0 ~= pos0 then
        error(('%s: source = input, so bounded replay cannot fill its cache'):format(A.shape.at), 0)
      end
    end
    h = ops.add(h, A:forward(x, pos0, cells[i], shared, source, from))
    h = self:add_ffn(i, h)
    evaluations = evaluations + h.shape[2]
  end
  return h, evaluations, shared
end

-- model:run_batch(h, sequences) -> h [B, 1, D]: one token for each of several sequences at positions of their
-- own. Projections are done for all at once; each sequence stores and reads for itself.
function internal:run_batch(h, sequences)
  local cut = self.layout.cut or #self.layers
  local positions, shared = {}, {}
  for b, seq in ipairs(sequences) do
    positions[b] = seq.position
    shared[b] = { cells = seq.cells, lists = {}, pools = {} }
  end
  local encoder_out
  for i, A in ipairs(self.layers) do
    if i == cut + 1 then encoder_out = h end
    local norm = self.blocks[i].attn_norm
    local x = self:norm(h, norm)
    if A.shape.owns then
      local p = A:project_owner(A:fed_by_encoder(cut) and self:norm(encoder_out, norm) or x)
      for b in ipairs(sequences) do A:store(attention.slice(p, b), positions[b], shared[b].cells[i]) end
    end
    local p = A:project(x, positions)
    local outs = {}
    for b in ipairs(sequences) do
      outs[b] = A:read(attention.slice(p, b), positions[b], shared[b].cells[i], shared[b])
    end
    h = self:add_ffn(i, h + A:output(ops.cat(outs, 1), positions, p.order))
  end
  return h
end

-- tokens, as one id, a list, lists of a batch, or a tensor [T] or [B, T] -> int32 [B, T] of ids from `low` (0).
function internal:tokens(tokens, low)
  if type(tokens) == 'number' then tokens = { tokens } end
  local ids = tokens
  if type(tokens) == 'table' then
    local ok, made = pcall(ops.tensor, tokens, 'int32')
    if not ok then error(('tokens: %s'):format(made), 0) end
    ids = made
  elseif not ops.is_tensor(tokens) then
    error(('tokens: expected ids as a number, a list or a tensor, got %s'):format(type(tokens)), 0)
  end
  if #ids.shape == 1 then ids = ids:reshape(1, ids.shape[1]) end
  if ids.dtype ~= 'int32' or #ids.shape ~= 2 or ids.size == 0 then
    error(('tokens: expected int32 ids {T} or {B, T} with T >= 1, got %s {%s}'):format(ids.dtype,
      table.concat(ids.shape, ', ')), 0)
  end
  local vocab = self.widths.vocab_size
  for _, id in ipairs { ids:min(), ids:max() } do
    if id < (low or 0) or id >= vocab then
      error(('tokens: id %d is outside 0 .. %d, the ids of the vocabulary'):format(id, vocab - 1), 0)
    end
  end
  return ids
end

-- Embeddings of ids [B, T] whose first column is at position pos0, or at positions of a list (T = 1).
function internal:embed(ids, pos0)
  local p = self.parameters
  local h = ops.embedding(p['embed.weight'] or p['model.embed_tokens.weight'], ids)
  local learned = p['positions.weight']
  if not learned then return h end
  local most, T = learned.shape[1], ids.shape[2]
  local last = type(pos0) == 'table' and math.max(table.unpack(pos0)) or pos0 + T - 1
  if last >= most then
    error(('model: position %d, but max_position_embeddings = %d learned positions'):format(last, most), 0)
  end
  local places = type(pos0) == 'table' and ops.tensor(pos0, 'int32'):reshape(-1, 1) or ops.arange(pos0, last)
  return ops.add(h, ops.embedding(learned, places))
end

-- The matrix [V, D] of the head, which is the embedding's when they are tied.
function internal:head_matrix()
  local p = self.parameters
  return p['head.weight'] or p['lm_head.weight'] or p['embed.weight'] or p['model.embed_tokens.weight']
end

-- The normed output of the last layer, and the matrix of the head.
function internal:head(h)
  return self:norm(h, self.parameters['norm.weight'] and 'norm.weight' or 'model.norm.weight'), self:head_matrix()
end

function internal:logits(h) return ops.linear(self:head(h)) end

-- Fresh cells of tensors for a batch.
function internal:tensor_cells(batch)
  local cells = {}
  for i, A in ipairs(self.layers) do cells[i] = cell.of_tensors(A, batch, self.quantisers[i]) end
  return cells
end

-- model:forward(tokens) -> logits [B, T, V], the whole sequence at once, without caches.
function class:forward(tokens)
  local ids = self:tokens(tokens)
  return self:logits((self:run(self:embed(ids, 0), 0, self:tensor_cells(ids.shape[1]))))
end

-- model:loss(batch, options) -> loss, gradients, more (kvlab.training).
function class:loss(batch, options) return training.loss(self, batch, options) end

-- The parameters were written to: what was made of them is made anew when it is needed.
function internal:changed()
  for _, A in ipairs(self.layers) do A.query_merged, A.output_merged = nil, nil end
end

function meta.__tostring(self)
  return ('kvlab.Model: %d layers, %s'):format(#self.layers, tostring(self.layout))
end

model.class = class
return model
