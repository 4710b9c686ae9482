-- flops.lua: multiply-adds of attention, for one decode step at N and for the prefill of N tokens.
--
-- Three parts: projections (every weight matrix of the attention block, the indexer's and the compressor's
-- included), attention (query times row, probability times row), indexing (query heads times key and the
-- weighted sum of heads). Norms, RoPE, softmax, pooling and quantisers are element-wise and not counted, nor
-- are the FFN and the output head. One multiply-add is one; FLOPs as vendors count them are twice that.
--
-- MLA can be computed in three orders (article, Figures 5 and 6; semantics 3): `expand` builds keys and values
-- from the latent, `absorb` moves the up-projections to the query and output side, `merged` multiplies them
-- into the neighbouring weights in advance.
local exact = require 'kvlab.exact'
local weights = require 'kvlab.weights'

local flops = {}

flops.orders = { 'expand', 'absorb', 'merged' }

-- --- sums over a prefill -------------------------------------------------------------------------------
local HUGE = math.maxinteger

local function triangle(x) return exact(x) * (exact(x) + 1) / 2 end

-- Sum of min(k, e) for e = 1 .. x.
local function sum_min(k, x)
  local low = math.min(k, x)
  local sum = triangle(low)
  if x > low then sum = sum + exact(k) * (x - low) end
  return sum
end

-- Sum over e = 1 .. x of min(k, candidates among e entries), with or without a pool.
local function sum_rows(k, pool, x)
  k = k or HUGE
  local whole = pool and (pool.blocks > HUGE // pool.block and HUGE or pool.blocks * pool.block) or HUGE
  if x <= whole then return sum_min(k, x) end
  -- Beyond the pool's size the candidates run through base + 1 .. base + block again and again.
  local base = whole - pool.block
  local function cycle(n)
    if k <= base then return exact(k) * n end
    return exact(base) * n + sum_min(k == HUGE and HUGE or k - base, n)
  end
  local more = x - whole
  return sum_min(k, whole) + cycle(pool.block) * (more // pool.block) + cycle(more % pool.block)
end

-- Sum over queries n = 1 .. N of g(n // m), where G(x) is the sum of g over 1 .. x.
local function sum_blocks(N, m, G)
  local q, r = N // m, N % m
  if q == 0 then return exact(0) end
  local before = G(q - 1)
  return before * m + (G(q) - before) * (r + 1)
end

-- Keys scored and rows read (selected and window together) by the queries 1 .. N of one class.
local function prefill_visits(c, L, widths, N, access)
  local s = c.shape
  local keys, rows = exact(0), exact(0)
  if s.owner then
    local shape = require 'kvlab.shape'
    local chooser = s.selector == c.index and s or shape.of(L, s.selector, widths)
    local masked = access == 'mask'
    local k, pool = not masked and chooser.topk or nil, not masked and chooser.pool or nil
    -- A layer that scores nothing and selects everything has no k and no pool.
    rows = sum_blocks(N, s.ratio, function(x) return sum_rows(k, pool, x) end)
    if s.topk then keys = sum_blocks(N, s.ratio, function(x) return sum_rows(nil, pool, x) end) end
  end
  if s.window > 0 then rows = rows + sum_min(s.window, N) end
  return keys, rows
end

-- Multiply-adds for one (query, row) pair, and the up-projections of one position, by order.
local function pair_cost(s, order)
  local H = s.get 'num_attention_heads'
  if s.form == 'heads' then
    local d_k = s.get 'head_dim'
    return H * (d_k + (s.get('v_head_dim', true) or d_k))
  elseif s.form == 'entry' then
    return H * 2 * s.get 'head_dim'
  end
  local rank, rope = s.get 'kv_lora_rank', s.get 'qk_rope_head_dim'
  if order == 'expand' then return H * (s.get 'qk_nope_head_dim' + rope + s.get 'v_head_dim') end
  return H * (2 * rank + rope)
end

-- Rows that the last T of N queries read in all, once each: the entries, and the window rows they reach.
local function rows_reached(c, N, T)
  local window = c.shape.window
  local reached = window > 0 and (T < N - window and T + window - 1 or N) or 0
  return exact(c.entries) + reached
end

-- Projections of `queries` queries over `positions` cached rows, with `entries` entries finished on the way. `only`: a
-- pattern of the names that count.
local function projections(s, order, queries, positions, entries, only)
  local sum = exact(0)
  for _, w in ipairs(weights.of(s)) do
    local size, times = exact(weights.size(w.shape)), queries
    if w.per == 'entry' then times = entries
    elseif w.per == 'up' then
      if order == 'expand' then times = positions
      elseif order == 'merged' then times = exact(0) end
    elseif not w.per then times = exact(0)
    elseif w.merged and order == 'merged' then size = exact(w.merged) end
    if only and not w.name:find(only) then times = exact(0) end
    sum = sum + size * times
  end
  return sum
end

local function add_parts(into, parts, n)
  for name, value in pairs(parts) do into[name] = (into[name] or exact(0)) + value * n end
end

-- flops.layout(result) -> { orders = {...}, decode = { [order] = parts }, prefill = ..., expand_wins =, evaluations = }
-- for a result of count.layout. parts: projections, attention, indexing, total. A layout without MLA has one
-- order, called 'plain'. expand_wins: the smallest number of queries, at the end of the N positions, for which
-- expanding once costs less than absorbing, or nil.
function flops.layout(result)
  local L, N, widths = result.layout, result.context, result.widths
  local latent
  for _, c in ipairs(result.classes) do latent = latent or c.shape.form == 'latent' and c end
  local out = { orders = latent and flops.orders or { 'plain' }, decode = {}, prefill = {} }
  for _, order in ipairs(out.orders) do
    local decode, prefill = {}, {}
    for _, c in ipairs(result.classes) do
      local s = c.shape
      local pair = pair_cost(s, order)
      local key = s.topk and s.get 'index_n_heads' * (s.index.channels + 1) or 0
      local rows = c.rows + c.window_rows
      local finished = s.owns and N % s.ratio == 0 and 1 or 0
      add_parts(decode, { projections = projections(s, order, exact(1), exact(rows), exact(finished)),
        attention = exact(pair) * rows, indexing = exact(key) * c.scored }, c.count)
      local keys_all, rows_all = prefill_visits(c, L, widths, N, result.access)
      add_parts(prefill, { projections = projections(s, order, exact(N), rows_reached(c, N, N), exact(c.entries)),
        attention = rows_all * pair, indexing = keys_all * key }, c.count)
    end
    for _, parts in ipairs { decode, prefill } do
      parts.total = parts.projections + parts.attention + parts.indexing
    end
    out.decode[order], out.prefill[order] = decode, prefill
  end

  if latent then
    -- Only the up-projections and the pairs differ; find the smallest T with expand(T) < absorb(T).
    local s = latent.shape
    local up = exact(s.get 'kv_lora_rank') * s.get 'num_attention_heads'
      * (s.get 'qk_nope_head_dim' + s.get 'v_head_dim')
    local _, all = prefill_visits(latent, L, widths, N, result.access)
    local function wins(T)
      local pairs_read = all
      if T < N then
        local _, before = prefill_visits(latent, L, widths, N - T, result.access)
        pairs_read = all - before
      end
      local expand = up * rows_reached(latent, N, T) + pairs_read * pair_cost(s, 'expand')
      return expand < up * T + pairs_read * pair_cost(s, 'absorb')
    end
    if wins(N) then
      local low, high = 1, N
      while low < high do
        local middle = low + (high - low) // 2
        if wins(middle) then high = middle else low = middle + 1 end
      end
      out.expand_wins = low
    end
  end

  -- (position, layer) evaluations of a prefill; with bounded replay the decoder runs on the window only.
  local cut = L.cut
  out.evaluations = { all = exact(N) * #L }
  if cut then
    local replay = 0
    for _, c in ipairs(result.classes) do replay = math.max(replay, c.shape.window) end
    replay = math.min(replay, N)
    out.evaluations.replay = exact(N) * cut + exact(replay) * (#L - cut)
    out.evaluations.replay_tokens = replay
  end
  return out
end

-- --- training -----------------------------------------------------------------------------------------
-- flops.step(m, batch, length, kl) -> the multiply-adds of one training step of the model m (kvlab.model), forward
-- and backward, on `batch` sequences of `length` tokens that all have targets. Here FFN and head count too.
--
-- Forward and backward of a product are three times the forward. What has less of a backward counts less: the input
-- of an indexer is detached (two times), and a score has a gradient only where the loss of indexers, `kl`, wants one:
-- 'selected' entries, or all 'visible' ones; nil: indexers only select. What finds that loss its teacher is not
-- counted, nor are embedding, optimiser and everything element-wise.
function flops.step(m, batch, length, kl)
  local L, widths, N = m.layout, m.widths, length
  local result = require('kvlab.count').layout(L:labelled { widths = widths }, { context = N, records = 'f32' })
  local sum = exact(0)
  for _, c in ipairs(result.classes) do
    local s = c.shape
    local keys, rows = prefill_visits(c, L, widths, N, 'gather')
    local all = projections(s, 'expand', exact(N), exact(N), exact(c.entries))
    local one = (all + rows * pair_cost(s, 'expand')) * 3
    if s.topk then
      local indexer = projections(s, 'expand', exact(N), exact(N), exact(c.entries), '^indexer%.')
      local learned = kl == 'visible' and keys or kl and rows - sum_min(s.window, N) or exact(0)
      one = one - indexer * (kl and 1 or 2) + (keys + learned * 2) * s.get 'index_n_heads' * (s.index.channels + 1)
    end
    sum = sum + one * c.count
  end
  local dense = m:head_matrix().size
  for _, names in ipairs(m.blocks) do
    for _, part in ipairs { 'gate', 'up', 'down' } do
      local matrix = m:weight(names[part])
      if matrix then dense = dense + matrix.size end
    end
  end
  return (sum + exact(dense) * N * 3) * batch
end

return flops
