---@meta
local kv, Attention, Model, Sequence = {}, {}, {}, {}

---@within kv

--- The attention of one layer by itself. The layer must own what it reads: no reuse, no reindex.
---
--- Options: seed = 1, random weights; weights = { [name] = Tensor } instead, by the names of the released checkpoints
--- without what stands before them ('wq_a.weight', 'o_proj.weight', ...); order = 'expand', 'absorb' or 'merged' for MLA
--- (when missing: several tokens expand, a single one absorbs).
--- Errors: a layer that borrows; a width that it needs and nobody gave; a weight that is missing or of another shape.
--- Source: DeepSeek-V2 report 2.1, V3.2 report 2.1, V4 report 2.3, V4.1 report 2.3.
--- Example:
---   kv.attention(kv.mha, { hidden_size = 8, num_attention_heads = 2, head_dim = 4 })  --> kvlab.Attention: mha
---   kv.attention(kv.mha, { hidden_size = 8, num_attention_heads = 2, head_dim = 4 }).w['o_proj.weight'].shape[2]  --> 8
---@param layer Layer
---@param widths table  names as `kvlab help widths` lists them
---@param options? table
---@return Attention attention
function kv.attention(layer, widths, options) end

--- A model of a layout, with token embedding, SwiGLU feed-forward networks and head.
---
---   h = embed[tokens];  for each layer  h = h + attention(norm(h)),  h = h + ffn(norm(h));  logits = head norm(h)
---
--- widths are added to those of the layout; hidden_size and vocab_size are needed besides what the layers need, and
--- intermediate_size makes FFNs of that width. Options:
---   seed = 1     random weights, the same for any number of threads
---   weights      { [name] = Tensor } instead: all of them, by the names of the released checkpoints (Model, names)
---   ffn          width of the FFNs, 0 for none
---   tied = false the head is the embedding
---   norm         'rms', or 'layer': LayerNorm without bias
---   mlp          'swiglu', or 'gelu': two matrices without a gate
---   positions    'rope', or 'learned': a table positions.weight of max_position_embeddings rows, and no rotation; 'none':
---                neither
---   init         { kind =, std = 0.02 } of random matrices: 'default', a deviation of 1 / sqrt(inputs), 'normal', one of
---                std, or 'nanogpt', the same with projections onto the residual stream divided by sqrt(2 layers)
---   order        'expand', 'absorb' or 'merged' for MLA; when missing, several tokens expand, a single one absorbs
---   quantisers   { main =, index =, window =, index_query = } of records or their names: Model:forward puts its rows
---                through them, as caches would; index queries go through index_query everywhere
---   records      instead: as of Model:sequence, so that Model:forward computes with what its caches would give back
--- A layer after the cut (|) that owns its cache is fed the encoder's output, unless it says source = input.
--- Errors: a width that is missing; a weight that is missing or of another shape; an unknown option.
--- Source: the released models without what is not attention: no experts, no hyper-connections.
--- Example:
---   kv.model('mha*2', { hidden_size = 8, num_attention_heads = 2, head_dim = 4, vocab_size = 9 })  --> kvlab.Model: 2 layers, mha*2
---   kv.model('mha', { hidden_size = 8, num_attention_heads = 2, head_dim = 4, vocab_size = 9 }).names[1]  --> model.embed_tokens.weight
---@param layout Layout|string
---@param widths? table
---@param options? table
---@return Model model
function kv.model(layout, widths, options) end

--- One layer's attention: `w` are its weights by name, `scale` the factor of its scores. Made by kv.attention.
---@within Attention

--- Runs a whole sequence, or a batch of them, from position 0, through tensors.
---
--- Errors: x has another shape or type.
--- Example:
---   kv.attention(kv.mha, { hidden_size = 8, num_attention_heads = 2, head_dim = 4 }):full(kv.zeros(1, 3, 8)).shape[2]  --> 3
---   select(2, kv.attention(kv.dsa { topk = 1 }, { hidden_size = 8, num_attention_heads = 1, qk_nope_head_dim = 4, qk_rope_head_dim = 2, v_head_dim = 4, kv_lora_rank = 8, index_n_heads = 1, index_head_dim = 4 }):full(kv.random { 1, 2, 8, seed = 1 }))[1][1]  --> int32 {1} {0}
---@param x Tensor  float32 {B, T, hidden_size}, normed already
---@return Tensor y  the same shape
---@return Tensor? selected  of layers that select: int32 {B, T, k}, entries from 0, ascending, -1 for none
function Attention:full(x) end

--- Scores before softmax, scale * q . k, of every head; -inf where the query does not see the row.
---
--- The columns are the rows of the window, one a position, then the entries. The layer runs as in Attention:full, and
--- what it asks kv.attend is asked again for the matrix that kv.attend never makes.
--- labels, here and below: { rows =, columns = }, texts for kv.plot.heat: positions from 0, e0, e1, ... for entries.
--- Errors: x has another shape or type; a layer of a model that reads what another layer owns or selected.
--- Source: DeepSeek-V2 report 2.1, V4 report 2.3; the article's Figures 4, 10 and 15.
--- Example:
---   kv.attention(kv.mha, { hidden_size = 8, num_attention_heads = 2, head_dim = 4 }):scores(kv.random { 1, 3, 8, seed = 1 })[1][1][1][2]  --> -inf
---@param x Tensor  float32 {B, T, hidden_size}
---@return Tensor scores  float32 {B, H, T, rows}
---@return table labels
function Attention:scores(x) end

--- The mask that is added to scores: 0 where the query reads the row, -inf elsewhere. It joins what is causal, the
--- window, complete blocks and the selection.
---
--- mask:exp() is 1 and 0, for kv.plot.heat, which leaves -inf blank.
--- Errors: as for Attention:scores.
--- Source: DeepSeek-V3.2 report 2.1; the article's Figures 9 and 10.
--- Example:
---   kv.attention(kv.mha, { hidden_size = 8, num_attention_heads = 2, head_dim = 4 }):mask(kv.zeros(1, 2, 8))[1][1]  --> float32 {2} {0, -inf}
---@param x Tensor  float32 {B, T, hidden_size}
---@return Tensor mask  float32 {B, T, rows}
---@return table labels
function Attention:mask(x) end

--- Attention probabilities. With a sink those of a query sum to less than 1: the rest is the sink's.
---
--- Columns as for Attention:scores.
--- Errors: as for Attention:scores.
--- Source: DeepSeek-V4 report 2.3.3 (sink); the article's Figures 10 and 15.
--- Example:
---   kv.attention(kv.mha, { hidden_size = 8, num_attention_heads = 2, head_dim = 4 }):probabilities(kv.zeros(1, 2, 8))[1][1][2]  --> float32 {2} {0.5, 0.5}
---@param x Tensor  float32 {B, T, hidden_size}
---@return Tensor probabilities  float32 {B, H, T, rows}
---@return table labels
function Attention:probabilities(x) end

--- Scores of the lightning indexer, the sum over its heads of w * ReLU(q . k); -inf where the entry is not complete.
---
--- Errors: as for Attention:scores; a layer without an indexer; too few tokens for an entry.
--- Source: DeepSeek-V3.2 report 2.1; the article's Figures 9 and 18.
--- Example:
---   kv.attention(kv.csa, { hidden_size = 8, num_attention_heads = 2, head_dim = 4, sliding_window = 2, index_n_heads = 2, index_head_dim = 4, index_topk = 1 }):index_scores(kv.random { 1, 8, 8, seed = 1 }).shape[3]  --> 2
---@param x Tensor  float32 {B, T, hidden_size}
---@return Tensor scores  float32 {B, T, entries}
---@return table labels
function Attention:index_scores(x) end

--- The weights with which tokens are pooled into each entry, for every channel by itself: a softmax over the tokens of
--- the block, overlapping also over those of the block before.
---
--- labels.rows are the tokens, counted from the first one of the entry's block; those of the block before are below 0.
--- Errors: as for Attention:scores; nothing is pooled (ratio 1); too few tokens for an entry.
--- Source: DeepSeek-V4 report 2.3, V4.1 report 2.3; the article's Figures 13, 17 and 21.
--- Example:
---   kv.attention(kv.full { ratio = 2 }, { hidden_size = 8, num_attention_heads = 2, head_dim = 4, sliding_window = 2, index_n_heads = 2, index_head_dim = 4, index_topk = 1 }):pooling(kv.zeros(1, 4, 8))[1][1][2]  --> float32 {4} {0.5, 0.5, 0.5, 0.5}
---   kv.attention(kv.csa, { hidden_size = 8, num_attention_heads = 2, head_dim = 4, sliding_window = 2, index_n_heads = 2, index_head_dim = 4, index_topk = 1 }):pooling(kv.random { 1, 8, 8, seed = 1 }, 'index').shape[3]  --> 8
---@param x Tensor  float32 {B, T, hidden_size}
---@param which? string  'entry', or 'index' for index keys that have a compressor of their own
---@return Tensor weights  float32 {B, entries, tokens, channels}
---@return table labels
function Attention:pooling(x, which) end

--- A layout with weights: `layout`, `widths` and `names`, a list in the order of the layers. Made by kv.model.
---@within Model

--- Runs whole sequences at once through tensors, without pools and records.
---
--- Tokens count from 0. The result equals what sequences give, up to rounding, when their records keep every bit that
--- matters ('f32').
--- Errors: an id that the vocabulary does not have.
--- Example:
---   kv.model('mha', { hidden_size = 8, num_attention_heads = 2, head_dim = 4, vocab_size = 9 }):forward({ 1, 2, 3 }).shape[2]  --> 3
---@param tokens table|Tensor  a list of ids, lists of a batch, or int32 {T} or {B, T}
---@return Tensor logits  float32 {B, T, vocab_size}
function Model:forward(tokens) end

--- A weight by the name that it has in the released checkpoints; nil when there is none of that name.
--- Example:
---   kv.model('mha', { hidden_size = 8, num_attention_heads = 2, head_dim = 4, vocab_size = 9 }):weight('lm_head.weight').shape[1]  --> 9
---@param name string  one of `names`
---@return Tensor? weight
function Model:weight(name) end

--- An empty sequence, whose caches are pages of pools.
---
--- There is one pool for each record and limit; the sequences of the model share them.
--- Options:
---   records  'deployed' (the records of the layout, else those that kv.count takes), 'own' (else bf16), one record or its
---            name for everything, such as 'f32', or { main =, index =, window = }
---   rollback 0: how many tokens can be taken back. Windows and compressors keep that many rows more
---   pages    the most pages of each pool, shared by the sequences that ask for as many; missing: as many as memory allows
--- Errors: a record that does not fit the rows.
--- Example:
---   kv.model('mha', { hidden_size = 8, num_attention_heads = 2, head_dim = 4, vocab_size = 9 }):sequence()  --> kvlab.Sequence: 0 tokens
---@param options? table
---@return Sequence sequence
function Model:sequence(options) end

--- Decodes one token for each of several sequences, which may be at different positions.
---
--- Products with weights are done for all at once; each sequence reads its own caches. When it fails, no sequence has
--- changed.
--- Errors: a sequence of another model, freed, or twice in the list; out of pages; interrupted.
--- Example:
---   model = kv.model('mha', { hidden_size = 8, num_attention_heads = 2, head_dim = 4, vocab_size = 9 })
---   model:decode({ model:sequence(), model:sequence() }, { 1, 2 }).shape[1]  --> 2
---@param seqs table  a list of Sequence
---@param tokens table|Tensor  one id for each
---@return Tensor logits  float32 {sequences, vocab_size}
function Model:decode(seqs, tokens) end

--- One sequence of a model with its caches. `#seq` (seq.position) is how many tokens it has, seq.evaluations how many
--- (position, layer) pairs were computed. An operation that fails leaves it as it was, but for the counts of
--- Sequence:reads. Made by Model:sequence.
---@within Sequence

--- Takes tokens in; may be called again, with chunks of any size.
---
--- Options: replay = n, for the first chunk of a layout with an encoder: the layers after the cut run on the last n tokens
--- only, while their caches get every token. The logits are exact from n = 1 + the sum over these layers of (window - 1)
--- on, and later steps from one less on; below that windows start empty.
--- Errors: an id that the vocabulary does not have; replay without an encoder, or not first; out of pages; interrupted.
--- Source: bounded replay, DeepSeek-V4.1 report 3.2.2.
--- Example:
---   kv.model('mha', { hidden_size = 8, num_attention_heads = 2, head_dim = 4, vocab_size = 9 }):sequence():prefill({ 1, 2 }).shape[1]  --> 9
---@param tokens table|Tensor  a list of ids or int32 {T}
---@param options? table
---@return Tensor logits  float32 {vocab_size}, of the last token
function Sequence:prefill(tokens, options) end

--- Takes one token in.
---
--- Errors: an id that the vocabulary does not have; out of pages; interrupted.
--- Example:
---   kv.model('mha', { hidden_size = 8, num_attention_heads = 2, head_dim = 4, vocab_size = 9 }):sequence():decode(1).shape[1]  --> 9
---@param token integer
---@return Tensor logits  float32 {vocab_size}
function Sequence:decode(token) end

--- A sequence with the same past. Complete pages are shared; others are copied when one of the two writes.
--- Example:
---   #kv.model('mha', { hidden_size = 8, num_attention_heads = 2, head_dim = 4, vocab_size = 9 }):sequence():fork()  --> 0
---@return Sequence copy  with counters of its own, which start at 0
function Sequence:fork() end

--- Forgets the last n tokens.
---
--- Errors: n beyond the rollback of the sequence, less what was taken back since as many tokens came.
--- Example:
---   model = kv.model('mha', { hidden_size = 8, num_attention_heads = 2, head_dim = 4, vocab_size = 9 })
---   seq = model:sequence { rollback = 2 }
---   seq:prefill { 1, 2, 3 }
---   seq:rollback(2)
---   #seq  --> 1
---@param n integer
---@return nil
function Sequence:rollback(n) end

--- What the caches hold now, in bytes, in total and by layer (`layers`).
---
--- stored_bytes (what kv.count calls store.total_bytes) + rollback_bytes (rows that windows keep for rollbacks) +
--- unused_bytes (slots of pages without an entry) + alignment_bytes (ends of pages) = allocated_bytes. Shared pages count
--- for each sequence. Apart: state_bytes, what the compressors remember (store.state_bytes), and
--- state_rollback_bytes.
--- Example:
---   kv.model('mha', { hidden_size = 8, num_attention_heads = 2, head_dim = 4, vocab_size = 9 }):sequence():stats().stored_bytes  --> 0
---@return table stats
function Sequence:stats() end

--- What was read from the caches since the last reset: rows and bytes of selected, window and index, in total and by
--- layer (`layers`), as Counters:get has them.
---
--- After seq:reset() and one seq:decode(...) the bytes are those of kv.count for a context of #seq.
--- Example:
---   kv.model('mha', { hidden_size = 8, num_attention_heads = 2, head_dim = 4, vocab_size = 9 }):sequence():reads().selected_bytes  --> 0
---@return table reads
function Sequence:reads() end

--- Sets what was read to 0.
--- Example:
---   model = kv.model('mha', { hidden_size = 8, num_attention_heads = 2, head_dim = 4, vocab_size = 9 })
---   seq = model:sequence()
---   seq:prefill { 1, 2, 3 }
---   seq:reset()
---   seq:reads().selected_bytes  --> 0
---@return nil
function Sequence:reset() end

--- Gives its pages back now. Any later step is an error.
--- Example:
---   model = kv.model('mha', { hidden_size = 8, num_attention_heads = 2, head_dim = 4, vocab_size = 9 })
---   seq = model:sequence()
---   seq:free()
---   seq  --> kvlab.Sequence: 0 tokens, freed
---@return nil
function Sequence:free() end
