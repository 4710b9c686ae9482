---@meta
local kv, exact, Exact = {}, {}, {}

---@within kv

--- Counts what the KV cache of a layout stores and what one decode step reads, in exact bytes.
---
--- The step at N is the query at position N - 1 with N tokens cached, its own included (docs/counting.md). Every
--- figure of bytes is an Exact.
---   store.bytes_per_token   growth per token of a long context
---   store.fixed_bytes       window rows, when all windows are full
---   store.state_bytes       compressor state (float32) at N; state_bytes_most: the most it ever is
---   store.total_bytes       complete entries, keys and filled window rows at N, without state
---   read.selected_bytes, read.window_bytes, read.index_bytes; read.kv_bytes (the first two), read.total_bytes
---   crossover_tokens        fixed_bytes / bytes_per_token; nil when nothing grows
---   layout, name, context, access, widths, borrowed_widths (true: those of v4.1-flash)
---   classes                 for each entry of Layout:classes() its numbers
--- Options: context = 131072; records = 'deployed' (those of layers and layout, else V4.1's, with heads and latents in
--- bf16), 'own' (else bf16), a record or its name for everything, or { main =, index =, window = } of them; widths = changes of the layout's; access = 'gather' or 'mask'.
--- Errors: an unknown option, width or record; a context that is no whole number from 1 on; a width that a layer
--- needs and nobody gave; widths that contradict each other; a record that does not fit the row.
--- Source: the conventions of docs/counting.md; formats of deployed engines, docs/records.md.
--- Example:
---   kv.count(kv.preset 'v4-flash').store.bytes_per_token  --> 14057/4
---   kv.count(kv.preset 'v4.1-flash', { context = 131072 }).read.total_bytes  --> 35045376
---   kv.count(kv.preset 'v3.2', { records = 'bf16' }).store.bytes_per_token  --> 85888
---   kv.count(kv.preset 'v3.2', { records = { main = 'bf16' } }).store.bytes_per_token  --> 78324
---   kv.count(kv.layout 'swa*2 full/8', { widths = { head_dim = 256 } }).store.bytes_per_token  --> 53/2
---@param layout Layout|string
---@param options? table  { context =, records =, widths =, access = }
---@return table result
function kv.count(layout, options) end

--- Splits bytes per token into its four factors, so that width x layers x bytes / ratio is exact.
---
---   width    values that a storing layer keeps for an entry, key included; the mean over the layers that store
---   layers   how many layers store global KV
---   bytes    bytes of one value, scales and padding included; the mean over all values kept per token
---   ratio    tokens per value: values of all storing layers / values kept per token
--- Returns nil when no layer stores global KV.
--- Example:
---   kv.factors(kv.count(kv.preset 'v4.1-flash')).ratio  --> 8/5
---   kv.factors(kv.count(kv.layout 'swa*4'))  --> nil
---@param result table  of kv.count
---@return table? factors  { width =, layers =, bytes =, ratio = }, each an Exact
function kv.factors(result) end

--- Counts the multiply-adds of attention, for one decode step at N and for the prefill of N tokens.
---
--- decode[order] and prefill[order] are { projections =, attention =, indexing =, total = } (Exact). orders is
--- { 'expand', 'absorb', 'merged' } when a layer is MLA, { 'plain' } otherwise. expand_wins: from how many queries
--- at the end of the N positions expanding once costs less than absorbing (first class of MLA layers), or nil.
--- evaluations.all: (position, layer) pairs of a prefill; with an encoder also evaluations.replay, when the decoder
--- runs on the last replay_tokens only. FFN, output head and element-wise work are not counted.
--- Errors: a width that a projection needs and nobody gave.
--- Source: three orders of MLA, DeepSeek-V2 report 2.1.2; bounded replay, DeepSeek-V4.1 report 3.2.2.
--- Example:
---   kv.flops(kv.count(kv.preset 'v2')).expand_wins  --> 171
---   kv.flops(kv.count(kv.preset 'v4.1-flash')).decode.plain.attention  --> 1610612736
---@param result table  of kv.count
---@return table flops
function kv.flops(result) end

--- An exact rational number n / d, not negative and of any size.
---
--- Errors: n or d is no whole number >= 0 nor an Exact; d is 0.
--- Example:
---   kv.exact(6, 4)  --> 3/2
---   kv.exact(math.maxinteger) * 10  --> 92233720368547758070
---@param n integer|Exact
---@param d? integer|Exact  1
---@return Exact value
function kv.exact(n, d) end

--- Exact rational numbers, for bytes: nothing overflows, nothing is rounded.
---@within kv.exact

--- The smallest whole value that is not below a.
---
--- Errors: a is no whole number >= 0 nor an Exact.
--- Example:
---   kv.exact.ceiling(kv.exact(7, 2))  --> 4
---@param a integer|Exact
---@return Exact value
function exact.ceiling(a) end

--- Whether x is an Exact.
---
--- Example:
---   kv.exact.is(kv.exact(1))  --> true
---   kv.exact.is(1)  --> false
---@param x any
---@return boolean yes
function exact.is(x) end

--- An exact rational number >= 0, immutable by custom. One side of an operator may be a whole number.
---
---   + - * /     exact; - raises when the result would be negative, / when the divisor is 0
---   //          the whole part of the quotient
---   == < <=     between two of them
---   tostring    '890' or '14057/4'; in JSON all digits of a whole value, otherwise the nearest float
---@within Exact

--- Whether the value is a whole number.
---
--- Example:
---   kv.exact(6, 3):is_whole()  --> true
---@return boolean yes
function Exact:is_whole() end

--- Whether the value is 0.
---
--- Example:
---   kv.exact(0):is_zero()  --> true
---@return boolean yes
function Exact:is_zero() end

--- The integer when the value is one and fits into 64 bits, otherwise the nearest float.
---
--- Example:
---   kv.exact(14057, 4):tonumber()  --> 3514.25
---   math.type(kv.exact(890):tonumber())  --> integer
---@return number value
function Exact:tonumber() end
