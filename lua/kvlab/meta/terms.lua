---@meta
-- The words of the article and of the reports behind it, and what each is in kvlab.

--- The keys and values of earlier tokens, stored so that a new token need not compute them again. Its bytes per token are
--- about the width of what is stored x the layers that store it x bytes per value / tokens in one entry.
--- Example:
---   kv.count(kv.preset 'mha').store.bytes_per_token  --> 3932160
---   kv.count(kv.preset 'v4.1-flash').store.bytes_per_token  --> 890
---@term KV cache, cache, four factors

--- What grows with the context: the entries of owners and their index keys. In the bytes per token nothing else counts.
--- Example:
---   kv.count(kv.preset 'v3.2').store.bytes_per_token  --> 48068
---@term global KV, main KV, bytes per token

--- The rows of the last tokens that a layer keeps for itself, not compressed: a window. Its bytes are fixed once the
--- window is full, and they are not among the bytes per token.
--- Example:
---   kv.count(kv.preset 'v4.1-flash').store.fixed_bytes  --> 2703360
---@term local KV, window, sliding window

--- Attention whose layers keep nothing but a window: kv.swa.
--- Example:
---   kv.layout('swa'):window(1, { sliding_window = 128 })  --> 128
---@term SWA, sliding window attention

--- What an owner stores for `ratio` tokens: one row that is key and value for every head. A row of a single token, where
--- nothing is compressed, is one too.
--- Example:
---   kv.count(kv.layout 'hca').store.bytes_per_token  --> 9/4
---@term entry, compressed entry

--- How many tokens one entry stands for. An entry can be read when its last token is there, so a ratio above the window
--- leaves tokens unreadable for a while.
--- Example:
---   kv.csa.ratio  --> 4
---   #kv.layout('hca/256'):warnings { sliding_window = 128 }  --> 1
---@term compression ratio, ratio, block

--- Entries of V4's CSA are made of eight tokens: the four of their own span and, through other columns of the same
--- weights, the four before; so candidates are twice as wide. There is still one entry for four tokens.
--- Example:
---   kv.csa.overlap  --> true
---@term overlap

--- Multi-head attention: a key and a value for every query head. MQA has one pair for all heads, GQA one for a group.
--- Example:
---   kv.count(kv.layout 'mha', { widths = kv.preset 'mha'.widths }).store.bytes_per_token  --> 65536
---@term MHA, MQA, GQA, multi-head attention

--- Multi-head latent attention (V2): a small vector is stored from which keys and values of every head can be computed, and
--- beside it one rotary key for all heads: kv.mla.
--- Example:
---   kv.count(kv.preset 'v2').store.bytes_per_token  --> 69120
---@term MLA, latent, multi-head latent attention

--- Multiplying a query by the weights that would expand the key, so that the latent itself is the key and nothing is
--- expanded. The scores are the same but for rounding; dot products are longer.
--- Example:
---   kv.flops(kv.count(kv.preset 'v2')).orders[2]  --> absorb
---   kv.flops(kv.count(kv.preset 'v2')).expand_wins  --> 171
---@term absorption, absorbed

--- Rotary position embedding: pairs of channels are turned by an angle that grows with the position, so that a product of
--- query and key depends on the distance only. What is rotated in the latent could not be absorbed; MLA's rotary key is
--- apart for this reason.
--- Example:
---   kv.rope(kv.tensor { { { 1, 0 } } }, kv.rope_freqs { channels = 2 }, { pos0 = 1 }):flatten()  --> float32 {2} {0.5403, 0.84147}
---@term RoPE, rotary key, rotary embedding

--- DeepSeek sparse attention (V3.2): MLA that reads the best index_topk tokens only. Everything is stored, and an index key
--- besides, because the next token may choose others.
--- Example:
---   kv.count(kv.preset 'v3.2').read.selected_bytes  --> 81952768
---@term DSA, sparse attention

--- Small heads that score what may be read: the sum over heads of weight x ReLU(query . key). There is no softmax; the
--- score only ranks. The key is stored for every token or entry and read whole in every step.
--- Example:
---   kv.count(kv.preset 'v3.2').read.index_bytes  --> 1055391744
---@term indexer, lightning indexer, index key, search key

--- The k entries with the highest scores, of those that the query may see; all of them while there are fewer.
--- Example:
---   kv.preset 'v4-flash'.widths.index_topk  --> 512
---@term top-k, selection

--- Compressed sparse attention (V4): one entry for 4 tokens, of which an indexer with a compressor of its own picks some:
--- kv.csa.
--- Example:
---   kv.csa.keys  --> compressor
---@term compressed sparse attention

--- Heavily compressed attention (V4): one entry for 128 tokens, all of them read: kv.hca.
--- Example:
---   kv.hca.select  --> all
---@term heavily compressed attention

--- V4.1's attention: entries without overlap, index keys projected from them, shared between layers. A Full layer stores and
--- selects, a Reindex layer selects anew among the entries of an earlier one, a Reuse layer takes entries and selection
--- from earlier layers. What is shared is stored once and read by each.
--- Example:
---   kv.layout '[Full, Reuse×5]*3'  --> [full/1 reuse*5]*3
---   kv.preset('v4.1-flash'):owner(40)  --> 21
---@term CSA2, Full, Reindex, Reuse, owner

--- The decoder's indexers need not score everything: the first one keeps the blocks with the highest scores, and those of
--- later layers pick inside this pool.
--- Example:
---   kv.preset('v4.1-flash'):pool(25).block  --> 8
---@term hierarchical indexer, candidate pool

--- The layers after the cut (`|` in the text of a layout) read entries that are made from the encoder's output, so a prompt
--- need not pass through them.
--- Example:
---   kv.preset 'v4.1-flash'.cut  --> 20
---@term encoder-decoder, CED, cut

--- A prefill in which the layers after the cut run on the last tokens only. It saves evaluations, not bytes, and is exact
--- from some number of tokens on (help 'prefill').
--- Example:
---   kv.flops(kv.count(kv.preset 'v4.1-flash')).evaluations.all  --> 5242880
---@term bounded replay, replay

--- A value that each head adds to the denominator of its softmax, so that the weights of real entries may sum to less
--- than one.
--- Example:
---   kv.attend { q = kv.zeros(1, 1, 1, 2), sink = kv.zeros(1), sources = { { rows = kv.filled({ 1, 1, 2 }, 3), key = { 1, 2 }, value = { 1, 2 } } } }:flatten()  --> float32 {2} {1.5, 1.5}
---@term sink, attention sink

--- One vector as key and as value of all heads. It was rotated as a key, so the output is turned back by the position of
--- the query.
--- Example:
---   kv.full.form  --> entry
---@term K = V, shared key and value, inverse RoPE

--- How one entry lies in bytes: which channels in which number, scales, padding, page. It is data: kv.record makes one.
--- Example:
---   kv.record_named 'v4-main':formula():match '%d+ B$'  --> 584 B
---@term record, cache format

--- The factor that brings a group of values of few bits back to their size. It is stored beside them: a share of the bytes,
--- and one outlier of a group makes all of it coarse.
--- Example:
---   kv.record_named('v4.1-main'):terms()[2].per  --> 16
---@term scale, scale group

--- Numbers of few bits: sign, exponent and mantissa. FP8 is E4M3 or E5M2, FP4 is E2M1; UE8M0 is a power of two, for scales.
--- Example:
---   kv.number.decode('e2m1', kv.number.encode('e2m1', 5))  --> 4.0
---@term FP8, FP4, E4M3, E5M2, E2M1, UE8M0, BF16

--- The unit in which a pool gives memory to caches; sequences that begin alike share pages until one of them writes.
--- Example:
---   kv.record_named('v4-main'):plan().page_entries  --> 64
---@term page, paged cache

--- Prefill takes a prompt in, many tokens at once; a decode step adds one. What is read counts for a decode step.
--- Example:
---   kv.count(kv.preset 'v4.1-flash', { context = 131072 }).read.kv_bytes  --> 8306688
---@term prefill, decode, decode step

--- From this many tokens on the global KV is larger than the local KV.
--- Example:
---   kv.count(kv.preset 'v4-flash').crossover_tokens:tonumber() // 1  --> 914.0
---@term crossover

--- The numbers of a model, named as in config.json: hidden_size, head_dim, sliding_window ... A layout without them can be
--- drawn and shared, but not counted with certainty.
--- Example:
---   kv.preset 'v2'.widths.kv_lora_rank  --> 512
---@term widths, config.json
