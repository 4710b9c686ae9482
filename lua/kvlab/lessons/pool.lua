-- The hierarchical indexer: a candidate pool of the best blocks, in which later layers look again.
return { number = 9, name = 'pool', title = 'The hierarchical indexer: search once, then in a pool', steps = {
  { text = [[
An indexer reads little of each position, but it reads every position. In the decoder of V4.1-Flash, where every
token is an entry, one Full layer and four Reindex layers select; if each scanned the whole context, that would be
five scans a token. Here are the bytes of search keys that a step would read in all 40 layers, by length of the
context.]],
    code = [[
flash = kv.preset 'v4.1-flash'
whole = flash:map(function(l)  -- the same model, its Reindex layers scan
  return l.kind == 'reindex' and l { pool = 'none' } or nil
end)
function keys_read(layout, N)
  return kv.count(layout, { context = N }).read.index_bytes:tonumber()
end
for _, N in ipairs { 8192, 131072, 1048576 } do
  print(('%9d tokens: %6.1f MB'):format(N, keys_read(whole, N) / 1e6))
end]],
    ask = { question = [[
At N tokens the three Full layers of the encoder read N/2 keys each, the Full layer of the decoder N, the four
Reindex layers N each; a key has 68 bytes. How many keys are that for N = 131,072?]],
      answer = 'keys_read(whole, 131072) / 68',
      hint = '(3/2 + 1 + 4) x 131,072.',
      working = '(3/2 + 5) x 131,072 = 851,968 keys, and 68 times as many bytes: 57.9 MB.' } },

  { text = [[
The remedy is to search coarsely once and finely in what was found. Let us take 23 tokens and scores that we can
read. With keys of two numbers, a query (1, 0) has the first numbers as its scores and a query (0, 1) the second
ones. Say the Full layer asks with (1, 0). It scores all positions and takes its best k = 4, as every indexer does.
Positions count from 0; one digit is a score times 10.]],
    code = [[
full_scores = { .2,.9,.1,.3,  .4,.1,.5,.2,  .8,.7,.1,.6,
                .1,.2,.3,.1,  .7,.2,.1,.4,  .1,.0,.2 }
other_scores = { .1,.3,.2,.8,  .6,.1,.1,.2,  .4,.2,.7,.1,
                 .1,.1,.2,.1,  .9,.3,.2,.1,  .3,.5,.1 }
keys = kv.stack({ kv.tensor(full_scores), kv.tensor(other_scores) }, 2)
keys = { rows = keys:unsqueeze(1) }
w = kv.ones(1, 1, 1)  -- one index head of weight 1
function ask(q, options)  -- the newest token, at position 22, asks
  options.q, options.w = kv.tensor { { { q } } }, w
  options.keys, options.pos0 = keys, 22
  return kv.index(options)
end
function digits(scores)
  local line = ''
  for _, s in ipairs(scores) do line = line .. ('%.0f'):format(s * 10) end
  return line
end
function marks(ids)  -- a mark at each position of a list
  local line = {}
  for s = 1, 23 do line[s] = '.' end
  for _, id in ipairs(ids:flatten():totable()) do
    if id >= 0 then line[id + 1] = 'x' end
  end
  return table.concat(line)
end
first = ask({ 1, 0 }, { k = 4 })
plot.strip { from = 0, x = 'position', rows = {
  { 'score', digits(full_scores) }, { 'selected', marks(first.top) } } }]] },

  { text = [[
At the same time it builds a pool of candidates for the layers to come. Positions are grouped into blocks, here of
4; these are groups for searching only, nothing is compressed. A block is worth as much as its best position, and
the best blocks make up the pool, here 3. One place is taken beforehand: the block of the newest position is pinned:
it is in the pool whatever its score, and counts as one of the 3.]],
    code = [[
first = ask({ 1, 0 }, { k = 4, build = { blocks = 3, block = 4 } })
for b = 0, 5 do
  local scores = table.move(full_scores, 4 * b + 1, 4 * b + 4, 1, {})
  print(('block %d, positions %2d to %2d: best score %.1f'):format(b, 4 * b,
    math.min(4 * b + 3, 22), math.max(table.unpack(scores))))
end
plot.strip { from = 0, x = 'position', rows = {
  { 'block', '00001111222233334444555' }, { 'score', digits(full_scores) },
  { 'selected', marks(first.top) }, { 'pool', marks(first.pool) } } }]],
    ask = { question = [[
Blocks 0 and 2 have the best scores, and block 5 is pinned. The Full layer's own selection is not confined to the
pool: it searched everything. Which position did it select that is not in the pool?]],
      answer = '16',
      hint = 'Look for a mark in the line of the selection that has none below it in the line of the pool.',
      working = [[
It is in block 4. Its score of 0.7 is among the four best of all positions, but block 4 is the third best of all
blocks, and after the pinned one only two places are left.]] } },

  { text = [[
A Reindex layer has another query, here (0, 1), and wants other positions. It scores the positions of the pool, and
only these; the others do not exist for it. Compare what it selects with what it would have selected from the whole
context.]],
    code = [[
inside = ask({ 0, 1 }, { k = 4, pool = first.pool })
everywhere = ask({ 0, 1 }, { k = 4 })
print(plot.strip { from = 0, x = 'position', rows = {
  { 'its score', digits(other_scores) }, { 'pool', marks(first.pool) },
  { 'selected', marks(inside.top) },
  { 'without pool', marks(everywhere.top) } } })
function common(a, b)  -- how many ids two lists have in common
  local set, n = {}, 0
  for _, id in ipairs(a:flatten():totable()) do set[id] = id >= 0 end
  for _, id in ipairs(b:flatten():totable()) do
    if set[id] then n = n + 1 end
  end
  return n
end]],
    ask = { question = 'How many of the 4 positions that it would have liked best does it get?',
      answer = 'common(inside.top, everywhere.top)',
      hint = 'Count the columns in which the last two lines both have a mark.',
      working = [[
Positions 3 and 10. Its favourite, position 16, belongs to block 4, which the Full layer left out. No later layer
can bring it back, since all of them search in this pool.]] } },

  { text = [[
Could V4.1-Flash lose one of the Full layer's own picks, as we have lost position 16? It has k = 512 and a pool of
2,048 blocks. Think of a selected position outside the pool. The 2,047 blocks that were chosen for their score are
all at least as good as its block, so each has a position that scores at least as high as it does. Then 2,047
positions come before it, and it cannot be among the best 512. A pick can be outside only when k is at least the
number of blocks. Here is a trial with random scores, 200 for each line.]],
    code = [[
function outside(k, blocks)
  local r = kv.index { q = kv.ones(200, 1, 1, 1), w = kv.ones(200, 1, 1),
    keys = { rows = kv.random { 200, 64, 1, dist = 'uniform', seed = k } },
    pos0 = 63, k = k, build = { blocks = blocks, block = 4 } }
  local n = 200 * k
  for trial = 1, 200 do n = n - common(r.pool[trial], r.top[trial]) end
  return n
end
for k = 2, 7 do
  print(('k = %d, 5 blocks: %3d of %4d picks outside'):format(k,
    outside(k, 5), 200 * k))
end]],
    ask = { question = 'With k = 512, how many blocks must a pool have for every pick of the Full layer to be inside?',
      answer = '513',
      hint = 'The trial: with 5 blocks all is well up to k = 4.',
      working = 'One more than k, for the pinned one. V4.1-Flash has four times as many.' } },

  { text = [[
So a pool of V4.1-Flash holds all that the Full layer reads itself, and about 16,000 positions more, for layers that
look for something else. How much they find depends on how alike the queries are. Here 256 positions are scored by a
Full query and by a Reindex query that is a mixture of the same query and another one; of the 16 positions that
Reindex would like best, the graph shows the share that the pool holds.]],
    code = [[
function found(mix, blocks)
  local q = kv.random { 50, 1, 8, 16, seed = 1 }
  local other = q * mix + kv.random { 50, 1, 8, 16, seed = 2 } * (1 - mix)
  local keys = { rows = kv.random { 50, 256, 16, seed = 3 } }
  local w = kv.ones(50, 1, 8)
  local p = kv.index { q = q, w = w, keys = keys, pos0 = 255,
    build = { blocks = blocks, block = 8 } }.pool
  local wanted = kv.index { q = other, w = w, keys = keys, pos0 = 255,
    k = 16 }.top
  local n = 0
  for trial = 1, 50 do n = n + common(p[trial], wanted[trial]) end
  return n / (50 * 16)
end
sizes, series = { 2, 4, 8, 12, 16, 24, 32 }, {}
for i, mix in ipairs { 0.7, 0.5, 0 } do
  local points = {}
  for j, blocks in ipairs(sizes) do points[j] = found(mix, blocks) end
  series[i] = { ({ 'alike', 'half', 'unlike' })[i], points, x = sizes }
end
plot.line { title = 'Share of the wanted positions that the pool holds',
  x = 'blocks of 8 positions in the pool, of 32', y = 'share',
  series = series, height = 12, from = 0, upto = 1 }]] },

  { text = [[
What is it worth? A Reindex layer of V4.1-Flash scores at most 2,048 x 8 = 16,384 positions, however long the
context is. Up to that length a pool holds everything, changes nothing and saves nothing. Beyond it the scans of the
Full layers remain, and grow with the context.]],
    code = [[
lengths, a, b = {}, {}, {}
for i = 1, 16 do
  lengths[i] = 8192 * i
  a[i] = keys_read(whole, lengths[i]) / 1e6
  b[i] = keys_read(flash, lengths[i]) / 1e6
end
plot.line { title = 'Search keys read by a step', x = 'context, tokens',
  y = 'MB', height = 12, from = 0, series = {
    { 'Reindex scans all', a, x = lengths },
    { 'Reindex in the pool', b, x = lengths } } }]],
    ask = { question = 'How many bytes of keys does a step read at 131,072 tokens, with the pool?',
      answer = 'keys_read(flash, 131072)',
      hint = '(3 x N/2 + N + 4 x 16,384) x 68.',
      working = '(196,608 + 131,072 + 65,536) x 68 = 26,738,688 bytes, 26.7 MB instead of 57.9.' } },

  { text = [[
In a layout the pool is a field of its owner: full/1{pool=2048x8}, blocks x positions. Here is a model with a small
pool and real caches; its token at position 50 is decoded. Layer 1 scores all 51 positions, picks four and builds
the pool from three blocks, the newest among them; as k = 4 is more than these three, a pick may lie outside. Layer
2 reads the same four and scores nothing; layer 3 scores the pool and picks again.]],
    code = [[
toy = { hidden_size = 64, num_attention_heads = 4, head_dim = 32,
  qk_rope_head_dim = 16, q_lora_rank = 32, sliding_window = 8,
  index_n_heads = 8, index_head_dim = 32, index_topk = 4, vocab_size = 100 }
m = kv.model('full/1{pool=3x4} reuse reindex', toy)
kv.trace(m, { position = 50 })]],
    ask = { question = [[
Layer 3 has scored the 11 positions of the pool. How many will it score for the next token, at position 51?]],
      answer = '#kv.trace(m, { position = 51 }).layers[3].scored',
      hint = 'The pool has 3 blocks of 4; the newest one is 48 to 51.',
      working = [[
Three whole blocks. At position 50 the pinned block, which began at 48, had only three positions that exist.]] } },
} }
