-- attention.lua: one layer's attention as an object: projections, what it stores, what it selects, what it reads.
--
-- A layer is run in chunks of T tokens at positions pos0, pos0 + 1, ... (0-based), with any T: a whole sequence,
-- a part of a prompt, or one token. What it keeps between chunks lives in a cell (kvlab.cell): stores of rows
-- for entries, index keys and the window, and the compressors' states. Where a store keeps its rows (tensors or
-- the records of a pool) is the store's business, so the full-sequence form and decoding through caches are
-- this one code.
--
--   A:project_owner(x) -> p         an owner: what its entries and index keys are made of
--   A:store(p, pos0, cell)          pools it, appends the entries and keys that the chunk completes
--   A:project(x, pos)  -> p         queries, index queries, window rows
--   A:read(p, pos0, cell, shared)   select, read window and entries -> out [B, T, H, width]
--   A:output(out, pos, order) -> y  [B, T, D]
--
-- Projections and output work on a batch; storing and reading are done for each sequence by itself when the
-- sequences of a batch are at different positions (attention.slice cuts p).
--
-- `shared` is what the layers of one pass publish: shared.cells[i], and for selecting layers shared.lists[i]
-- (int32 [B, T, k], entries in ascending order, -1 for none) and shared.pools[i].
-- Formulas: DeepSeek-V2 report 2.1 (MLA), V3.2 report 2.1 (indexer), V4 report 2.3 and V4.1 report 2.3.
local cells = require 'kvlab.cell'
local layout = require 'kvlab.layout'
local ops = require 'kvlab.ops'
local opts = require 'kvlab.options'
local shape = require 'kvlab.shape'
local standin = require 'kvlab.standin'
local weights = require 'kvlab.weights'
local width_rules = require 'kvlab.widths'

local attention = {}

local class = {} -- what users call
local internal = setmetatable({}, { __index = class }) -- what model and sequence call besides
local meta = { __index = internal, __name = 'kvlab.Attention' }

attention.orders = { 'expand', 'absorb', 'merged' }

-- --- making -------------------------------------------------------------------------------------------
-- attention.softmax_scale(s): YaRN's magnitude goes into MLA's, as mscale^2 with mscale = 0.1 a ln(factor) + 1
-- (semantics 1.3).
function attention.softmax_scale(s)
  local get = s.get
  if s.form == 'heads' or s.form == 'entry' then return get 'head_dim' ^ -0.5 end
  local scale = (get 'qk_nope_head_dim' + get 'qk_rope_head_dim') ^ -0.5
  local yarn = get('rope_scaling', true)
  if yarn and yarn.mscale_all_dim and yarn.factor > 1 then
    scale = scale * (0.1 * yarn.mscale_all_dim * math.log(yarn.factor) + 1) ^ 2
  end
  return scale
end

-- One RoPE table for a layer: its query, window, entries, index queries and keys and the inverse alike. K = V
-- layers that read compressed entries have a base of their own with YaRN, those that read none plain RoPE.
-- An index key that is narrower than a head rotates all its channels.
local function rope_table(s, most)
  local get = s.get
  local n = s.form == 'heads' and get 'head_dim' or get('qk_rope_head_dim', true) or 0
  n = math.min(n, most or n)
  if n == 0 then return nil end
  if n % 2 ~= 0 then
    local name = most == n and 'index_head_dim' or s.form == 'heads' and 'head_dim' or 'qk_rope_head_dim'
    error(('%s: %s = %d is odd, but RoPE rotates pairs'):format(s.at, name, n), 0)
  end
  local theta, yarn = get('rope_theta', true) or 10000, get('rope_scaling', true)
  if s.form == 'entry' then
    if s.owner then theta = get('compress_rope_theta', true) or theta else yarn = nil end
  end
  return ops.rope_freqs { channels = n, theta = theta, yarn = yarn and {
    factor = yarn.factor, context = yarn.original_max_position_embeddings, beta_fast = yarn.beta_fast or 32,
    beta_slow = yarn.beta_slow or 1 } or nil }
end

-- attention.new(L, i, widths, options) -> the attention of layer i (1-based) of L.
-- options: weights = a table of tensors by name (without prefix; missing ones are an error), order = 'expand',
-- 'absorb' or 'merged' (MLA; by default a chunk expands and a single token absorbs), index_query = a plan that
-- index queries go through (they are quantised like the keys), no_rope = positions come from elsewhere.
function attention.new(L, i, widths, options)
  options = options or {}
  local s = shape.of(L, i, widths)
  local self = setmetatable({ index = i, shape = s, w = {}, scale = attention.softmax_scale(s),
    freqs = not options.no_rope and rope_table(s) or nil,
    eps = s.get('rms_norm_eps', true) or 1e-6, order = options.order, index_query = options.index_query }, meta)
  if s.topk and not options.no_rope then self.index_freqs = rope_table(s, s.index.channels) end
  if self.order then opts.word(self.order, attention.orders, 'order') end
  for _, spec in ipairs(weights.of(s)) do
    local value = options.weights[spec.name]
    weights.check(value, spec, s.at)
    self.w[spec.name] = value
  end
  if s.form == 'latent' then self:split_up_projection() end
  return self
end

-- Owners after the cut project the encoder's output, unless they say source = input (V4.1 report 2.2).
function internal:fed_by_encoder(cut)
  return self.index > cut and self.shape.layer.source ~= 'input'
end

-- kv_b_proj holds, head after head, the rows of the key and of the value up-projection.
function internal:split_up_projection()
  local get = self.shape.get
  local H, nope, d_v = get 'num_attention_heads', get 'qk_nope_head_dim', get 'v_head_dim'
  local up = self.w['kv_b_proj.weight']:reshape(H, nope + d_v, get 'kv_lora_rank')
  self.key_up = up:slice(2, 1, nope)             -- [H, nope, rank]
  self.value_up = up:slice(2, nope + 1, -1)      -- [H, d_v, rank]
end

-- W~Q_h = W^UQ_h (W^UK_h)^T and W~O_h = W^UV_h W^O_h (article, Figures 5 and 6), made when first used.
function internal:merge_weights()
  if self.query_merged then return end
  local get = self.shape.get
  local H, nope, rope, d_v = get 'num_attention_heads', get 'qk_nope_head_dim', get 'qk_rope_head_dim', get 'v_head_dim'
  local up = self.w['q_b_proj.weight'] or self.w['q_proj.weight']
  local latent = up.shape[2]
  local content = up:reshape(H, nope + rope, latent):slice(2, 1, nope)
  self.query_merged = ops.matmul(self.key_up:transpose(2, 3), content)            -- [H, rank, latent]
  local out = self.w['o_proj.weight']
  local D = out.shape[1]
  self.output_merged = ops.matmul(self.value_up:transpose(2, 3),
    out:reshape(D, H, d_v):permute(2, 3, 1))                                    -- [H, rank, D]
end

-- --- projections --------------------------------------------------------------------------------------
-- x [B, T, in] times a checkpoint matrix [out, in]. In place of the matrix there may be a stand-in (kvlab.standin),
-- which says itself what comes out.
local function linear(x, w)
  if standin.is(w) then return w:outputs(x.shape[1], x.shape[2]) end
  return ops.linear(x, w)
end

-- pos is the position of the first token, or a list with the position of each batch item (T = 1).
local function at(pos, options)
  if type(pos) == 'table' then options.positions = pos else options.pos0 = pos end
  return options
end

function internal:rotate(x, pos, stride, inverse)
  if not self.freqs then return x end
  return ops.rope(x, self.freqs, at(pos, { stride = stride, inverse = inverse,
    half_split = self.shape.get('rope_interleave', true) == false }))
end

-- The latent that queries come from: x itself without query compression.
function internal:query_latent(x)
  local w = self.w
  if w['q_a_proj.weight'] then
    return ops.rms_norm(linear(x, w['q_a_proj.weight']), w['q_a_layernorm.weight'], self.eps)
  elseif w['wq_a.weight'] then
    return ops.rms_norm(linear(x, w['wq_a.weight']), w['q_norm.weight'], self.eps)
  end
  return x
end

-- x [B, T, H, a] times one matrix [H, a, b] a head -> [B, T, H, b].
local function per_head(x, w)
  local B, T, H = x.shape[1], x.shape[2], x.shape[3]
  if standin.is(w) then return w:outputs(B, T) end
  return ops.matmul(x:reshape(B * T, H, -1):transpose(1, 2), w):transpose(1, 2):reshape(B, T, H, -1)
end

-- Queries as they meet the rows, [B, T, H, key width]: rotated, and for MLA in the order of computation.
function internal:queries(latent, pos, order)
  local w, get = self.w, self.shape.get
  local B, T = latent.shape[1], latent.shape[2]
  local H = get 'num_attention_heads'
  local q = linear(latent, w['q_b_proj.weight'] or w['q_proj.weight'] or w['wq_b.weight'] or w['wq.weight'])
  q = q:reshape(B, T, H, -1)
  if self.shape.form == 'heads' then return self:rotate(q, pos) end
  if self.shape.form == 'entry' then
    if get('query_head_norm', true) then q = ops.rms_norm(q, nil, self.eps) end
    return self:rotate(q, pos)
  end
  local nope = get 'qk_nope_head_dim'
  local content, rotary = ops.split(q, 4, nope)
  rotary = self:rotate(rotary, pos)
  if order == 'absorb' then content = per_head(content, self.key_up)
  elseif order == 'merged' then
    self:merge_weights()
    content = ops.matmul(latent:reshape(1, B * T, -1), self.query_merged:transpose(2, 3))  -- [H, B T, rank]
      :transpose(1, 2):reshape(B, T, H, -1)
  end
  return ops.cat({ content, rotary }, 4)
end

-- The row of one token before pooling, rotation and norm, and what finishes it: per-head K and V, latent and
-- rotary key, or one entry. `prefix` is 'window.' for local KV beside an own cache.
function internal:raw_row(x, prefix)
  local w = self.w
  if self.shape.form == 'heads' then
    return ops.cat({ linear(x, w[prefix .. 'k_proj.weight']), linear(x, w[prefix .. 'v_proj.weight']) }, 3)
  elseif self.shape.form == 'latent' then
    return linear(x, w[prefix .. 'kv_a_proj_with_mqa.weight'])
  end
end

-- Norm and rotation of pooled rows [B, n, channels] whose tokens start `stride` apart.
function internal:finish_row(row, pos, stride, prefix)
  local s = self.shape
  local B, n = row.shape[1], row.shape[2]
  if s.form == 'heads' then
    local dims = s.main or s.local_kv
    local key, value = ops.split(row, 3, dims.key)
    key = self:rotate(key:reshape(B, n, dims.kv_heads, dims.key // dims.kv_heads), pos, stride):reshape(B, n, dims.key)
    return ops.cat({ key, value }, 3)
  end
  local rank = s.get 'kv_lora_rank'
  local latent, rotary = ops.split(row, 3, rank)
  latent = ops.rms_norm(latent, self.w[prefix .. 'kv_a_layernorm.weight'], self.eps)
  return ops.cat({ latent, self:rotate(rotary, pos, stride) }, 3), latent
end

-- Local KV of the chunk: [B, T, channels], one row a token.
function internal:local_rows(x, pos)
  if self.shape.form == 'entry' then
    local row = ops.rms_norm(linear(x, self.w['wkv.weight']), self.w['kv_norm.weight'], self.eps)
    return self:rotate(row, pos)
  end
  local prefix = self.shape.owns and 'window.' or ''
  return (self:finish_row(self:raw_row(x, prefix), pos, 1, prefix))
end

-- --- the index ----------------------------------------------------------------------------------------
function internal:index_norm(key)
  local w = self.w
  if self.shape.layer.keys == 'input' then
    return ops.layer_norm(key, w['indexer.k_norm.weight'], w['indexer.k_norm.bias'], 1e-6)
  end
  return ops.rms_norm(key, w['indexer.k_norm.weight'] or w['indexer.compressor.norm.weight'], self.eps)
end

-- RoPE and Hadamard of index queries and keys alike.
function internal:index_rotate(x, pos, stride)
  local get = self.shape.get
  if self.index_freqs then
    local first = get('index_rope', true) == 'first'
    x = ops.rope(x, self.index_freqs, at(pos, { stride = stride, first = first, half_split = first }))
  end
  if get('index_hadamard', true) then x = ops.hadamard(x) end
  return x
end

-- Index queries [B, T, heads, d] and head weights [B, T, heads] with the constants d^-1/2 heads^-1/2.
function internal:index_queries(x, latent, pos)
  local s, w, get = self.shape, self.w, self.shape.get
  local heads, d = get 'index_n_heads', s.index.channels
  x, latent = ops.detach(x), ops.detach(latent) -- the indexer learns from its own loss only
  local q = linear(s.form == 'heads' and x or latent, w['indexer.wq_b.weight'])
    :reshape(x.shape[1], x.shape[2], heads, d)
  q = self:index_rotate(q, pos)
  if self.index_query then q = ops.roundtrip(self.index_query, q) end
  return q, linear(x, w['indexer.weights_proj.weight']) * (d ^ -0.5 * heads ^ -0.5)
end

-- --- projections of a chunk ---------------------------------------------------------------------------
-- What an owner takes in: candidates and scores of the compressors, or the key of the token itself.
function internal:project_owner(x)
  local s, w, l = self.shape, self.w, self.shape.layer
  local p = { owner_T = x.shape[2] }
  p.candidates = s.form == 'entry' and linear(x, w['compressor.wkv.weight']) or self:raw_row(x, '')
  if w['compressor.wgate.weight'] then p.gate = linear(x, w['compressor.wgate.weight']) end
  x = ops.detach(x)
  if l.keys == 'input' then p.index_keys = linear(x, w['indexer.wk.weight'])
  elseif l.keys == 'compressor' then
    p.index_keys = linear(x, w['indexer.compressor.wkv.weight'])
    if w['indexer.compressor.wgate.weight'] then p.index_gate = linear(x, w['indexer.compressor.wgate.weight']) end
  end
  return p
end

-- A:project(x, pos) -> p for x [B, T, D].
function internal:project(x, pos)
  local s = self.shape
  local T = x.shape[2]
  local p = { T = T, order = s.form == 'latent' and (self.order or (T > 1 and 'expand' or 'absorb')) or nil }
  local latent = self:query_latent(x)
  p.q = self:queries(latent, pos, p.order)
  if s.topk then p.index_q, p.index_w = self:index_queries(x, latent, pos) end
  if s.window > 0 then p.window_rows = self:local_rows(x, pos) end
  return p
end

-- attention.slice(p, b) -> the part of batch item b.
function attention.slice(p, b)
  local part = {}
  for name, value in pairs(p) do
    part[name] = ops.is_tensor(value) and value:slice(1, b, b) or value
  end
  return part
end

-- --- storing ------------------------------------------------------------------------------------------
-- A:store(p, pos0, cell): the owner takes the tokens of p = project_owner(x) in, from position pos0 on, and
-- stores the entries and keys that they complete.
function internal:store(p, pos0, cell)
  local s, w, l = self.shape, self.w, self.shape.layer
  local m = s.ratio
  local start = pos0 - pos0 % m -- the first token of the first block that this chunk can complete
  local rows = p.candidates
  if cell.compressor then rows = cell.compressor:push(rows, p.gate) end
  local entries, latent
  if s.form == 'entry' then
    latent = ops.rms_norm(rows, w['compressor.norm.weight'], self.eps)
    entries = self:rotate(latent, start, m)
  else
    entries, latent = self:finish_row(rows, start, m, '')
  end
  cell.main:append(entries)
  if not l.keys then return end
  local keys = p.index_keys
  if l.keys == 'entry' then keys = linear(ops.detach(latent), w['indexer.wk.weight'])
  elseif l.keys == 'compressor' then keys = cell.index_compressor:push(keys, p.index_gate) end
  cell.index:append(self:index_rotate(self:index_norm(keys), start, m))
end

-- --- reading ------------------------------------------------------------------------------------------
-- MLA: rows [B, S, rank + rope] as per-head keys [B, S, H, nope + rope] and values [B, S, H, d_v].
function internal:expand(rows)
  local get = self.shape.get
  local B, S = rows.shape[1], rows.shape[2]
  local H, rank, rope = get 'num_attention_heads', get 'kv_lora_rank', get 'qk_rope_head_dim'
  local latent, rotary = ops.split(rows, 3, rank)
  local up = linear(latent, self.w['kv_b_proj.weight']):reshape(B, S, H, -1)
  local content, values = ops.split(up, 4, get 'qk_nope_head_dim')
  return ops.cat({ content, rotary:reshape(B, S, 1, rope):expand(B, S, H, rope) }, 4), values
end

-- Column ranges of a row source for this layer's form.
function internal:columns(source)
  local s = self.shape
  local dims = s.main or s.local_kv
  source.kv_heads = dims.kv_heads
  if s.form == 'heads' then
    source.key, source.value = { 1, dims.key }, { dims.key + 1, dims.key + dims.value }
  elseif s.form == 'latent' then
    source.key, source.value = { 1, dims.channels }, { 1, s.get 'kv_lora_rank' }
  else
    source.key, source.value = { 1, dims.channels }, { 1, dims.channels }
  end
  return source
end

-- What was published for the last T queries: behind the cut, bounded replay runs fewer of them.
local function last(ids, T) return ids:slice(2, -T, -1):contiguous() end

-- What the indexer of this layer is asked: kvlab.ops.index takes it. nil when there is no entry yet.
function internal:question(p, pos0, cell, shared)
  local s = self.shape
  local store = shared.cells[s.owner].index
  if store:count() == 0 then return nil end
  local keys = store:source('index', cell.counters)
  keys.pos0, keys.store = nil, nil
  local pool = s.pool and shared.pools[s.owner]
  return { q = p.index_q, w = p.index_w, keys = keys, pos0 = pos0, ratio = s.ratio, k = s.topk,
    pool = pool and last(pool, p.T) or nil, build = s.layer.pool or nil }
end

-- An empty list, for when there is nothing to select yet.
function internal:nothing(p) -- luacheck: ignore self
  return { top = ops.filled({ p.q.shape[1], p.T, 1 }, -1, 'int32') }
end

-- Scores the owner's keys and publishes the list, and the pool, of the chunk. With `scores` these are in the result.
function internal:select(p, pos0, cell, shared, scores)
  local question = self:question(p, pos0, cell, shared)
  if question then question.scores = scores end
  local found = question and ops.index(question) or self:nothing(p)
  shared.lists[self.index] = found.top
  shared.pools[self.index] = found.pool
  return found
end

-- The sources of one chunk: the window, and the entries of the owner, which are at the end when there are any.
-- `dense`: all visible entries instead of the selected ones.
function internal:sources(p, pos0, cell, shared, dense)
  local s = self.shape
  local sources = {}
  if s.window > 0 then
    local source = cell.window:extend(p.window_rows, pos0)
    source.see, source.window = 'window', s.window
    sources[#sources + 1] = self:columns(source)
  end
  if s.owner then
    local store = shared.cells[s.owner].main
    if store:count() > 0 then
      local source = store:source('selected', cell.counters)
      local list = not dense and shared.lists[s.selector]
      if list then source.see, source.list = 'list', last(list, p.T)
      else source.see, source.ratio = 'blocks', s.ratio end
      sources[#sources + 1] = self:columns(source)
    end
  end
  if p.order == 'expand' then
    for i, source in ipairs(sources) do
      local key, value = self:expand(source.store:read(source))
      sources[i] = { key_rows = key, value_rows = value, pos0 = source.pos0, see = source.see, list = source.list,
        ratio = source.ratio, window = source.window }
    end
  end
  for _, source in ipairs(sources) do source.store = nil end
  return sources
end

-- The width of a head's output; a query that can read nothing yet gives zeros.
function internal:value_width(order)
  local dims = self.shape.main or self.shape.local_kv
  if order == 'expand' then return self.shape.get 'v_head_dim' end
  return dims.value // dims.kv_heads
end

-- A:read(p, pos0, cell, shared) -> out [B, T, H, value width]. A study (kvlab.study) looks at what is selected, and
-- may select otherwise.
function internal:read(p, pos0, cell, shared)
  if shared.study then return shared.study:read(self, p, pos0, cell, shared) end
  if self.shape.topk then self:select(p, pos0, cell, shared) end
  return self:attend(p, pos0, cell, shared)
end

-- The part of reading that comes after selecting.
function internal:attend(p, pos0, cell, shared)
  return (ops.attend(self:attention_call(p, pos0, self:sources(p, pos0, cell, shared))))
end

-- What attend is asked for these sources.
function internal:attention_call(p, pos0, sources)
  return { q = p.q, sources = sources, sink = self.w.attn_sink, scale = self.scale, pos0 = pos0,
    value_width = #sources == 0 and self:value_width(p.order) or nil }
end

-- --- output -------------------------------------------------------------------------------------------
-- A:output(out, pos, order) -> y [B, T, D]: back from rotation (the rows of K = V layers are values that were
-- rotated), and the output projection; grouped for K = V layers (V4 report 2.3): a matrix for each group of
-- heads, then one for all.
function internal:output(out, pos, order)
  local s, w = self.shape, self.w
  local B, T = out.shape[1], out.shape[2]
  if s.form == 'entry' then
    out = self:rotate(out, pos, 1, true)
    if w['wo.weight'] then return linear(out:reshape(B, T, -1), w['wo.weight']) end
    local groups, rank = s.get 'o_groups', s.get 'o_lora_rank'
    local grouped = out:reshape(B * T, groups, -1):transpose(1, 2)                           -- [G, BT, in]
    local first = ops.matmul(grouped, w['wo_a.weight']:reshape(groups, rank, -1):transpose(2, 3)) -- [G, BT, rank]
    return linear(first:transpose(1, 2):reshape(B, T, groups * rank), w['wo_b.weight'])
  end
  if order == 'merged' then -- the sum over heads of out_h W~O_h
    local D = self.output_merged.shape[3]
    return ops.matmul(out:reshape(B * T, -1), self.output_merged:reshape(-1, D)):reshape(B, T, D)
  end
  if order == 'absorb' then out = per_head(out, self.value_up:transpose(2, 3)) end
  return linear(out:reshape(B, T, -1), w['o_proj.weight'])
end

-- A:forward(x, pos0, cell, shared [, source, from]) -> y [B, T, D]: all of it for one chunk. An owner takes in
-- `source`, whose first token is at `from`, instead of x.
function internal:forward(x, pos0, cell, shared, source, from)
  if self.shape.owns then self:store(self:project_owner(source or x), from or pos0, cell) end
  local p = self:project(x, pos0)
  return self:output(self:read(p, pos0, cell, shared), pos0, p.order)
end

-- alone(x) -> cell, shared: x [B, T, D] is checked, and there are fresh stores for a sequence that this layer runs by
-- itself.
function internal:alone(x)
  local s, D = self.shape, self.shape.get 'hidden_size'
  local sizes = ops.is_tensor(x) and x.shape or {}
  if #sizes ~= 3 or sizes[3] ~= D or x.size == 0 or x.dtype ~= 'float32' then
    error(('attention: x is %s, expected float32 {B, T, %d}, B and T 1 or more'):format(ops.is_tensor(x)
      and ('%s {%s}'):format(x.dtype, table.concat(sizes, ', ')) or type(x), D), 0)
  end
  if s.owner and not s.owns or s.selector and s.selector ~= self.index then
    error(('%s: what it reads comes from layers before it, so it cannot run by itself'):format(s.at), 0)
  end
  local own = cells.of_tensors(self, sizes[1])
  return own, { cells = { [self.index] = own }, lists = {}, pools = {} }
end

-- A:full(x) -> y, selected: a whole sequence x [B, T, D] from position 0, through tensors.
function class:full(x)
  local own, shared = self:alone(x)
  return self:forward(x, 0, own, shared), shared.lists[self.index]
end

-- kv.attention(l, widths, options) -> the attention of one layer by itself, which must own what it reads.
-- options: weights, order; without weights, random ones from `seed` (1).
function attention.single(l, widths, options)
  options = options or {}
  opts.check(options, { 'seed', 'weights', 'order' }, 'attention')
  local seed = opts.whole(options.seed or 1, 0, 'attention: seed')
  local L = layout.new { l }
  if #L ~= 1 then error(('attention: expected one layer, got %d'):format(#L), 0) end
  widths = width_rules.merge(nil, widths)
  local own = options.weights or {}
  if not options.weights then
    for _, spec in ipairs(weights.of(shape.of(L, 1, widths))) do own[spec.name] = weights.random(spec, seed) end
  end
  return attention.new(L, 1, widths, { weights = own, order = options.order })
end

function meta.__tostring(self) return ('kvlab.Attention: %s'):format(tostring(self.shape.layer)) end

attention.class = class
return attention
