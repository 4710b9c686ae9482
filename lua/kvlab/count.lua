-- count.lua: the bytes that a layout's KV cache stores, and the bytes that one decode step reads.
--
-- Conventions (docs/counting.md has them with reasons): the step at N is the query at position N-1 with N
-- tokens cached, its own included. An owner with ratio m holds floor(N / m) entries. `all` reads them, `topk`
-- min(k, candidates), the window min(W, N) rows. Scoring reads every visible key, or inside a pool the pool's.
-- A shared cache is counted once for each layer that reads it; heads and the two roles of a row are not.
--
-- All results are exact (kvlab.exact). Layers that are alike are counted once and multiplied, so a million
-- layers cost no more than their distinct ones.
local exact = require 'kvlab.exact'
local layout = require 'kvlab.layout'
local opts = require 'kvlab.options'
local presets = require 'kvlab.presets'
local shape = require 'kvlab.shape'
local width_rules = require 'kvlab.widths'

local count = {}

-- How many candidates a pool of `blocks` blocks of `block` entries holds when `entries` are visible: the block
-- with the newest entry is always in and counts with the entries it has (V4.1 report 2.4; semantics 6.5).
function count.pool_size(entries, pool)
  local blocks = -(-entries // pool.block)
  if blocks <= pool.blocks then return entries end
  local newest = entries - (blocks - 1) * pool.block
  return (pool.blocks - 1) * pool.block + newest
end

-- What one query that sees `entries` finished entries scores and reads: keys, rows. `chooser` is the shape of
-- the layer that selected (the layer itself or the one it shares with).
function count.visits(s, chooser, entries, access)
  if not s.owner then return 0, 0 end
  local candidates = chooser.pool and count.pool_size(entries, chooser.pool) or entries
  local rows = chooser.topk and math.min(chooser.topk, candidates) or entries
  local keys = s.topk and candidates or 0
  if access == 'mask' then
    rows = entries
    keys = s.topk and entries or 0
  end
  return keys, rows
end

-- Bytes of float32 that a compressor must keep to go on at N, the smallest that can resume: candidate and
-- score of the open block's rows, and, overlapping, the first halves of the last finished block
-- (semantics.md 5.8, 6.1). `width` is the entry's.
local function state_bytes(width, l, open, finished)
  if l.ratio == 1 then return 0 end
  local row = 2 * 4 * width * (l.overlap and 2 or 1)
  local bytes = open * row
  if l.overlap and finished then bytes = bytes + l.ratio * 2 * 4 * width end
  return bytes
end

local function layer_state(s, open, finished)
  local bytes = state_bytes(s.main.channels, s.layer, open, finished)
  if s.layer.keys == 'compressor' then
    bytes = bytes + state_bytes(s.index.channels, s.layer, open, finished)
  end
  return bytes
end

-- The numbers of one layer; every bytes field is an integer times a count that fits, or exact.
local function count_layer(L, i, widths, asked, deployed, N, access)
  local s = shape.of(L, i, widths)
  local c = { index = i, shape = s, slope = exact(0), store = exact(0), fixed = exact(0), filled = exact(0),
    state = exact(0), state_most = exact(0), selected = exact(0), window = exact(0), keys = exact(0),
    scored = 0, rows = 0, entries = 0, window_rows = math.min(s.window, N) }
  if s.owner then
    local o = s.owns and s or shape.of(L, s.owner, widths)
    c.entries = N // s.ratio
    c.main_plan, c.main_record = shape.plan(o, 'main', asked, deployed)
    if o.index then c.index_plan, c.index_record = shape.plan(o, 'index', asked, deployed) end
    local chooser = s.selector == i and s or shape.of(L, s.selector, widths)
    c.scored, c.rows = count.visits(s, chooser, c.entries, access)
    c.selected = exact(c.rows) * c.main_plan.bytes
    if c.scored > 0 then c.keys = exact(c.scored) * c.index_plan.bytes end
    if s.owns then
      local per_entry = c.main_plan.bytes + (c.index_plan and c.index_plan.bytes or 0)
      c.slope = exact(per_entry, s.ratio)
      c.store = exact(c.entries) * per_entry
      c.state = exact(layer_state(s, N % s.ratio, c.entries > 0))
      c.state_most = exact(layer_state(s, s.ratio - 1, true))
    end
  end
  if s.window > 0 then
    c.window_plan, c.window_record = shape.plan(s, 'window', asked, deployed)
    c.fixed = exact(s.window) * c.window_plan.bytes
    c.filled = exact(c.window_rows) * c.window_plan.bytes
    c.window = c.filled
  end
  return c
end

local OPTIONS = { 'context', 'records', 'widths', 'access' }

local function context_of(value)
  if value == nil then return 131072 end
  local n = math.type(value) and math.tointeger(value)
  if not n or n < 1 then
    error(('context = %s: expected a whole number of tokens from 1 to 2^63 - 1'):format(tostring(value)), 0)
  end
  return n
end

-- count.widths(L, changes) -> the widths to count with, and whether they are borrowed from v4.1-flash because
-- the layout has none of its own.
function count.widths(L, changes)
  local base, borrowed = L.widths, false
  if not base then base, borrowed = presets.load('v4.1-flash').widths, true end
  return width_rules.merge(width_rules.merge(nil, base), changes), borrowed
end

-- count.model_widths(L, given) -> the same for what runs or draws a layout: widths with a hidden_size are all of a
-- model's, not changes to those of v4.1-flash.
function count.model_widths(L, given)
  if not L.widths and type(given) == 'table' and given.hidden_size then return width_rules.merge(nil, given), false end
  return count.widths(L, given)
end

local by_class = setmetatable({}, { __mode = 'k' }) -- of a result: the numbers of each class of layers

-- count.layout(L, options) -> the result (docs/counting.md). options: context (131072), records (as in
-- shape.asked), widths (changes), access ('gather' or 'mask').
function count.layout(L, options)
  L = layout.of(L, 'count')
  options = options or {}
  opts.check(options, OPTIONS, 'count', 'option')
  local N = context_of(options.context)
  local access = options.access or 'gather'
  if access ~= 'gather' and access ~= 'mask' then
    error(("access = %s: expected gather or mask"):format(tostring(access)), 0)
  end
  local widths, borrowed = count.widths(L, options.widths)
  local deployed, asked = shape.deployed(L, options.records), shape.asked(options.records)

  local result = { layout = L, name = L.name or tostring(L), context = N, access = access, widths = widths,
    borrowed_widths = borrowed, classes = {} }
  local of_class = {}
  by_class[result] = of_class
  local store = { bytes_per_token = exact(0), fixed_bytes = exact(0), state_bytes = exact(0),
    state_bytes_most = exact(0), total_bytes = exact(0) }
  local read = { selected_bytes = exact(0), window_bytes = exact(0), index_bytes = exact(0) }
  for _, entry in ipairs((layout.classes(L))) do
    local c = count_layer(L, entry.first, widths, asked, deployed, N, access)
    local n = entry.count
    c.count = n
    result.classes[#result.classes + 1] = c
    of_class[entry] = c
    store.bytes_per_token = store.bytes_per_token + c.slope * n
    store.fixed_bytes = store.fixed_bytes + c.fixed * n
    store.state_bytes = store.state_bytes + c.state * n
    store.state_bytes_most = store.state_bytes_most + c.state_most * n
    store.total_bytes = store.total_bytes + (c.store + c.filled) * n
    read.selected_bytes = read.selected_bytes + c.selected * n
    read.window_bytes = read.window_bytes + c.window * n
    read.index_bytes = read.index_bytes + c.keys * n
  end
  read.kv_bytes = read.selected_bytes + read.window_bytes
  read.total_bytes = read.kv_bytes + read.index_bytes
  result.store, result.read = store, read
  if not store.bytes_per_token:is_zero() then
    result.crossover_tokens = store.fixed_bytes / store.bytes_per_token
  end
  return result
end

-- count.mha_bytes_per_token() -> what the article's hypothetical MHA adds per token.
local mha_bytes
function count.mha_bytes_per_token()
  mha_bytes = mha_bytes or count.layout(presets.load 'mha').store.bytes_per_token
  return mha_bytes
end

-- count.layer(result, i) -> the numbers of layer i (1-based).
function count.layer(result, i)
  local _, class_of = layout.classes(result.layout)
  return by_class[result][class_of[i]]
end

-- The four factors of the article for one result: slope = width x layers x bytes / ratio, exactly.
--   width   values of one token-layer (entry and key), averaged over the layers that store
--   layers  layers that store for the whole context
--   bytes   bytes for one value, scales and padding included
--   ratio   tokens per stored value
function count.factors(result)
  local layers, values, kept = 0, exact(0), exact(0)
  for _, c in ipairs(result.classes) do
    if c.shape.owns then
      local width = c.shape.main.channels + (c.shape.index and c.shape.index.channels or 0)
      layers = layers + c.count
      values = values + exact(width) * c.count
      kept = kept + exact(width, c.shape.ratio) * c.count
    end
  end
  if layers == 0 then return nil end
  return { width = values / layers, layers = exact(layers), bytes = result.store.bytes_per_token / kept,
    ratio = values / kept }
end

return count
