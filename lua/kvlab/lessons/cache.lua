-- What a KV cache is, and the four factors of its size.
return { number = 1, name = 'cache', title = 'What a KV cache is, and its four factors', steps = {
  { text = [[
A language model writes one token after another. In every layer each token becomes three vectors: a query, a key and
a value. Attention compares the query of the newest token with the keys of all tokens up to itself; a softmax turns
these scores into weights that add up to 1, and the output is the sum of the values with those weights. Here is one
such step with vectors of 4 numbers: tokens are rows, and q is the query of the last of five tokens.]],
    code = [[
X = kv.tensor { {1,0,2,0}, {0,1,0,1}, {2,1,0,0}, {0,0,1,1}, {1,1,0,1} }
WK = kv.tensor { {1,0,0,0}, {0,0,1,0}, {0,1,0,0}, {0,0,0,1} }
WV = kv.tensor { {0,1,0,0}, {1,0,0,0}, {0,0,1,1}, {0,0,0,1} }
K, V = X:matmul(WK), X:matmul(WV)
q = kv.tensor { 1, 0, 1, 1 }
p = (K:matmul(q) / 2):softmax()  -- scores are divided by sqrt(4)
print(p)
print(p:matmul(V))]] },

  { text = [[
Now a sixth token arrives. Its query needs the keys and values of all six tokens, but those of the first five are
what they were: a token's key depends on that token and the ones before it, never on later ones. So they are kept,
and only one new row is computed. What is kept is the KV cache.]],
    code = [[
new = kv.tensor { {0,2,1,0} }
K_cached = kv.cat({ K, new:matmul(WK) }, 1)
K_all = kv.cat({ X, new }, 1):matmul(WK)
print('one row appended equals all rows computed:', K_cached:equal(K_all))]],
    ask = { question = [[
Without a cache, every step computes the key rows of all tokens up to its own. How many key rows is that for the
steps of tokens 1 to 1,000 together? (With a cache it is 1,000.)]],
      answer = '1000 * 1001 // 2',
      hint = 'Step t computes t rows: 1 + 2 + ... + 1000.',
      working = '1 + 2 + ... + 1000 = 1000 x 1001 / 2 = 500,500, five hundred times as many as with a cache.' } },

  { text = [[
The price is memory. A model has many layers, and multi-head attention (MHA) does the step above many times side by
side in each: in heads, each with queries, keys and values of its own. DeepSeek-V2 with plain MHA would have 60
layers of 128 heads, with 128 numbers for a key and 128 for a value, 2 bytes each (a format called BF16). kvlab
describes a model by its layout, the list of its layers; `kv.preset 'mha'` is the layout of this one, and `kv.count`
counts what it stores.]],
    code = [[
by_hand = 60 * 128 * (128 + 128) * 2
counted = kv.count(kv.preset 'mha')
print(by_hand, counted.store.bytes_per_token)]],
    ask = { question = [[
That is 3.9 MB for one token. How many bytes does a request with a context of 131,072 tokens keep? (An expression is
as good as a number, such as `answer(2*3)`.)]],
      answer = 'by_hand * 131072',
      hint = 'Every token of the context keeps its 3,932,160 bytes.',
      working = '3,932,160 x 131,072 = 515,396,075,520 bytes, 515 GB for a single request.',
      code = [[kv.count(kv.preset 'mha', { context = 131072 }).store.total_bytes]] } },

  { text = [[
Memory is one problem, reading is the other. A model works in two ways: a prompt is taken in at once (prefill), then
tokens are generated one by one, each in a decode step. In a decode step the query of the token meets every key of
every layer and head, so the whole cache is read, for every token again. How many tokens are generated in a second
is then bounded by how fast memory can be read.]],
    code = [[
read = counted.read.total_bytes:tonumber()
print(('one token reads %.0f GB'):format(read / 1e9))
print(('at 3,000 GB/s that takes %.0f ms'):format(read / 3e12 * 1000))]] },

  { text = [[
What can be made smaller? The bytes per token are a product of four factors:

  width of what a layer keeps for a token (numbers)
    x  layers that keep it
    x  bytes of a number
    /  tokens that share one stored vector (the compression ratio)

`kv.factors` splits any layout so; where layers differ, the width and the others are means. The first line is MHA,
the others are what DeepSeek built from 2024 on. Every lesson that follows explains one of the changes.]],
    code = [[
models = { 'mha', 'v2', 'v3.2', 'v4-flash', 'v4.1-flash' }
function split(name)
  local f = kv.factors(kv.count(kv.preset(name)))
  for factor, exact in pairs(f) do f[factor] = exact:tonumber() end
  local product = f.width * f.layers * f.bytes / f.ratio
  print(('%-10s %5.0f x %2.0f x %.3f / %4.2f = %10.2f bytes'):format(name,
    f.width, f.layers, f.bytes, f.ratio, product))
end
for _, name in ipairs(models) do split(name) end]] },

  { text = [[
The product can be asked about models that nobody has built. Say 10 layers store a vector of 512 numbers of 2 bytes,
and m tokens share one vector.]],
    code = [[
function bytes_per_token(m) return 512 * 10 * 2 / m end
bytes_per_token(4)]],
    ask = { question = 'How many bytes per token if m = 8?',
      answer = 'bytes_per_token(8)',
      hint = 'Twice as many tokens share a vector: half of what it was.',
      working = [[
512 x 10 x 2 / 8 = 1,280. kvlab counts the same. A layout can be written as text: hca is a kind of layer (lesson 5),
/8 lets 8 tokens share a vector, *10 makes ten such layers.]],
      code = [[
kv.count(kv.layout 'hca/8*10', { records = 'bf16' }).store.bytes_per_token]] } },

  { text = [[
A first cut was known before DeepSeek: several heads share one key and value. With all 128 heads in 8 groups (GQA)
the width falls to 1/16, with one group (MQA) to 1/128, but heads that share a key differ in their queries only: all
of them search the same, and find the same values there. DeepSeek took another path, which is the next lesson.]],
    code = [[
-- the sizes of the model, under the names of its config.json
widths = { hidden_size = 5120, num_attention_heads = 128, head_dim = 128 }
for _, groups in ipairs { 128, 8, 1 } do
  widths.num_key_value_heads = groups
  n = kv.count(kv.layout 'gqa*60', { widths = widths })
  print(groups, n.store.bytes_per_token)
end]],
    ask = { question = [[
DeepSeek-V2 keeps 576 numbers for a token in each of its 60 layers, for all heads together, in 2 bytes. How many
times less than MHA is that, to the nearest whole number?]],
      answer = 'math.floor(by_hand / (60 * 576 * 2) + 0.5)',
      hint = '3,932,160 divided by 60 x 576 x 2.',
      working = '3,932,160 / 69,120 = 56.9: about 57 times less, and every head keeps its own keys and values.' } },

  { text = [[
This is the whole way, from 3.9 MB to 890 bytes. The axis is logarithmic: equal steps are equal ratios. You can type
Lua at any point of a lesson, such as `split 'v3'`, or change a number and draw again.]],
    code = [[
rows = {}
for i, name in ipairs(models) do
  n = kv.count(kv.preset(name)).store.bytes_per_token
  rows[i] = { name, n:tonumber() }
end
plot.bars { scale = 'log', unit = 'bytes a token', width = 38, rows = rows }]] },
} }
