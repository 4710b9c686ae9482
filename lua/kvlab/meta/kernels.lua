---@meta
local kv, RopeTable, Compressor = {}, {}, {}

---@within kv

--- RMSNorm over the last dimension.
---
--- y = x / sqrt(mean(x^2) + eps) * weight. x is float32 of any shape {..., n}; the result has the same shape. Without a weight it is not scaled.
--- Errors: a weight that is not {n}; x is not float32.
--- Source: query heads of V4 are normed without a weight, everything else with one (DeepSeek-V4 report 2.3).
--- Example:
---   kv.rms_norm(kv.tensor { 3, 4 }, nil, 0) * kv.tensor { 12.5 ^ 0.5 }  --> float32 {2} {3, 4}
---@param x Tensor
---@param weight? Tensor  float32 {n}
---@param eps? number  1e-6 when missing
---@return Tensor y
function kv.rms_norm(x, weight, eps) end

--- LayerNorm over the last dimension.
---
--- y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias. The variance is that of the population (divided by n). Shapes as for kv.rms_norm.
--- Errors: a weight or bias that is not {n}; x is not float32.
--- Source: index keys of DeepSeek-V3.2 (report 2.1) are normed so.
--- Example:
---   kv.layer_norm(kv.tensor { 1, 3 }, nil, nil, 0)  --> float32 {2} {-1, 1}
---@param x Tensor
---@param weight? Tensor  float32 {n}
---@param bias? Tensor  float32 {n}
---@param eps? number  1e-6 when missing
---@return Tensor y
function kv.layer_norm(x, weight, bias, eps) end

--- Walsh-Hadamard rotation of the last dimension, Sylvester order, scaled to keep lengths. It is its own inverse.
---
--- Errors: a last dimension that is no power of two; x is not float32.
--- Source: index queries and keys of V3.2 and V4 are rotated before they are quantised (DeepSeek-V3.2 inference code).
--- Example:
---   kv.hadamard(kv.tensor { 1, 1, 1, 1 })  --> float32 {4} {2, 0, 0, 0}
---@param x Tensor
---@return Tensor y
function kv.hadamard(x) end

--- The angles of a rotary embedding, by which pairs of channels turn with every position.
---
--- Pair i, from 0, of n channels turns by theta^(-2i/n) radians. Options: channels = n (how many rotate); theta = 10000; yarn = { factor =, context =, beta_fast = 32, beta_slow = 1 }.
--- YaRN divides the frequencies that turn less than beta_slow times within `context` positions by factor, leaves those
--- above beta_fast, and goes linearly in between. It has no magnitude here: MLA's goes into the softmax scale.
--- Errors: an odd number of channels; theta not above 1; yarn without factor or context.
--- Source: RoFormer (RoPE); YaRN as DeepSeek's inference code applies it.
--- Example:
---   kv.rope_freqs { channels = 4 }:frequencies()[2]  --> 0.01
---   kv.rope_freqs { channels = 4, yarn = { factor = 4, context = 4 } }:frequencies()[2]  --> 0.0025
---@param options table
---@return RopeTable freqs
function kv.rope_freqs(options) end

--- Rotates pairs of channels by position.
---
--- x is float32 {B, T, width} or {B, T, H, width}; the result has the same shape. Positions count from 0. Options:
---   pos0 = 0        position of the first token; token t is at pos0 + t * stride
---   stride = 1      of compressed entries the ratio: an entry lies at its first token
---   positions       a list with the position of each batch item, instead of pos0; T must be 1
---   inverse = false turns back
---   first = false   the first channels rotate instead of the last; the others pass
---   half_split = false  pairs are (i, i + n/2) instead of (2i, 2i + 1)
--- Angles are computed in double: in float32 they would be off by 1e-2 at position 131,072.
--- Errors: a table with more channels than x; positions that are not whole or below 0; an unknown option.
--- Source: adjacent pairs MLA, V4, V4.1; half-split pairs in the indexer of V3.2.
--- Example:
---   kv.rope(kv.tensor { { { 1, 0 } } }, kv.rope_freqs { channels = 2 }):flatten()  --> float32 {2} {1, 0}
---   kv.rope(kv.tensor { { { 1, 0 } } }, kv.rope_freqs { channels = 2 }, { pos0 = 1 }):flatten()  --> float32 {2} {0.5403, 0.84147}
---@param x Tensor
---@param freqs RopeTable  kv.rope_freqs
---@param options? table
---@return Tensor y
function kv.rope(x, freqs, options) end

--- Attention, for every query one softmax over the union of what it sees in several sources.
---
--- Options:
---   q        float32 {B, T, H, key width}; the query of token t is at position pos0 + t
---   sources  a list of at most 8 sources; kv heads divide H, head h reads kv head h // (H / kv heads), from 0
---   sink     float32 {H}: e^sink joins the denominator
---   scale    1; scores are scale * q . key
---   pos0     0
---   lse      true: also returns the logarithm of each denominator
---   value_width  needed only when sources is empty; the result is then 0
---
--- A source is a table. Where its rows are, one of
---   rows     float32 {B, S, channels}, with key = { first, last }, value = { first, last }: columns from 1, the last
---            included. They may be the same columns (K = V entries) or overlap (MLA: key all 576, value the first 512).
---            kv_heads = 1: the columns of a head are 1/kv_heads of them, heads side by side.
---   table    a Table of a pool, or a list with one for each batch item, with key, value and kv_heads as above, kind =
---            'selected' or 'window' and counters = Counters: rows are decoded as they are read, and counted there
---   key_rows, value_rows  float32 {B, S, kv heads, width}: keys and values apart
--- and which rows query t, at position p, sees:
---   see = 'causal' (the rule when missing)  rows of positions <= p; row s is position pos0 + s, pos0 = 0
---   see = 'window', window = n  the positions p - n + 1 to p
---   see = 'blocks', ratio = m   entry b, of m tokens, iff b < (p + 1) // m
---   see = 'list', list = ids    the rows that int32 ids {B, T, k} name, from 0; -1 names none, a row named twice counts twice
---   see = 'all'                 every row
--- A query that sees nothing gives zeros. docs/attention.md writes every kind of layer as such a call.
--- Errors: shapes that do not fit each other; columns or ids without a row; an unknown option; interrupted.
--- Source: sink, DeepSeek-V4 report 2.3.3; visibility, V4 report 2.3 and V4.1 report 2.3.
--- Example:
---   kv.attend { q = kv.zeros(1, 1, 1, 2), sources = { { rows = kv.filled({ 1, 1, 2 }, 3), key = { 1, 2 }, value = { 1, 2 } } } }:flatten()  --> float32 {2} {3, 3}
---   kv.attend { q = kv.zeros(1, 1, 1, 2), sink = kv.zeros(1), sources = { { rows = kv.filled({ 1, 1, 2 }, 3), key = { 1, 2 }, value = { 1, 2 } } } }:flatten()  --> float32 {2} {1.5, 1.5}
---   select(2, kv.attend { q = kv.zeros(1, 2, 1, 1), lse = true, sources = { { rows = kv.zeros(1, 2, 1), key = { 1, 1 }, value = { 1, 1 } } } }):exp():flatten()  --> float32 {2} {1, 2}
---@param options table
---@return Tensor out  float32 {B, T, H, value width}
---@return Tensor? lse  float32 {B, T, H}
function kv.attend(options) end

--- The lightning indexer, which scores the keys of entries for every query and selects.
---
--- The score of entry s for query t is the sum over index heads j of w[t, j] * max(0, q[t, j] . key[s]); only entries
--- that query t sees are scored: s < (p + 1) // ratio, p = pos0 + t. The larger score comes first, of equal ones the
--- lower index; -inf and NaN are never taken. Options:
---   q        float32 {B, T, heads, width}
---   w        float32 {B, T, heads}, all constant factors included
---   keys     { rows = float32 {B, S, width} } or { table =, kind = 'index', counters = } as in kv.attend
---   pos0 = 0, ratio = 1
---   k        selects the best k entries of each query: top
---   build    { blocks =, block = } makes a candidate pool: the `blocks` best blocks of `block` entries, a block as good as
---            its best entry, the block of the newest entry that is seen always among them
---   pool     int32 {B, T, n}: only its entries are scored, -1 is none
---   scores   true: also gives the scores
--- The result holds what was asked for: top, int32 {B, T, min(k, S)}, and pool, int32 {B, T, entries}, ids from 0,
--- ascending, filled up with -1; scores, float32 {B, T, S}, -inf for what is not scored.
--- Errors: shapes that do not fit each other; pool ids without an entry; an unknown option; interrupted.
--- Source: DeepSeek-V3.2 report 2.1; candidate pool, DeepSeek-V4.1 report 2.3.
--- Example:
---   kv.index { q = kv.ones(1, 3, 1, 1), w = kv.ones(1, 3, 1), keys = { rows = kv.tensor { { { 1 }, { 3 }, { 2 } } } }, k = 1 }.top:flatten()  --> int32 {3} {0, 1, 1}
---   kv.index { q = kv.ones(1, 1, 1, 1), w = kv.ones(1, 1, 1), pos0 = 5, ratio = 2, keys = { rows = kv.tensor { { { 1 }, { 3 }, { 2 }, { 9 } } } }, k = 2 }.top:flatten()  --> int32 {2} {1, 2}
---   kv.index { q = kv.ones(1, 1, 1, 1), w = kv.ones(1, 1, 1), pos0 = 4, keys = { rows = kv.tensor { { { 1 }, { 9 }, { 2 }, { 3 }, { 0 } } } }, build = { blocks = 2, block = 2 } }.pool:flatten()  --> int32 {4} {0, 1, 4, -1}
---@param options table
---@return table result
function kv.index(options) end

--- A compressor, which pools `ratio` tokens into one entry, for a batch of sequences that go in step.
---
--- Options:
---   ratio    m, tokens to an entry
---   width    channels of an entry
---   overlap  false. true: an entry pools the tokens of its block and of the one before; a row then has 2 width columns,
---            the first half for the entry after its own, the second half for its own
---   bias     float32 {m, row}, added to the scores of the token at each place in its block
---   rollback 0: tokens that can be taken back
---   batch    1
--- Errors: ratio or width missing or below 1; a bias of another shape; an unknown option.
--- Source: DeepSeek-V4 report 2.3 (overlapping and not), V4.1 report 2.3.
--- Example:
---   kv.compressor { ratio = 4, width = 8 }  --> kvlab.Compressor: 4 tokens to entries of 8 channels, 0 tokens so far
---@param options table
---@return Compressor compressor
function kv.compressor(options) end

--- The angles of a rotary embedding, made by kv.rope_freqs and used by kv.rope.
---@within RopeTable

--- The angle that one position adds, in radians, for each pair of channels.
--- Example:
---   #kv.rope_freqs { channels = 8 }:frequencies()  --> 4
---@return table frequencies  a list of numbers
function RopeTable:frequencies() end

--- Pools tokens into entries as they come, in chunks of any size; the entries are the same, bit by bit, whatever
--- the chunks.
---
--- For every channel an entry is the sum of softmax(scores + bias) * candidates over its tokens. Between tokens it
--- remembers the rows of the open block (and of the block before, when overlapping) in float32.
---@within Compressor

--- Takes the next tokens and returns the entries that they complete.
---
--- A row has `width` columns, overlapping 2 width. Without scores all are 0, so that an entry is the mean; with ratio 1
--- and no scores it is the token itself.
--- Errors: shapes that do not fit.
--- Example:
---   kv.compressor { ratio = 2, width = 1 }:push(kv.tensor { { { 1 }, { 3 }, { 9 } } }):item()  --> 2.0
---@param candidates Tensor  float32 {batch, T, row}
---@param scores? Tensor  the same shape
---@return Tensor entries  float32 {batch, completed, width}
function Compressor:push(candidates, scores) end

--- Takes back the last n tokens.
---
--- Errors: n goes further than `rollback` below the most tokens there ever were.
--- Example:
---   pcall(function() kv.compressor { ratio = 2, width = 1 }:rollback(1) end)  --> false
---@param n integer
---@return nil
function Compressor:rollback(n) end

--- An independent copy, to go on in two ways.
--- Example:
---   kv.compressor { ratio = 2, width = 1 }:copy():position()  --> 0
---@return Compressor copy
function Compressor:copy() end

--- Tokens taken so far; the entries so far are that // ratio.
--- Example:
---   kv.compressor { ratio = 2, width = 1 }:position()  --> 0
---@return integer tokens
function Compressor:position() end

--- Bytes of the rows to remember at its position, as kv.count counts state_bytes; what rollback adds is not in it.
---
--- Candidates and scores of the tokens of the open block, overlapping also half a row of each token of the one before.
--- Example:
---   kv.compressor { ratio = 2, width = 8 }:state_bytes()  --> 0
---@return integer bytes
function Compressor:state_bytes() end

--- Bytes set aside for `rollback` rows besides.
--- Example:
---   kv.compressor { ratio = 2, width = 8 }:rollback_bytes()  --> 0
---@return integer bytes
function Compressor:rollback_bytes() end

--- Frees it now. Any later use is an error.
--- Example:
---   kv.compressor({ ratio = 2, width = 1 }):free()  --> nil
---@return nil
function Compressor:free() end
