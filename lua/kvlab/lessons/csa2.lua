-- CSA2: compression without overlap, keys made from entries, and layers that share both.
return { number = 8, name = 'csa2', title = 'CSA2: no overlap, and layers that share', steps = {
  { text = [[
DeepSeek-V4.1 calls its compressed sparse attention CSA2. Two things change inside a layer. The first is which
tokens an entry is made of. A small trick shows it: give token t the candidate row that is 1 in column t and 0
elsewhere, and scores of 0. Then an entry is the list of weights that its tokens have. In CSA an entry pools its own
block of m tokens and the block before it; in CSA2 its own block only, so each token is in exactly one entry.]],
    code = [[
function made_of(m, overlap)
  local one = kv.eye(8):unsqueeze(1)  -- 8 tokens; token t is 1 in column t
  local rows = overlap and kv.cat({ one, one }, 3) or one  -- halves a and b
  local pooling = kv.compressor { ratio = m, width = 8, overlap = overlap }
  return pooling:push(rows, kv.zeros(1, 8, rows.shape[3]))[1]
end
function print_weights(name, weights)
  print(name)
  for b, row in weights:rows() do
    local line = ('  entry %d '):format(b - 1)
    for t = 1, 8 do
      line = line .. (row[t] > 0 and (' %.3f'):format(row[t]) or '     .')
    end
    print(line)
  end
end
print_weights('CSA, m = 4', made_of(4, true))
print_weights('CSA2, m = 4', made_of(4, false))
print_weights('CSA2, m = 2, as in the encoder of V4.1', made_of(2, false))]],
    ask = { question = 'Of how many tokens would entry 3 be made if m = 2 and blocks overlapped?',
      answer = 'made_of(2, true)[4]:gt(0):sum()',
      hint = 'The tokens of its own block and those of the block before it. made_of(2, true) computes it.',
      working = 'Its own 2 tokens, 6 and 7, and the 2 before them: 4. Without overlap it is 2.',
      code = [[print_weights('overlap, m = 2', made_of(2, true))]] } },

  { text = [[
The decoder of V4.1 has m = 1: every token is an entry by itself. There is only one row to pool, a softmax over one
score is 1 whatever the score is, and so the candidate comes out as it went in. "Compression" with m = 1 is no
compression, and needs no scores.]],
    code = [[
C = kv.random { 1, 6, 16, seed = 1 }  -- candidates of 6 tokens
Z = kv.random { 1, 6, 16, seed = 2 }  -- scores
out = kv.compressor { ratio = 1, width = 16 }:push(C, Z)
print('entries are the candidates:', out:equal(C))]] },

  { text = [[
The second change is the search key, by which the indexer finds an entry. In CSA it came from a compressor of its
own, which pooled the same tokens a second time. CSA2 has one compressor, and projects the key from what it gives:
the pooled and normed row, before RoPE. Entry and key are then rotated each for itself. This is a CSA2 layer with
made-up weights; the last line compares with the layer's own computation of which entries the newest token selects.]],
    code = [[
toy = { hidden_size = 64, num_attention_heads = 4, head_dim = 32,
  qk_rope_head_dim = 16, q_lora_rank = 32, sliding_window = 8,
  index_n_heads = 8, index_head_dim = 32, index_topk = 4 }
A = kv.attention(kv.full { ratio = 2 }, toy)
x = kv.random { 1, 24, 64, seed = 3 }  -- 24 tokens
freqs = kv.rope_freqs { channels = 16 }
function times(x, name) return kv.linear(x, A.w[name]) end
function norm(x, name) return kv.rms_norm(x, A.w[name]) end

C = times(x, 'compressor.wkv.weight')    -- candidates
Z = times(x, 'compressor.wgate.weight')  -- scores
row = kv.compressor { ratio = 2, width = 32 }:push(C, Z)
row = norm(row, 'compressor.norm.weight')
entries = kv.rope(row, freqs, { stride = 2 })  -- at its first token
keys = norm(times(row, 'indexer.wk.weight'), 'indexer.k_norm.weight')
keys = kv.rope(keys, freqs, { stride = 2 })

q = norm(times(x, 'wq_a.weight'), 'q_norm.weight')
q = kv.rope(times(q, 'indexer.wq_b.weight'):reshape(1, 24, 8, 32), freqs)
w = times(x, 'indexer.weights_proj.weight')
found = kv.index { q = q, w = w, keys = { rows = keys }, ratio = 2, k = 4 }
print('by hand', found.top[1][24])
print('layer  ', select(2, A:full(x))[1][24])]],
    ask = { question = [[
In V4.1-Flash a token is 5,120 numbers wide, an entry 512, a key 128. With m = 2 the weights that make entries and
keys are two matrices from token to entry (candidates and scores) and one from entry to key. How many numbers are
that?]],
      answer = '2 * 5120 * 512 + 512 * 128',
      hint = 'A matrix from a to b has a x b numbers.',
      working = [[
2 x 5,120 x 512 + 512 x 128 = 5,308,416. As CSA makes them, twice as wide for the overlap and with a second
compressor for the keys, it would be 2 x 5,120 x (1,024 + 256) = 13,107,200.]] } },

  { text = [[
Entry and key now belong together, and can be handed on together. Until here every layer kept entries of its own. In
CSA2 a layer is in one of three modes:

  Full     makes entries and keys; selects the best k by its own index query
  Reindex  borrows entries and keys of the latest Full layer; selects anew
  Reuse    borrows the entries, and the selection of the latest layer that
           selected, Full or Reindex

Only Full stores anything for the whole context. All three have a query and a window of recent tokens of their own,
and compute their own attention: what is shared is what is read, not the result. (Full does not mean dense: it reads
the best k only.) A layout without sizes of its own, as these are, is counted with those of V4.1-Flash.]],
    code = [[
line = '%-16s | %9s | %9s | %9s'
print(line:format('bytes', 'per token', 'KV read', 'keys read'))
for text in ('full/2*6,full/2 reindex*5,full/2 reuse*5'):gmatch '[^,]+' do
  local n = kv.count(kv.layout(text), { context = 131072 })
  print(line:format(text, n.store.bytes_per_token, n.read.kv_bytes,
    n.read.index_bytes))
end]],
    ask = { question = 'How many bytes per token do two groups of six store, [full/2 reuse*5]*2?',
      answer = "kv.count(kv.layout '[full/2 reuse*5]*2').store.bytes_per_token",
      hint = 'Each group has one Full layer, which stores an entry of 288 and a key of 68 bytes for every 2 tokens.',
      working = '2 Full layers x (288 + 68) bytes / 2 tokens = 356.' } },

  { text = [[
Full against Reindex: the same reads, a sixth of the storage. Reindex against Reuse: the same storage, a sixth of
the search keys. The KV that attention reads is the same in all three, because each layer reads its 512 entries
whoever stores them. Here is a small model with real caches that has taken 40 tokens: what each layer holds, and
what the next step reads of its window, of entries and of keys. Each layer holds the 8 rows of its window, 1,024
bytes; only Full also holds 20 entries and 20 keys.]],
    code = [[
toy.vocab_size = 100
m = kv.model('swa full/2 reindex reuse', toy)
seq = m:sequence { records = 'f32' }  -- 4 bytes a number
seq:prefill(kv.permutation(100, 1):slice(1, 1, 40))
seq:reset()    -- counters to zero
seq:decode(7)  -- one step
line = 'layer %d %-7s holds %4d bytes, reads %d + %d rows and %2d keys'
for i, read in ipairs(seq:reads().layers) do
  print(line:format(i, m.layout[i].kind, seq:stats().layers[i].stored_bytes,
    read.window_rows, read.selected_rows, read.index_rows))
end]],
    ask = { question = [[
How many keys would a step read with two Reindex layers and no Reuse, full/2 reindex*2 (41 tokens)?]],
      answer = '3 * (#seq // 2)',
      hint = 'Full reads all 20 keys of 41 tokens (2 tokens each; the last one is still alone). Who else does?',
      working = 'Full and both Reindex layers read the 20 keys each: 60.' } },

  { text = [[
This is the layout of V4.1-Flash: 20 encoder layers, a cut, 20 decoder layers (lesson 10 says what these are). A row
stands for a layer, or for several that are alike. It says whether they make entries (the global KV) and a
selection, or from which layer they borrow them. Two layers have a window only (swa, for sliding window attention);
the encoder has three groups of [Full, Reuse x 5], each with its own entries. In the decoder one Full layer stores
for all 20, and four Reindex layers look again (inside a pool; that is the next lesson).]],
    code = [[
flash = kv.preset 'v4.1-flash'
print(flash)
flash:draw()]],
    ask = { question = [[
Layers count from 1. At whose selection does layer 31 read its entries? flash:selector(31) computes it.]],
      answer = 'flash:selector(31)',
      hint = 'Find the row of layer 31. Its last column names the layer.',
      working = 'Layer 29, a Reindex layer; it reads entries of layer 21, the Full one: flash:owner(31).' } },

  { text = [[
Now the number. Three encoder layers store an entry every 2 tokens, one decoder layer an entry every token: 3/2 + 1
= 2.5 entries per token for the whole model, each 288 bytes with a key of 68. That the compression ratio went down,
from 4 in CSA to 2 and 1, costs little when 4 layers store instead of 41.]],
    code = [[
function encoder_ratio(m)  -- m tokens to an entry of the encoder
  return flash:map(function(l)
    return l.ratio == 2 and l { ratio = m } or nil
  end)
end
print((3 / 2 + 1) * (288 + 68))
print(kv.count(flash).store.bytes_per_token)
print(('1/%.0f of MHA'):format(60 * 128 * (128 + 128) * 2 / 890))]],
    ask = { question = 'What if the encoder compressed 4 tokens to one? Bytes per token, please.',
      answer = 'kv.count(encoder_ratio(4)).store.bytes_per_token',
      hint = '(3/4 + 1) x 356, or kv.count(encoder_ratio(4)).store.bytes_per_token.',
      working = '(3/4 + 1) x 356 = 623.',
      code = [[
print(encoder_ratio(4))
kv.count(encoder_ratio(4)).store.bytes_per_token]] } },

  { text = [[
A layout is a value: change it and watch the bytes. Below are V4.1 as it is, with a decoder where every Reindex is a
Full layer, with one where every Reindex is a Reuse, and without any sharing. Sharing entries saves storage, sharing
selections saves reading of keys; each does its part. What they cost in quality the bytes do not say: the model is
trained with its layout, and lesson 13 trains two.]],
    code = [[
function change(from, to)
  return flash:map(function(l) return l.kind == from and to or nil end)
end
variants = {
  { 'V4.1-Flash', flash },
  { 'Full for Reindex', change('reindex', kv.full) },
  { 'Reuse for Reindex', change('reindex', kv.reuse) },
  { 'nothing shared', kv.layout 'swa*2 full/2*18 | full/1*20' },
}
stored, keys = {}, {}
for i, v in ipairs(variants) do
  local n = kv.count(v[2], { context = 131072 })
  stored[i] = { v[1], n.store.bytes_per_token:tonumber() }
  keys[i] = { v[1], n.read.index_bytes:tonumber() / 1e6 }
end
print(plot.bars { title = 'Stored', unit = 'bytes per token', width = 36,
  rows = stored })
print(plot.bars { title = 'Search keys read by a step at 131,072 tokens',
  unit = 'MB', width = 36, rows = keys })]],
    ask = { question = 'With Full in place of Reindex, how many bytes per token?',
      answer = "kv.count(change('reindex', kv.full)).store.bytes_per_token",
      hint = 'Four more layers store an entry and a key for every token.',
      working = '890 + 4 x 356 = 2,314.' } },
} }
