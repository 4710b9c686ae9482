-- Multiply-adds: parameters against the released checkpoints, sums of a prefill against loops over its queries,
-- the three orders of MLA against formulas written by hand.
local lu = require 'luaunit'
local check = require 'check'
local kv = require 'kvlab'
local simulation = require 'kv_simulation'
local weights = require 'kvlab.weights'

-- --- parameters -----------------------------------------------------------------------------------------
TestParameters = {}

-- Attention parameters per layer in millions, computed from the tensor shapes of the released checkpoints.
local MILLIONS = {
  { 'v2', 'mla', 149.23 }, { 'v2-lite', 'mla', 13.76 }, { 'v3', 'mla', 187.11 },
  { 'v4-flash', 'swa', 106.96 }, { 'v4-flash', 'hca', 111.22 }, { 'v4-flash', 'csa', 126.10 },
  { 'v4-pro', 'hca', 307.30 }, { 'v4-pro', 'csa', 331.29 },
  { 'v4.1-flash', 'swa', 126.62 }, { 'v4.1-flash', 'reuse', 126.62 }, { 'v4.1-flash', 'reindex', 132.02 },
  { 'v4.1-flash', 'full/1{pool=2048x8}', 134.71 }, { 'v4.1-flash', 'full/2', 137.33 },
}

local function parameters(preset, layer)
  for _, c in ipairs(kv.count(kv.preset(preset)).classes) do
    if tostring(c.shape.layer) == layer then return weights.count(c.shape) end
  end
  error('no such layer: ' .. layer)
end

function TestParameters:test_of_released_models()
  for _, row in ipairs(MILLIONS) do
    lu.assertEquals(('%.2f'):format(parameters(row[1], row[2]) / 1e6), ('%.2f'):format(row[3]), row[1] .. ' ' .. row[2])
  end
  local indexer = parameters('v3.2', 'dsa') - parameters('v3', 'mla')
  lu.assertEquals(('%.2f'):format(indexer / 1e6), '13.96')
  lu.assertEquals(indexer, 8192 * 1536 + 128 * 7168 + 128 + 128 + 64 * 7168)
end

function TestParameters:test_article_mha()
  lu.assertEquals(parameters('mha', 'mha'), 4 * 5120 * 128 * 128)
end

-- --- the prefill, query by query --------------------------------------------------------------------------
TestPrefill = {}

local W = {
  hidden_size = 96, num_attention_heads = 8, num_key_value_heads = 2, head_dim = 64, qk_rope_head_dim = 16,
  qk_nope_head_dim = 24, v_head_dim = 40, kv_lora_rank = 32, q_lora_rank = 48, index_n_heads = 3, index_head_dim = 32,
  index_topk = 5, sliding_window = 6, o_groups = 4, o_lora_rank = 20,
}
local D, H, c, dI, HI = 96, 8, 64, 32, 3

-- Multiply-adds of the projections of one token, and of one finished entry, written from the definitions.
local QUERY_V4 = D * 48 + 48 * H * c + H * c // 4 * 4 * 20 + 4 * 20 * D + D * c -- query, output, local KV
local INDEX_QUERY = 48 * HI * dI + D * HI
local QUERY_MLA = D * 48 + 48 * H * (24 + 16) + H * 40 * D
local LATENT = D * (32 + 16)

-- text, simulated layers, per layer: projections of a token, of an entry, cost of a row.
local function case(text, layers)
  return { text = text, layers = layers }
end
local V4_ROW = H * 2 * c
local CASES = {
  case('mha', { { from = 1, by = 1, ratio = 1, window = 0, main = 1, token = D * H * (64 + 64 + 40)
    + H * 40 * D, row_cost = H * (64 + 40) } }),
  case('gqa', { { from = 1, by = 1, ratio = 1, window = 0, main = 1,
    token = D * H * 64 + D * 2 * (64 + 40) + H * 40 * D,
    row_cost = H * (64 + 40) } }),
  case('swa{form=heads,window=3}', { { window = 3, row = 1, token = D * H * 64 + D * 2 * (64 + 40) + H * 40 * D,
    row_cost = H * (64 + 40) } }),
  case('swa', { { window = 6, row = 1, token = QUERY_V4, row_cost = V4_ROW } }),
  case('hca/7', { { from = 1, by = 1, ratio = 7, window = 6, main = 1, row = 1, width = c, token = QUERY_V4 + 2 * D * c,
    row_cost = V4_ROW } }),
  case('csa', { { from = 1, by = 1, ratio = 4, overlap = true, window = 6, main = 1, index = 1, row = 1, width = c,
    index_width = dI, k = 5, scores = true, row_cost = V4_ROW,
    token = QUERY_V4 + 2 * D * 2 * c + INDEX_QUERY + 2 * D * 2 * dI } }),
  case('full/2{topk=3} reuse reindex{topk=9} reuse{window=none}', {
    { from = 1, by = 1, ratio = 2, window = 6, main = 1, index = 1, row = 1, width = c, k = 3, scores = true,
      row_cost = V4_ROW, token = QUERY_V4 + 2 * D * c + INDEX_QUERY, entry = c * dI },
    { from = 1, by = 1, window = 6, row = 1, row_cost = V4_ROW, token = QUERY_V4 },
    { from = 1, by = 3, window = 6, row = 1, k = 9, scores = true, row_cost = V4_ROW, token = QUERY_V4 + INDEX_QUERY },
    { from = 1, by = 3, window = 0, row_cost = V4_ROW, token = QUERY_V4 - D * c } }),
  case('swa | full{pool=3x4,topk=7} reindex reuse reindex{pool=none,topk=11}', {
    { window = 6, row = 1, token = QUERY_V4, row_cost = V4_ROW },
    { from = 2, by = 2, ratio = 1, window = 6, main = 1, index = 1, row = 1, width = c, k = 7, scores = true,
      row_cost = V4_ROW, token = QUERY_V4 + D * c + INDEX_QUERY, entry = c * dI },
    { from = 2, by = 3, window = 6, row = 1, k = 5, pool = { 3, 4 }, scores = true, row_cost = V4_ROW,
      token = QUERY_V4 + INDEX_QUERY },
    { from = 2, by = 3, window = 6, row = 1, row_cost = V4_ROW, token = QUERY_V4 },
    { from = 2, by = 5, window = 6, row = 1, k = 11, scores = true, row_cost = V4_ROW,
      token = QUERY_V4 + INDEX_QUERY } }),
  case('full/3{pool=2x3} reindex{topk=5} reindex{topk=40}', {
    { from = 1, by = 1, ratio = 3, window = 6, main = 1, index = 1, row = 1, width = c, k = 5, scores = true,
      row_cost = V4_ROW, token = QUERY_V4 + 2 * D * c + INDEX_QUERY, entry = c * dI },
    { from = 1, by = 2, window = 6, row = 1, k = 5, pool = { 2, 3 }, scores = true, row_cost = V4_ROW,
      token = QUERY_V4 + INDEX_QUERY },
    { from = 1, by = 3, window = 6, row = 1, k = 40, pool = { 2, 3 }, scores = true, row_cost = V4_ROW,
      token = QUERY_V4 + INDEX_QUERY } }),
}

-- Sums over the queries 1 .. N, each looked at by itself.
local function by_hand(layers, N, masked)
  local sum = { projections = 0, attention = 0, indexing = 0 }
  local before = {}
  for n = 1, N do
    local held = simulation.feed(layers, n)
    local visits = simulation.sets(layers, held, masked)
    for i, l in ipairs(layers) do
      sum.projections = sum.projections + l.token
      if l.from == i and held[i].entries > (before[i] or 0) then
        sum.projections = sum.projections + (l.entry or 0)
        before[i] = held[i].entries
      end
      sum.attention = sum.attention + (visits[i].rows + held[i].filled) * l.row_cost
      sum.indexing = sum.indexing + visits[i].keys * HI * (dI + 1)
    end
  end
  return sum
end

function TestPrefill:test_against_loops()
  math.randomseed(3)
  for _, row in ipairs(CASES) do
    for _, N in ipairs { 1, 2, 7, 29, 64 } do
      for _, access in ipairs { 'gather', 'mask' } do
        local result = kv.count(kv.layout(row.text):labelled { widths = W }, { context = N, access = access })
        local f = kv.flops(result)
        lu.assertEquals(f.orders, { 'plain' })
        local all, before = by_hand(row.layers, N, access == 'mask'), by_hand(row.layers, N - 1, access == 'mask')
        for part, value in pairs(all) do
          local where = ('%s at %d, %s: %s'):format(row.text, N, access, part)
          lu.assertEquals(tostring(f.prefill.plain[part]), tostring(value), where)
          lu.assertEquals(tostring(f.decode.plain[part]), tostring(value - before[part]), where .. ' of a step')
        end
        lu.assertEquals(tostring(f.prefill.plain.total),
          tostring(all.projections + all.attention + all.indexing))
      end
    end
  end
end

-- --- MLA ------------------------------------------------------------------------------------------------
TestMLA = {}

local UP = 32 * H * (24 + 40) -- expanding one latent into the keys and values of every head
local ABSORBED, EXPANDED = H * (2 * 32 + 16), H * (24 + 16 + 40)

-- Costs of T queries over `rows` expanded rows and `pairs` (query, row) pairs, by order.
local function mla(T, rows, pairs)
  local shared = T * (QUERY_MLA + LATENT)
  return {
    expand = { projections = shared + rows * UP, attention = pairs * EXPANDED },
    absorb = { projections = shared + T * UP, attention = pairs * ABSORBED },
    -- Merged weights: from the query latent to H latents, and from H latents to the hidden state.
    merged = { projections = T * (D * 48 + 48 * H * 16 + 48 * H * 32 + LATENT + H * 32 * D),
      attention = pairs * ABSORBED },
  }
end

local function same(f, phase, want, where)
  for order, parts in pairs(want) do
    for part, value in pairs(parts) do
      lu.assertEquals(tostring(f[phase][order][part]), tostring(value), ('%s %s %s %s'):format(where, phase, order,
        part))
    end
  end
end

function TestMLA:test_three_orders()
  for _, N in ipairs { 1, 2, 33 } do
    local f = kv.flops(kv.count(kv.layout 'mla':labelled { widths = W }, { context = N }))
    lu.assertEquals(f.orders, { 'expand', 'absorb', 'merged' })
    same(f, 'decode', mla(1, N, N), N)
    same(f, 'prefill', mla(N, N, N * (N + 1) // 2), N)
  end
  -- The published V2 numbers: absorbing makes the dot product four times as long (512 for 128).
  local f = kv.flops(kv.count(kv.preset 'v2', { context = 1000 }))
  lu.assertEquals(tostring(f.decode.absorb.attention), tostring(60 * 1000 * 128 * (512 + 64 + 512)))
  lu.assertEquals(tostring(f.decode.expand.attention), tostring(60 * 1000 * 128 * (128 + 64 + 128)))
  lu.assertEquals(tostring(f.decode.expand.projections - f.decode.absorb.projections),
    tostring(60 * 999 * 128 * 512 * (128 + 128)))
end

-- A latent that is compressed, or has a window beside it, expands what it reads and nothing else.
function TestMLA:test_compressed_and_windowed_latents()
  local N = 50
  local f = kv.flops(kv.count(kv.layout 'mla/4{window=9}':labelled { widths = W }, { context = N }))
  local pairs_read = 0
  for n = 1, N do pairs_read = pairs_read + n // 4 + math.min(9, n) end
  local gate, window = N * D * 48, N * LATENT
  local want = mla(N, N // 4 + N, pairs_read)
  for _, parts in pairs(want) do parts.projections = parts.projections + gate + window end
  same(f, 'prefill', want, 'mla/4')
  lu.assertEquals(tostring(f.decode.expand.projections - f.decode.absorb.projections), tostring(UP * (50 // 4 + 9 - 1)))
end

function TestMLA:test_dsa_reads_what_it_selects()
  local f = kv.flops(kv.count(kv.layout 'dsa':labelled { widths = W }, { context = 40 }))
  local index = 48 * HI * dI + D * HI + D * dI
  local want = mla(1, 5, 5)
  for _, parts in pairs(want) do parts.projections = parts.projections + index end
  same(f, 'decode', want, 'dsa')
  lu.assertEquals(tostring(f.decode.absorb.indexing), tostring(40 * HI * (dI + 1)))
end

-- From how many queries on, at the end of N positions, does expanding every row once cost less?
function TestMLA:test_when_expanding_wins()
  local wide = {}
  for name, value in pairs(W) do wide[name] = value end
  wide.kv_lora_rank = 96 -- absorbing has to pay for a long latent
  for _, row in ipairs { { 'mla', W, 1 }, { 'mla', wide, 1 }, { 'mla/3', wide, 3 }, { 'mla{window=4}', wide, 1, 4 } } do
    local widths, ratio, window = row[2], row[3], row[4] or 0
    local rank = widths.kv_lora_rank
    local up, absorbed = rank * H * (24 + 40), H * (2 * rank + 16)
    for N = 1, 60 do
      local first
      for T = N, 1, -1 do
        local pairs_read, rows = 0, N // ratio
        for n = N - T + 1, N do pairs_read = pairs_read + n // ratio + math.min(window, n) end
        if window > 0 then rows = rows + math.min(N, T + window - 1) end
        if rows * up + pairs_read * EXPANDED < T * up + pairs_read * absorbed then first = T end
      end
      local f = kv.flops(kv.count(kv.layout(row[1]):labelled { widths = widths }, { context = N }))
      lu.assertEquals(f.expand_wins, first, ('%s, rank %d at %d'):format(row[1], rank, N))
    end
  end
end

function TestMLA:test_bounded_replay()
  local f = kv.flops(kv.count(kv.preset 'v4.1-flash', { context = 100000 }))
  lu.assertEquals(tostring(f.evaluations.all), '4000000')
  lu.assertEquals(tostring(f.evaluations.replay), tostring(20 * 100000 + 20 * 128))
  lu.assertNil(kv.flops(kv.count(kv.preset 'v4-flash')).evaluations.replay)
  f = kv.flops(kv.count(kv.preset 'v4.1-flash', { context = 100 }))
  lu.assertEquals(tostring(f.evaluations.replay), '4000')
end

-- --- a training step ------------------------------------------------------------------------------------
TestStep = {}

local flops = require 'kvlab.flops'
local S = { hidden_size = 16, num_attention_heads = 4, head_dim = 8, index_n_heads = 2, index_head_dim = 8,
  index_topk = 3, sliding_window = 5, vocab_size = 20, intermediate_size = 24, max_position_embeddings = 16 }

-- nanoGPT's block: 4 D^2 for attention, two matrices of the MLP, the tied head, and the pairs below the diagonal.
function TestStep:test_dense()
  local m = kv.model('mha*2', S, { tied = true, norm = 'layer', mlp = 'gelu', positions = 'learned' })
  local T = 11
  local layer = T * (4 * 16 * 32 + 2 * 16 * 24) + T * (T + 1) // 2 * 4 * 2 * 8
  lu.assertEquals(flops.step(m, 3, T):tonumber(), 3 * 3 * (2 * layer + T * 20 * 16))
  local untied = kv.model('mha*2', S)
  lu.assertEquals(flops.step(untied, 1, T):tonumber(), 3 * (2 * (layer + T * 16 * 24) + T * 20 * 16))
end

-- A selecting layer, query by query: scores of all visible entries forward, of the supervised ones backward; its
-- indexer has no input to give a gradient to.
function TestStep:test_selection()
  local m = kv.model('[full/2 reuse]', S, { tied = true })
  local T, seen, chosen, rows = 11, 0, 0, 0
  for t = 1, T do
    seen, chosen = seen + t // 2, chosen + math.min(3, t // 2)
    rows = rows + math.min(3, t // 2) + math.min(5, t)
  end
  local attention = 2 * (T * (16 * 32 + 16 * 8 + 32 * 16) + rows * 4 * 2 * 8) + T * 2 * 16 * 8 -- and the compressor
  local dense = attention + 2 * T * 3 * 16 * 24 + T * 20 * 16
  local indexer = T * (16 * 2 * 8 + 16 * 2) + T // 2 * 8 * 8
  local score = 2 * (8 + 1)
  for kl, want in pairs { selected = 2 * indexer + (seen + 2 * chosen) * score,
    visible = 2 * indexer + 3 * seen * score, none = indexer + seen * score } do
    lu.assertEquals(flops.step(m, 1, T, kl ~= 'none' and kl or nil):tonumber(), 3 * dense + want, kl)
  end
end

check.main()
