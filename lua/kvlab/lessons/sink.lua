-- The sink, K = V with inverse RoPE, and the grouped output projection.
return { number = 7, name = 'sink', title = 'The sink, one vector as key and value, grouped outputs', steps = {
  { text = [[
What HCA and CSA layers share is how they attend. The first part is the sink. A softmax gives out exactly 1, even
when nothing that is read matters to the query. So every head has a learned number z, and e^z is added to the
denominator: a row that is always there, but has no key and no value.]],
    code = [[
scores = kv.tensor { 1, 0, -1, 0 }
function weights(z)
  local e = scores:exp()
  return e / (e:sum() + math.exp(z))
end
for _, z in ipairs { -math.huge, 0, 2, 4 } do
  print(('z = %4.0f: the four weights add up to %.2f'):format(z,
    weights(z):sum()))
end]],
    ask = { question = [[
Four rows have the score 0, and e^z is 4. How much weight do the rows get together?]],
      answer = '4 / (4 + 4)',
      hint = 'e^0 is 1 for each row. The sink is as heavy as all four.',
      working = '4 / (4 + 4) = 0.5; the other half goes to the sink and adds nothing. `kv.attend` says the same:',
      code = [[
four, c = kv.ones(1, 4, 1), { 1, 1 } -- 4 rows; key and value: column 1
out = kv.attend { q = kv.zeros(1, 1, 1, 1),
  sink = kv.tensor { math.log(4) },
  sources = { { rows = four, key = c, value = c, see = 'all' } } }
print(('%.3f'):format(out:item()))]] } },

  { text = [[
The second part: an entry E is key and value at once, for all heads. There are no weights that expand it for a head,
as MLA has; a query of 512 numbers meets the 512 numbers of an entry, and the output is a weighted sum of the same
entries. That halves what is stored and read. It also brings a difficulty.]],
    code = [[
n, width = 5, 8                  -- five entries, all 8 channels rotated
E = kv.random { 1, n, width, seed = 1 }
q = kv.random { 1, 1, 1, width, seed = 2 }
freqs = kv.rope_freqs { channels = width }
function output(at) -- entries at `at`, at + 1, ..., the query at the last
  local rows = kv.rope(E, freqs, { pos0 = at })
  local turned = kv.rope(q, freqs, { pos0 = at + n - 1 })
  local c = { 1, width }
  return kv.attend { q = turned, pos0 = n - 1, scale = width ^ -0.5,
    sources = { { rows = rows, key = c, value = c } } }
end
a, b = output(0), output(1000)
for i = 1, 4 do
  print(('channel %d: %6.2f at 0, %6.2f at 1000'):format(i, a:flatten()[i],
    b:flatten()[i]))
end]] },

  { text = [[
As a key an entry has to be rotated by its position s. As a value it is then rotated, too, and the output depends on
where in the text everything stands: the same five entries and the same query gave another output at 1000. The
weights were the same, since scores depend on distances only; it is the sum of rotated rows that turned.]],
    code = [[
function back(out, at) -- inverse RoPE at the position of the query
  local turned = kv.rope(out, freqs, { pos0 = at + n - 1, inverse = true })
  return turned:flatten()
end
a, b = back(output(0), 0), back(output(1000), 1000)
for i = 1, 4 do
  print(('channel %d: %6.2f at 0, %6.2f at 1000'):format(i, a[i], b[i]))
end]] },

  { text = [[
That was the way out: the output is turned back by the position t of the query. An entry from position s had been
turned by s, so its part of the output is now turned by s - t, by a distance. Shift all positions and nothing
changes. In a formula, with p the weights and R the rotation:

  (sum over s of p[s] E[s] R(s)) R(-t)  =  sum over s of p[s] E[s] R(s - t)]],
    code = [[
for _, at in ipairs { 10, 1000, 100000 } do
  local change = (back(output(at), at) - back(output(0), 0)):abs():max()
  print(('shifted by %6d: %s'):format(at, change < 1e-3 and 'no change'
    or 'changed'))
end]],
    ask = { question = [[
Only the last 64 of the 512 channels of an entry are rotated in V4. How many percent of an output have to be turned
back?]],
      answer = '64 / 512 * 100',
      tolerance = 0.01,
      hint = '64 of 512 channels.',
      working = '64 / 512 = 12.5 percent. The other 448 carry content that does not know where it stands.' } },

  { text = [[
The third part is the way out of the layer. The outputs of 64 heads of 512 are 32,768 numbers; a matrix from there
to the 4,096 of V4-Flash's hidden state would have 134 million weights in every layer. Instead the heads form 8
groups. Each group is reduced to 1,024 numbers with a matrix of its own, and what the groups give, side by side,
goes through a second matrix to 4,096. Here are attention and output of a CSA layer of V4-Flash, with all three
parts; T is the number of tokens, R of rows that one reads.]],
    code = [[
H, c, D, groups, rank = 64, 512, 4096, 8, 1024
print('one matrix would have', H * c * D)
kv.preset 'v4-flash':draw { layer = 3, parts = { 'attention', 'output' } }]],
    ask = { question = 'How many weights do the 8 matrices of the groups and the second matrix have together?',
      answer = 'groups * (H // groups * c) * rank + groups * rank * D',
      hint = 'A group has 8 heads of 512 numbers in and 1,024 out. The second matrix has 8 x 1,024 in and 4,096 out.',
      working = '8 x 4,096 x 1,024 + 8,192 x 4,096 = 33.6 million twice, 67.1 million: half of one matrix.' } },

  { text = [[
Here is the grouped projection in a small size. It is the product with one matrix after all, but one that is put
together from few weights: blocks on the diagonal for the groups, times the second matrix.]],
    code = [[
o = kv.random { 24, seed = 3 }               -- 4 heads of 6, in 2 groups
wo_a = kv.random { 2, 12, 3, seed = 4 }      -- for each group 12 to 3
wo_b = kv.random { 6, 10, seed = 5 }
y = o:reshape(2, 1, 12):matmul(wo_a):flatten():matmul(wo_b)
none = kv.zeros(12, 3)
upper, lower = kv.cat({ wo_a[1], none }, 2), kv.cat({ none, wo_a[2] }, 2)
one = kv.cat({ upper, lower }, 1):matmul(wo_b)
print('the same:', (o:matmul(one) - y):abs():max() < 1e-4)]] },

  { text = [[
Now a whole HCA layer can be written down: queries, the window, entries, one softmax over both with a sink, the
output turned back, the output projection (here a plain one). It is what `kv.attention` does, with the names that
released checkpoints have. CSA differs in overlapping entries and in the list of the indexer. (V4 also norms each
query head before it is rotated; this toy does not.)]],
    code = [[
A = kv.attention(kv.hca { ratio = 4 }, { hidden_size = 64,
  num_attention_heads = 4, head_dim = 32, qk_rope_head_dim = 16,
  sliding_window = 8 })
x = kv.random { 1, 30, 64, seed = 6 }
freqs = kv.rope_freqs { channels = 16 }
function times(x, name) return x:matmul(A.w[name]:transpose()) end
function norm(x, name) return kv.rms_norm(x, A.w[name]) end
q = kv.rope(times(x, 'wq.weight'):reshape(1, 30, 4, 32), freqs)
near = kv.rope(norm(times(x, 'wkv.weight'), 'kv_norm.weight'), freqs)
bias = A.w['compressor.ape']
pooled = kv.compressor { ratio = 4, width = 32, bias = bias }:push(
  times(x, 'compressor.wkv.weight'), times(x, 'compressor.wgate.weight'))
far = norm(pooled, 'compressor.norm.weight')
far = kv.rope(far, freqs, { stride = 4 })
c = { 1, 32 }
sources = { { rows = near, key = c, value = c, see = 'window', window = 8 },
  { rows = far, key = c, value = c, see = 'blocks', ratio = 4 } }
out = kv.attend { q = q, scale = 32 ^ -0.5, sink = A.w.attn_sink,
  sources = sources }
out = kv.rope(out, freqs, { inverse = true }):reshape(1, 30, 4 * 32)
y = times(out, 'wo.weight')
print('as the layer:', (y - A:full(x)):abs():max() < 1e-4)]] },
} }
