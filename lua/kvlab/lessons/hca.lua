-- HCA: a block of tokens becomes one entry.
return { number = 5, name = 'hca', title = 'HCA: a block of tokens becomes one entry', steps = {
  { text = [[
V4 compresses along tokens: the vectors of m neighbouring tokens are merged into one, which is called an entry, and
only the entry is kept. In an HCA layer (Heavily Compressed Attention) m is 128; here it is 4. For every token the
layer makes a candidate C and scores Z, both as wide as an entry. A softmax over the four tokens, for each channel
by itself, turns scores into weights, and the entry is the weighted sum: every channel chooses which tokens it
listens to.]],
    code = [[
m = 4
C = kv.tensor { {8, 1}, {0, 2}, {0, 3}, {0, 4} } -- 4 tokens, 2 channels
Z = kv.tensor { {5, 0}, {0, 0}, {0, 0}, {0, 0} }
S = Z:softmax(1)                                 -- down the tokens
print(S)
print('entry:', (S * C):sum(1))]],
    ask = { question = [[
Channel 2 has equal scores, so its entry is the mean, 2.5. What would the entry of channel 1 be if its scores were
equal, too?]],
      answer = 'C:mean(1)[1]',
      hint = 'Each of the four candidates 8, 0, 0, 0 has the weight 1/4.',
      working = '8 / 4 = 2. With a score of 5 for the first token its weight is 0.98, and the entry 7.84.' } },

  { text = [[
A position bias B is added to the scores before the softmax: one learned number for each place in the block and each
channel, the same in all blocks. With it a channel can prefer, say, the last token of a block whatever it contains.
`kv.compressor` does the pooling for any number of blocks; here are two of them, beside the same by hand.]],
    code = [[
C = kv.random { 8, 2, seed = 1 }
Z = kv.random { 8, 2, seed = 2 }
B = kv.random { m, 2, seed = 3 }
function block(t, b) return t:slice(1, b * m + 1, b * m + m) end
hand = {}
for b = 0, 1 do
  local weights = (block(Z, b) + B):softmax(1)
  hand[b + 1] = (weights * block(C, b)):sum(1)
end
pooling = kv.compressor { ratio = m, width = 2, bias = B }
entries = pooling:push(C:unsqueeze(1), Z:unsqueeze(1)) -- {1, 8, 2}
print(entries.shape[2], 'entries of 8 tokens, as by hand:',
  (entries[1] - kv.stack(hand)):abs():max() < 1e-5)]] },

  { text = [[
Tokens arrive one at a time, and an entry exists only when its block is full. Until then the compressor keeps the
rows of the open block, a small state beside the cache. Two finishing touches make the pooled row an entry: RMSNorm,
and RoPE at the position of the block's first token, so entry b is at position b m.]],
    code = [[
pooling = kv.compressor { ratio = m, width = 2, bias = B }
for t = 0, 7 do
  done = pooling:push(C:slice(1, t + 1, t + 1):unsqueeze(1),
    Z:slice(1, t + 1, t + 1):unsqueeze(1))
  print(('token %d: %d entries finished, %2d bytes of state'):format(t,
    done.shape[2], pooling:state_bytes()))
end]] },

  { text = [[
What can token t read? Of entries only complete ones: entry b holds tokens up to b m + m - 1, so it needs b < (t +
1) // m. The newest tokens, whose block is still open, would be invisible. So every layer also keeps, for each of
the last tokens, t included, a vector that is not compressed, made by a weight of its own: the window, 128 tokens in
V4, 4 here. A token may be in an entry and in the window at once. This is a model of one HCA layer with real caches;
`kv.trace` decodes the token at position 5 and shows what it reads (columns with a dash are for layers that search,
of which the next lesson has one; 'f32' keeps rows as plain numbers of 4 bytes).]],
    code = [[
widths = { hidden_size = 32, num_attention_heads = 2, head_dim = 32,
  qk_rope_head_dim = 8, sliding_window = 4, intermediate_size = 32,
  vocab_size = 16 }
toy = kv.model('hca/4', widths)
function look(t) return kv.trace(toy, { position = t, records = 'f32' }) end
look(5)]],
    ask = { question = 'At t = 6, how many rows are read: complete entries and rows of the window together?',
      answer = '(6 + 1) // m + math.min(widths.sliding_window, 6 + 1)',
      hint = 'Block 0 (tokens 0 to 3) is complete, block 1 (4 to 7) is not; the window holds tokens 3 to 6.',
      working = 'One entry and four rows: 5. Tokens 4 to 6 are read through the window only, token 3 in both ways.',
      code = 'look(6)' } },

  { text = [[
One token later block 1 is complete, by the very token that reads: its own token counts. Nothing is taken out of the
window for it.]],
    ask = { question = 'How many rows does token 7 read?',
      answer = '(7 + 1) // m + math.min(widths.sliding_window, 7 + 1)',
      hint = 'Entries 0 and 1, and the window.',
            working = 'Two entries and four rows: 6. Tokens 4 to 7 are now read twice, in entry 1 and in the window.',
      code = 'look(7)' } },

  { text = [[
The bytes in these tables are no formula: the caches count what is read from them. The same counters step by step,
as a sequence grows: bytes of a step divided by the 32 x 4 bytes of a row. Change the ratio or the window of `toy`
and count again.]],
    code = [[
seq = toy:sequence { records = 'f32' }
for t = 0, 7 do
  seq:reset()
  seq:decode(t)
  r = seq:reads()
  print(('token %d: %d entries, %d rows of the window'):format(t,
    r.selected_bytes // 128, r.window_bytes // 128))
end]] },

  { text = [[
With m = 128 an entry of 584 bytes (lesson 11 says of what) serves 128 tokens. V4-Flash has 20 such layers; together
they grow by 20 x 584 / 128 = 91.25 bytes for a token. Every complete entry is read, without an indexer: there are
few of them.]],
    ask = { question = 'How many rows does one HCA layer read at a context of 131,072 tokens, with a window of 128?',
      answer = '131072 // 128 + 128',
      hint = 'One entry for 128 tokens, and the window.',
      working = '131,072 / 128 = 1,024 entries and 128 rows: 1,152, where MLA reads 131,072.',
      code = [[
n = kv.count(kv.layout 'hca', { records = 'v4-main',
  widths = { head_dim = 512, sliding_window = 128 } })
print(n.store.bytes_per_token, n.read.total_bytes:tonumber() / 584)]] } },
} }
