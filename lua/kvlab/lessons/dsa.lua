-- DSA: a small indexer decides which positions are read.
return { number = 4, name = 'dsa', title = 'DSA: read only the positions that matter', steps = {
  { text = [[
MLA made a token's cache small, but a decode step still reads all of it: every position, in every layer. Yet a
softmax gives most of its weight to few positions. DeepSeek Sparse Attention (DSA, of V3.2) lets a small module, the
lightning indexer, pick them first. It has heads of its own and three things: a query for each of these heads, one
key for each token that all of them share (the search key, which is cached), and a weight for each head that the
reading token sets. Here are 6 tokens and 2 indexer heads of width 3.]],
    code = [[
K = kv.tensor { {1,0,0}, {0,2,0}, {0,0,1},
                {0,-1,1}, {2,0,0}, {0,1,1} } -- one key a token
Q = kv.tensor { {1,0,1}, {-1,1,0} }  -- the queries of token 5 (from 0)
w = kv.tensor { 1, 0.75 }            -- its head weights
Q:matmul(K:transpose())]] },

  { text = [[
Those are the dot products of each head with each key. Negative ones become 0 (ReLU), each row is multiplied with
the weight of its head, and the rows are added:

  I(t, s) = sum over heads j of  w(t, j) * max(0, q(t, j) . k(s))

There is no softmax, because the scores serve one purpose only: to be ranked. With ReLU a head can say "this
position matters" or nothing, so what one head finds is not cancelled by another that looks for something else.]],
    code = [[
I = (Q:matmul(K:transpose()):relu() * w:reshape(2, 1)):sum(1)
print(I)]],
    ask = { question = 'What is the score of a key (1, 2, 3)?',
      answer = '(Q:matmul(kv.tensor { 1, 2, 3 }):relu() * w):sum()',
      hint = 'The first head finds 1 + 3, the second -1 + 2 and has the weight 0.75.',
      working = '1 x max(0, 4) + 0.75 x max(0, 1) = 4.75.' } },

  { text = [[
The best k positions of this ranking are read. V3.2 has 64 indexer heads of width 128 and takes 2,048 positions; it
was trained so that the ranking follows the weights of the main attention. Here k = 3. `kv.index` does all of it: it
scores and selects. Of equal scores the earlier position wins, and the list is in the order of positions, which
count from 0.]],
    code = [[
function pick(k)
  return kv.index { q = Q:reshape(1, 1, 2, 3), w = w:reshape(1, 1, 2),
    keys = { rows = K:reshape(1, 6, 3) }, pos0 = 5, k = k }.top:flatten()
end
pick(3)]],
    ask = { question = 'Which positions are read with k = 4? (A list: `answer { 0, 1 }`.)',
      answer = 'pick(4)',
      hint = 'Look at the scores I, which start with position 0. Of equal ones take the first.',
      working = 'The fourth best score is 1, and position 0 is the first that has it.' } },

  { text = [[
Every token picks for itself. The picture shows sixteen tokens with random queries and keys, k = 4: a row is a token
that reads, shades are scores, `o` marks what it picked. The first four tokens see no more than four positions and
take them all. Position 1 was left out by the tokens 8 to 11, and token 12 picks it: nothing can be thrown away.]],
    code = [[
T = 16
r = kv.index { q = kv.random { 1, T, 8, 8, seed = 1 },
  w = kv.random { 1, T, 8, dist = 'uniform', seed = 2 },
  keys = { rows = kv.random { 1, T, 8, seed = 3 } }, k = 4, scores = true }
ids, marks = {}, {}
for t, picks in ipairs(r.top[1]:totable()) do
  ids[t] = tostring(t - 1)
  for _, s in ipairs(picks) do
    if s >= 0 then marks[#marks + 1] = { t, s + 1, 'o' } end
  end
end
plot.heat { values = r.scores[1], rows = ids, columns = ids, marks = marks,
  legend = { { 'o', 'picked' } }, x = 'position', y = 'token', width = 60 }]] },

  { text = [[
The main attention then works with the picked positions. There are two ways to write that. A mask adds 0 to the
scores of picked positions and minus infinity to all others; after the softmax their probability is 0. A gather
takes the picked rows out first and computes with nothing else. The results are the same. (A row stands for key and
value at once here, as a latent does when MLA absorbs.)]],
    code = [[
rows = kv.random { 6, 8, seed = 4 }       -- one row a position
q = kv.random { 8, seed = 5 }
picked = pick(3)
mask = kv.filled({ 6 }, -math.huge)
for _, s in ipairs(picked:totable()) do mask:set(s + 1, 0) end
masked = (rows:matmul(q) + mask):softmax():matmul(rows)
few = rows:index_select(1, picked)        -- 3 rows
gathered = few:matmul(q):softmax():matmul(few)
print('the same:', (masked - gathered):abs():max() < 1e-5)]] },

  { text = [[
A whole layer is MLA with the mask of the indexer. Here are the probabilities of one of its heads, in tenths, for
sixteen tokens and k = 4: blank is what the mask took away, the future and what was not picked. What is picked need
not weigh much here: these weights are random, and it is training that makes the indexer rank as the main attention
would.]],
    code = [[
A = kv.attention(kv.dsa, { hidden_size = 32, num_attention_heads = 4,
  q_lora_rank = 16, kv_lora_rank = 12, qk_nope_head_dim = 8,
  qk_rope_head_dim = 4, v_head_dim = 8, index_n_heads = 8,
  index_head_dim = 8, index_topk = 4 })
x = kv.random { 1, 16, 32, seed = 6 }
p, labels = A:probabilities(x)             -- {batch, head, token, position}
seen = kv.where(A:mask(x)[1]:eq(0), p[1][1], -math.huge)
plot.heat { values = seen, from = 0, upto = 1, digits = true, width = 60,
  rows = labels.rows, columns = labels.columns, unit = 'probability',
  x = 'position', y = 'token' }]] },

  { text = [[
What differs is the reading. The mask computed with all 6 rows, the gather with 3. Storage is a third thing: all
rows stay, and the indexer's keys come on top. In BF16, a layer of V3.2 keeps 576 numbers of MLA and a key of 128.]],
    code = [[
for _, name in ipairs { 'v3', 'v3.2' } do
  n = kv.count(kv.preset(name), { records = 'bf16' })
  print(("%-5s stores %d B, a step reads %.2f GB"):format(name,
    n.store.bytes_per_token:tonumber(),
    n.read.total_bytes:tonumber() / 1e9))
end]],
    ask = { question = 'By how many percent does storage grow from V3 to V3.2 in BF16?',
      answer = '128 / 576 * 100',
      tolerance = 0.02,
      hint = 'A key of 128 numbers is added to 576.',
      working = '128 / 576 = 22 percent: 85,888 bytes instead of 70,272. DSA does not reduce storage.' } },

  { text = [[
V3.2 is deployed with smaller numbers: the 512 latent values in FP8 (a byte each) with 4 scales (factors of 4 bytes
that give the values back their size; lesson 11) and the rotary key in BF16 are 656 bytes, the search key in FP8
with its scale is 132. Each token stores (656 + 132) x 61 layers = 48,068 bytes. At 131,072 tokens a step reads
2,048 rows of 656 bytes in each layer, and 131,072 keys too.]],
    code = [[
read = kv.count(kv.preset 'v3.2').read
kv_part, key_part = read.kv_bytes:tonumber(), read.index_bytes:tonumber()
v2 = kv.count(kv.preset 'v2').read.total_bytes:tonumber()
plot.bars { unit = 'MB read for a token', parts = { 'KV', 'search keys' },
  width = 48, rows = { { 'V2', { v2 / 1e6, 0 } },
    { 'V3.2', { kv_part / 1e6, key_part / 1e6 } } } }]],
    ask = { question = 'Which part of what V3.2 reads are search keys, in percent?',
      answer = 'key_part / (kv_part + key_part) * 100',
      tolerance = 0.01,
      hint = 'The variables kv_part and key_part hold the bytes.',
      working = [[
1.06 GB of 1.14 GB, 93 percent. The rows that attention reads no longer grow with the context, the scan over all
keys does.]] } },

  { text = [[
`kvlab kv v3.2 --access mask`, or the option here, counts code that scores everything and then masks: then nothing
of the reading is saved. How the selection is computed is not a detail. The keys that remain to be scanned are what
the next generation cuts down, by storing fewer of them.]],
    code = [[
for _, access in ipairs { 'gather', 'mask' } do
  n = kv.count(kv.preset 'v3.2', { access = access }).read.total_bytes
  print(('%-7s %5.2f GB'):format(access, n:tonumber() / 1e9))
end]] },
} }
