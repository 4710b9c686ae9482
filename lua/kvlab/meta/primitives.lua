---@meta
local kv, index = {}, {}

---@within kv
--- x * weight / sqrt(mean(x^2) + eps) over the last dimension; without a weight, not scaled.
--- Example:
---   kv.rms_norm(kv.tensor({ 3, 4 }), nil, 0):pow(2):mean()  --> 1.0
---@param x Tensor
---@param weight? Tensor  (channels)
---@param eps? number  default: 1e-6
---@return Tensor y
function kv.rms_norm(x, weight, eps) end

--- (x - mean(x)) / sqrt(var(x) + eps) * weight + bias over the last dimension.
--- Example:
---   kv.layer_norm(kv.tensor({ 1, 3 }), nil, nil, 0)  --> float32 {2} {-1, 1}
---@param x Tensor
---@param weight? Tensor  (channels)
---@param bias? Tensor  (channels)
---@param eps? number  default: 1e-6
---@return Tensor y
function kv.layer_norm(x, weight, bias, eps) end

--- Walsh-Hadamard rotation of the last dimension, scaled to keep lengths; its own inverse.
--- Example:
---   kv.hadamard(kv.tensor({ 1, 1, 1, 1 }))  --> float32 {4} {2, 0, 0, 0}
---@param x Tensor  channels: a power of two
---@return Tensor y
function kv.hadamard(x) end

--- Rotary position embedding of x (tokens, width), (tokens, heads, width) or (batch, tokens, heads, width).
---
--- Keys: n (channels that rotate, default all), theta (10000), first (rotate the first n channels, not the last),
--- half_split (pairs i, i + n/2 instead of neighbours), inverse, pos (int32 positions (tokens) or (batch, tokens)) or
--- pos0 and stride (token t is at pos0 + t * stride), yarn = {factor, context, beta_fast = 32, beta_slow = 1}.
---
--- Errors: unknown keys, an odd n, positions of another shape.
--- Example:
---   kv.rope(kv.tensor({ { 1, 0 } }))[1]  --> float32 {2} {1, 0}
---@param x Tensor
---@param opts? table
---@return Tensor y
function kv.rope(x, opts) end

--- One softmax over the union of several sources of rows; all heads of a query see the same positions.
---
--- q ([batch,] queries, heads, width). A source: key ([batch,] rows, kv heads, width), value (default: the key), and see:
--- 'causal' (default), 'all', 'window' (window = n), 'blocks' (ratio = m: entry b from position m (b + 1) - 1 on) or 'list' (list =
--- int32 ids ([batch,] queries, k), 0-based, -1 for none); pos0 (position of row 0), ring (slots of a ring). Other keys: sink
--- (heads), scale (default width^-0.5), pos0 (position of the first query), lse = true for the log of the denominator.
---
--- Source: docs of the attention primitive; sink: DeepSeek-V4 report 2.3.3.
---
--- Errors: shapes that do not fit each other (shown), unknown keys, ids without a row.
--- Example:
---   kv.attend({ q = kv.zeros(1, 1, 2), sources = { { key = kv.filled({ 1, 1, 2 }, 3) } } }):flatten()  --> float32 {2} {3, 3}
---@param opts table
---@return Tensor out  ([batch,] queries, heads, value width)
---@return Tensor? lse  ([batch,] queries, heads)
function kv.attend(opts) end

--- Softmax pooling of ratio tokens into one entry, channel by channel: c ([batch,] tokens, row) are the values, z their
---
--- scores (nil: all 0). Tokens of an incomplete block are left out. Keys: ratio, overlap (rows are two halves), bias (ratio, row).
---
--- Source: DeepSeek-V4 report 2.3.
--- Example:
---   kv.compress(kv.tensor({ { 1 }, { 3 } }), nil, { ratio = 2 }):item()  --> 2.0
---@param c Tensor
---@param z? Tensor
---@param opts table
---@return Tensor entries  ([batch,] tokens // ratio, width)
function kv.compress(c, z, opts) end

--- Compression of one sequence as it comes. Keys: ratio, width (of an entry), overlap, bias (ratio, row), rollback (tokens
---
--- that can be taken back, default 0).
--- Example:
---   kv.compressor({ ratio = 4, width = 8 }):position()  --> 0
---@param opts table
---@return Compressor c
function kv.compressor(opts) end

---@within kv.index
--- Indexer scores: sum over index heads of w max(0, q . key), -inf where an entry is not visible or not in the pool.
---
--- Keys: q ([batch,] queries, heads, width), w ([batch,] queries, heads), key ([batch,] entries, width), pos0 (position of the
--- first query), ratio (entry s is visible from position ratio (s + 1) - 1 on), pool (int32 candidates, 0-based).
---
--- Source: DeepSeek-V3.2 report 2.1.
--- Example:
---   kv.index.scores({ q = kv.filled({ 1, 1, 2 }, 1), w = kv.filled({ 1, 1 }, 1), key = kv.filled({ 1, 2 }, 1) }):item()  --> 2.0
---@param opts table
---@return Tensor scores  ([batch,] queries, entries)
function index.scores(opts) end

--- The k best entries of each query, ascending ids, -1 where there are no more. Keys: as kv.index.scores, and k.
--- Example:
---   kv.index.select({ q = kv.zeros(1, 1, 2), w = kv.zeros(1, 1), key = kv.zeros(1, 2), k = 2 })[1]  --> int32 {2} {0, -1}
---@param opts table
---@return Tensor ids  ([batch,] queries, k)
function index.select(opts) end

--- The candidate pool for later layers: the best `blocks` blocks of `block` consecutive entries, the newest visible block
---
--- always among them. Keys: as kv.index.scores without pool, and block, blocks.
---
--- Source: DeepSeek-V4.1 report 2.3.
--- Example:
---   kv.index.pool({ q = kv.zeros(1, 1, 2), w = kv.zeros(1, 1), key = kv.zeros(1, 2), block = 2, blocks = 1 })[1]  --> int32 {2} {0, -1}
---@param opts table
---@return Tensor ids  ([batch,] queries, blocks * block)
function index.pool(opts) end

local Compressor = {}

---@within Compressor
--- Takes tokens c (tokens, row) with scores z and gives the entries that they complete (n, width).
--- Example:
---   kv.compressor({ ratio = 2, width = 1 }):push(kv.tensor({ { 1 }, { 3 } })):item()  --> 2.0
---@param c Tensor
---@param z? Tensor
---@return Tensor entries
function Compressor:push(c, z) end

--- Takes back the last n tokens, at most `rollback` below the largest position so far.
--- Example:
---   kv.compressor({ ratio = 2, width = 1 }):rollback(0):position()  --> 0
---@param n integer
---@return Compressor c  itself
function Compressor:rollback(n) end

--- An independent copy, to go on in two ways.
--- Example:
---   kv.compressor({ ratio = 2, width = 1 }):copy():position()  --> 0
---@return Compressor copy
function Compressor:copy() end

--- Tokens taken so far.
--- Example:
---   kv.compressor({ ratio = 2, width = 1 }):position()  --> 0
---@return integer n
function Compressor:position() end

--- Bytes of rows it remembers: what any implementation needs, and what the rollback adds.
--- Example:
---   kv.compressor({ ratio = 2, width = 1 }):bytes() > 0  --> true
---@return integer needed
---@return integer rollback
function Compressor:bytes() end

--- Drops it now. Using it afterwards is an error.
--- Example:
---   kv.compressor({ ratio = 2, width = 1 }):free()  --> nil
---@return nil nothing
function Compressor:free() end

--- The same as free.
--- Example:
---   kv.compressor({ ratio = 2, width = 1 }):close()  --> nil
---@return nil nothing
function Compressor:close() end
