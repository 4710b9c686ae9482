-- CSA: overlapping entries, and an indexer that picks among them.
return { number = 6, name = 'csa', title = 'CSA: overlapping entries, read selectively', steps = {
  { text = [[
HCA reads every entry, so its blocks have to be large, and a block of 128 tokens is coarse. The other layers of V4
use CSA (Compressed Sparse Attention): blocks of 4 tokens, and an indexer as in DSA that picks the entries to read.
With blocks so small much happens across their borders, so entries overlap: each is pooled from 8 tokens, the 4 of
its own block and the 4 of the block before. For that a token makes candidates and scores that are twice as wide: a
first half, a, for the next block's entry, and a second half, b, for its own.]],
    code = [[
m, c = 4, 2                      -- tokens in a block, width of an entry
C = kv.random { 16, 2 * c, seed = 1 }
Z = kv.random { 16, 2 * c, seed = 2 }
B = kv.random { m, 2 * c, seed = 3 }
ZB = Z + kv.cat({ B, B, B, B }, 1)    -- the bias repeats in every block
function half(t, name, b)        -- the rows of block b, one half of them
  local first = name == 'a' and 1 or c + 1
  return t:slice(1, b * m + 1, b * m + m):slice(2, first, first + c - 1)
end
print(half(C, 'a', 0).shape[1], 'rows of width', half(C, 'a', 0).shape[2])]] },

  { text = [[
Entry b takes the a half of block b - 1 and the b half of block b, lays these 8 rows on top of each other, and
applies one softmax down all 8, for each channel by itself. Here it is for entry 1, beside `kv.compressor`; the
picture shows the weights, a column for each channel.]],
    code = [[
rows = kv.cat({ half(C, 'a', 0), half(C, 'b', 1) }, 1)
weights = kv.cat({ half(ZB, 'a', 0), half(ZB, 'b', 1) }, 1):softmax(1)
by_hand = (weights * rows):sum(1)
options = { ratio = m, width = c, overlap = true, bias = B }
function entries(C)
  return kv.compressor(options):push(C:unsqueeze(1), Z:unsqueeze(1))[1]
end
E = entries(C)
print(E.shape[1], 'entries; entry 1 as by hand:',
  (E[2] - by_hand):abs():max() < 1e-5)
plot.heat { values = weights, width = 60, columns = { '1', '2' },
  rows = { '0 a', '1 a', '2 a', '3 a', '4 b', '5 b', '6 b', '7 b' },
  x = 'channel', y = 'token and half', unit = 'weight in entry 1' }]] },

  { text = [[
The first entry has no block before it. It is pooled from its own 4 tokens, with a softmax over 4 rows instead of 8.
There is still one entry for 4 tokens, so the ratio is 4: overlap widens what an entry sees, not what is stored.]],
    code = [[
own = (half(ZB, 'b', 0):softmax(1) * half(C, 'b', 0)):sum(1)
print('entry 0 from its own block:', (E[1] - own):abs():max() < 1e-5)]],
    ask = { question = [[
16 tokens make 4 entries. Change the candidates of token 5 and look which entries change. Which will it be? (A list
of entries, from 0.)]],
      answer = '{ 1, 2 }',
      hint = 'Token 5 is in block 1. Its b half goes to its own entry, its a half to the next.',
      working = 'Entry 1 through the b half and entry 2 through the a half; no other:',
      code = [[
changed = C:clone()
changed:slice(1, 6, 6):fill_(9)       -- token 5; slices count from 1
for b = 0, 3 do
  local same = E[b + 1]:equal(entries(changed)[b + 1])
  print('entry ' .. b, same and 'as it was' or 'changed')
end]] } },

  { text = [[
Like an HCA entry it goes through RMSNorm and is rotated by RoPE to the position of the first token of its own
block, 4 b; that it also looked at the block before does not change this. Now to the choice. The index keys come
from a second compressor with weights of its own: the same blocks, the same overlap, but narrower (128 instead of
512 numbers). So key s and entry s stand for the same tokens, and the number of a picked key is the number of the
entry to read. Entries and keys together, which grow with the text, are the global KV of a layer; the rows of the
window are its local KV.]],
    code = [[
Ck, Zk = kv.random { 16, 6, seed = 4 }, kv.random { 16, 6, seed = 5 }
keys = kv.compressor { ratio = m, width = 3, overlap = true }
  :push(Ck:unsqueeze(1), Zk:unsqueeze(1))
print('entries', E.shape[1], E.shape[2])
print('keys', keys.shape[2], keys.shape[3])]] },

  { text = [[
Scores are those of DSA: for each indexer head the dot product with the key, ReLU, times the head's weight, added
up. Only complete entries are candidates, and the best k are read; V4-Flash takes 512, here k = 2. `##` is a pick.]],
    code = [[
r = kv.index { q = kv.random { 1, 16, 8, 3, seed = 6 },
  w = kv.random { 1, 16, 8, dist = 'uniform', seed = 7 },
  keys = { rows = keys }, ratio = m, k = 2, scores = true }
function line(t)
  local words, picked = {}, {}
  for _, s in ipairs(r.top[1][t + 1]:totable()) do picked[s] = true end
  for s = 0, 3 do
    local score = r.scores:get(1, t + 1, s + 1)
    words[s + 1] = score == -math.huge and '    -   '
      or ('%5.2f %s'):format(score, picked[s] and '##' or '  ')
  end
  print(('t = %2d  '):format(t) .. table.concat(words, ' '))
end
print('entry       0        1        2        3')
for t = 2, 10 do line(t) end]],
    ask = { question = 'How many candidates does token 11 have?',
      answer = '(11 + 1) // m',
      hint = 'Blocks 0 to 3, 4 to 7 and 8 to 11; the last is completed by token 11 itself.',
      working = '(11 + 1) // 4 = 3, and it reads the best two of them, beside its window:',
      code = [[line(11)]] } },

  { text = [[
The newest entry has no privilege: what is picked depends on the scores alone. The newest tokens are read in any
case, through the window. Here is a model of one CSA layer with real caches, and what its token 11 reads: three
candidates are scored, each with its key, and the entries of the best two are read beside the window of 4.]],
    code = [[
widths = { hidden_size = 32, num_attention_heads = 2, head_dim = 16,
  qk_rope_head_dim = 8, sliding_window = 4, index_n_heads = 8,
  index_head_dim = 16, index_topk = 2, intermediate_size = 32,
  vocab_size = 16 }
toy = kv.model('csa', widths)
kv.trace(toy, { position = 11, records = 'f32' })]],
    ask = { question = 'How many rows does token 100,000 of this layer read in all, entries and window?',
      answer = 'math.min(widths.index_topk, (100000 + 1) // m) + widths.sliding_window',
      hint = 'It has 25,000 candidates and scores them all. How many does it read?',
      working = [[
2 + 4 = 6, as token 11 does: however long the text gets, it stays k + window. An HCA layer with blocks of 4 would
read 25,000 + 4.]] } },

  { text = [[
A layer by itself gives, besides its output, the list of what each token picked; -1 stands for nothing. In a context
of 131,072 tokens each of V4-Flash's 21 CSA layers stores 32,768 entries and keys, reads all of the keys, but only
512 entries and 128 window rows.]],
    code = [[
A = kv.attention(kv.csa, widths)
y, picked = A:full(kv.random { 1, 16, 32, seed = 8 })
for _, t in ipairs { 2, 3, 7, 11, 15 } do print(t, picked[1][t + 1]) end]],
    ask = { question = [[
An entry takes 584 bytes and a key 68 in V4-Flash. How many bytes for each token do its 21 CSA layers store
together?]],
      answer = '21 * (584 + 68) / 4',
      hint = 'One entry and one key for 4 tokens, in each of 21 layers.',
      working = [[
21 x 652 / 4 = 3,423. With the 91.25 of the HCA layers that is 3,514.25 bytes for each token, 1/1,119 of MHA.]],
      code = [[
n = kv.count(kv.preset 'v4-flash')
print(n.store.bytes_per_token, n.store.bytes_per_token:tonumber())]] } },
} }
