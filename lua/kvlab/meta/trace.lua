---@meta
local kv, trace, Trace, Prefill = {}, {}, {}, {}

---@within kv

--- Decodes one token while looking on: which entries each layer could read, which it scored and selected, and which
--- bytes were read for that.
---
--- `what` is a model, or a layout, its text or a layer. A layout takes the widths that kv.count takes. It gets random
--- weights when they are few; with the widths of a released model matrices are stand-ins, so that it is chance which
--- entries are picked. How many, and which bytes, is not.
--- Options, either of the first two:
---   tokens    ids; the last of them is decoded
---   position  the position that is decoded, from 0, after random inputs
---   widths    changes to those of the layout; with hidden_size, all widths of one that has none
---   records   as Model:sequence takes them ('deployed')
---   seed = 1  of random weights and inputs
---   replay    for the prefill before the step, see Sequence:prefill
--- The sets come from the step itself, bytes from the counters of the pools before and after each layer.
--- tostring(trace) is a picture: a row a layer, a column a position, then what was read.
--- Errors: neither or both of tokens and position; widths beside a model; weights that are too many for tokens.
--- Source: DeepSeek-V4 report 2.3 (which entries are readable), V4.1 report 2.3-2.4 (pool, sharing).
--- Example:
---   #kv.trace('hca/4{window=4}', { position = 6 }).layers[1].selected  --> 1
---   #kv.trace('hca/4{window=4}', { position = 7 }).layers[1].selected  --> 2
---   kv.trace('csa{window=4,topk=2}', { position = 11 }).layers[1].reads.index_rows  --> 3
---   kv.trace(kv.preset 'v4.1-flash', { position = 300 }).equal  --> true
---@param what Model|Layout|Layer|string
---@param options table
---@return Trace trace
function kv.trace(what, options) end

---@within kv.trace

--- Prefills a prompt, with and without bounded replay, and reports which layers ran at which positions.
---
--- `what` as for kv.trace, but all of the model runs, so released widths are too wide. Options: tokens = ids or length =
--- how many random inputs; replay = n, the layers after the cut run on the last n only; widths, seed; records ('f32',
--- so that replay makes the only difference).
--- The result has length, replay, evaluations (what the sequence reports), whole.evaluations (without replay), layers
--- (below), and with replay error: ||h - h'|| / ||h'|| of the last layer's output at the last position.
--- layers[i]: first and last, the positions that the layer ran at, from 0; of owners entries and ratio: what they
--- stored. whole.layers says the same without replay. tostring(prefill) is a picture.
--- Errors: neither or both of tokens and length; replay without an encoder; weights that are too many.
--- Source: DeepSeek-V4.1 report 3.2.2.
--- Example:
---   kv.trace.prefill('swa | full reuse', { length = 8, replay = 2, widths = { hidden_size = 16, num_attention_heads = 2, head_dim = 8, qk_rope_head_dim = 4, q_lora_rank = 8, o_groups = 1, o_lora_rank = 8, index_n_heads = 2, index_head_dim = 8, index_topk = 2, sliding_window = 3 } }).evaluations  --> 12
---@param what Model|Layout|Layer|string
---@param options table
---@return Prefill prefill
function trace.prefill(what, options) end

--- What was seen of one decoded token: position, context (tokens, its own included), layers, read_bytes, counted_bytes
--- (kv.count's), equal (in each layer and role). Made by kv.trace.
---
--- Each of layers has, ids counting from 0 and ascending:
---   layer, text, owner, selector, ratio, overlap   which layer it is, whose cache and selection it uses
---   readable  entries that were complete and could be read
---   scored    those of them that its indexer scored, and scores, float32 {entries}, -inf where it did not
---   pool      the candidate pool that it builds, or searches; nil without one
---   selected  the entries that it read, its own selection or another layer's
---   window    positions that it read in its window
---   reads     rows and bytes as Counters:get has them, those of this layer in this step
---   counted   selected_bytes, window_bytes, index_bytes as kv.count computes them
---   before, after   bytes that all layers together had read
--- Lists are shared between layers; copy one before changing it.
---@within Trace

--- Draws it, as tostring does.
---
--- Options: layers = { first, last }, only these (else the first 24 that differ); width in characters; ascii; file =
--- 'x.svg', .png or .pdf: the rows of entries as a file (kv.plot).
--- Example:
---   kv.trace('hca/4{window=4}', { position = 6 }):draw { ascii = true }:match 'window +|(%S+)'  --> ...wwww
---@param options? table
---@return string text  or the name of the file
function Trace:draw(options) end

--- Which layers ran at which positions of a prompt. Made by kv.trace.prefill.
---@within Prefill

--- Draws the grid, as tostring does: a row a layer, a column a position. Options as for Trace:draw.
---@param options? table
---@return string text  or the name of the file
function Prefill:draw(options) end
