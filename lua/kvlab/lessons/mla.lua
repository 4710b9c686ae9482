-- MLA: one latent for all heads, and three orders of computing with it.
return { number = 2, name = 'mla', title = 'MLA: one small vector for all heads', steps = {
  { text = [[
Multi-head Latent Attention, of DeepSeek-V2, stores one small vector for a token, the latent, from which every head
can build its key and its value. Three paths leave the input X of a layer, and all of them start from X itself: a
query latent, the shared KV latent C, and a rotary key KR that will carry the position. Only C and KR are cached.
Here are 6 tokens in a toy size; rows are tokens, a weight is {in, out}. (A real layer also normalises the latents,
which is left out here.)]],
    code = [[
function W(seed, rows, cols)
  return kv.random { rows, cols, seed = seed } * rows ^ -0.5
end
D, rank_q, rank, d, d_r = 32, 16, 12, 8, 4
X  = kv.random { 6, D, seed = 1 }
cQ = X:matmul(W(2, D, rank_q))  -- query latent, not stored
C  = X:matmul(W(3, D, rank))    -- KV latent, stored
KR = X:matmul(W(4, D, d_r))     -- rotary key, stored
print('numbers for a token:', C.shape[2] + KR.shape[2])]] },

  { text = [[
Each head has weights of its own that build its vectors from the latents: WUQ a query and WUK a key for the content,
WUV a value, WQR a query for the position. The score is the sum of two parts, content times content and rotary times
rotary. That is the dot product of the two vectors laid side by side, so it is ordinary attention.]],
    code = [[
WUQ, WQR = W(5, rank_q, d), W(6, rank_q, d_r)
WUK, WUV = W(7, rank, d), W(8, rank, d)
QC, QR = cQ:matmul(WUQ), cQ:matmul(WQR)
KC, V = C:matmul(WUK), C:matmul(WUV)
sum = QC:matmul(KC:transpose()) + QR:matmul(KR:transpose())
joined = kv.cat({ QC, QR }, 2):matmul(kv.cat({ KC, KR }, 2):transpose())
print('the same scores:', (sum - joined):abs():max() < 1e-5)]] },

  { text = [[
From scores to probabilities: divide by the square root of d + d_r, hide the tokens that come later than the query
(the causal mask: their score is minus infinity), and apply the softmax to each row. A row of P says how much the
token takes from the value of each token.]],
    code = [[
later = 1 - kv.tril(6, 6)
S = kv.where(later:eq(1), -math.huge, sum / (d + d_r) ^ 0.5)
P = S:softmax()
plot.heat { values = P, digits = true, x = 'token that is read',
  y = 'token that reads', unit = 'probability', width = 70 }]] },

  { text = [[
All heads share C and KR: with 128 heads or with 4, the cache holds rank + d_r numbers for a token. Here are the
three paths in V2, with the names and sizes of its weights: an arrow multiplies with the weight that it leads to, T
is the number of tokens, C is called C^KV, and what a layer keeps of every token is its global KV. The weights of
all heads lie side by side in one matrix, and C and KR come out of one, too. (RMSNorm brings a vector to a standard
length; RoPE is the next lesson.) What is kept has a frame of its own: 512 and 64 numbers, 2 bytes each, in every
one of 60 layers.]],
    code = [[
kv.preset 'v2':draw { layer = 1, parts = { 'query', 'cache' } }]],
    ask = { question = 'How many bytes per token does V2 store?',
      answer = '60 * (512 + 64) * 2',
      hint = 'Layers x numbers of a token x bytes.',
      working = '60 x 576 x 2 = 69,120, about 1/57 of the 3,932,160 of MHA. The counted layout says the same:',
      code = [[kv.count(kv.preset 'v2').store.bytes_per_token]] } },

  { text = [[
It seems that every step now has to rebuild the keys of all cached tokens, C times WUK. But a product of matrices
may be bracketed as one likes. Multiply WUK into the query instead (absorb), and C is used as it lies in the cache.
Or multiply WUQ and WUK with each other once and for all (merge). Three orders, one result, equal up to rounding.]],
    code = [[
function same(a, b) return (a - b):abs():max() < 1e-5 end
expand = QC:matmul(C:matmul(WUK):transpose())
q_hat  = QC:matmul(WUK:transpose())      -- as wide as C
absorb = q_hat:matmul(C:transpose())
WQ     = WUQ:matmul(WUK:transpose())     -- one weight {rank_q, rank}
merge  = cQ:matmul(WQ):matmul(C:transpose())
print('absorb:', same(expand, absorb), 'merge:', same(expand, merge))]] },

  { text = [[
Values work the same way. Instead of building the value of every token and adding them up by the probabilities P,
add up the latents by P and build one value from the sum. With the head's part WO of the output weight, WUV and WO
can be merged too.]],
    code = [[
WO = W(9, d, D)
expand = P:matmul(C:matmul(WUV)):matmul(WO)
absorb = P:matmul(C):matmul(WUV):matmul(WO)
merge  = P:matmul(C):matmul(WUV:matmul(WO))
print('absorb:', same(expand, absorb), 'merge:', same(expand, merge))]] },

  { text = [[
The results are equal, the work is not. Count multiply-adds for the content scores of one head of V2: d = 128, rank
= 512, T queries and N cached tokens. To expand, build N keys (512 x 128 each), then take dot products of 128
numbers. To absorb, turn T queries (128 x 512 each), then take dot products of 512 numbers: four times longer.]],
    code = [[
function expand_cost(T, N) return N * 512 * 128 + T * N * 128 end
function absorb_cost(T, N) return T * 128 * 512 + T * N * 512 end
N = 131072
print('decode, T = 1')
print(('  expand %13d'):format(expand_cost(1, N)))
print(('  absorb %13d'):format(absorb_cost(1, N)))]],
    ask = { question = [[
In prefill there are many queries at once, and a key that was expanded serves all of them. From how many queries T
on does expanding cost less than absorbing, at N = 131,072? (Try numbers: `expand_cost(100, N) < absorb_cost(100,
N)`.)]],
      answer = 'kv.flops(kv.count(kv.preset "v2")).expand_wins',
      hint = [[
Absorbing pays 512 - 128 = 384 more for each query and token, expanding pays 512 x 128 for each token once. Divide.]],
      working = [[
N x 65,536 / (N x 384 + 65,536) = 170.4, so from 171 queries on. That is why engines expand in prefill and absorb in
decode. Values and all heads change both sides by the same factor; kvlab counts the whole layer:]],
      code = [[kv.flops(kv.count(kv.preset 'v2')).expand_wins]] } },

  { text = [[
And merging? It saves a product, but the merged weight is {1536, 512} in V2 where the two it replaces are {1536,
128} and {512, 128}. Every value of a weight is one multiply-add for a query, and one number to read from memory.]],
    ask = { question = 'How many values does the merged weight of one head have?',
      answer = '1536 * 512',
      hint = 'Rows times columns.',
      working = [[
1,536 x 512 = 786,432 per head, against 1,536 x 128 + 512 x 128 = 262,144: three times as many. So merging is the
most expensive way to make a query. For all of V2, in millions of multiply-adds for one token at a context of 4,096:]],
      code = [[
f = kv.flops(kv.count(kv.preset 'v2', { context = 4096 }))
for _, order in ipairs(f.orders) do
  n = f.decode[order].total:tonumber()
  print(('%-7s %10.0f'):format(order, n / 1e6))
end]] } },

  { text = [[
A whole MLA layer, with weights and norms, gives the same in each order, up to rounding. Whichever is used, the
cache holds the same 576 numbers for a token, and a decode step reads nothing else: in V2 9.06 GB at 131,072 tokens,
where MHA reads 515. The picture shows how V2 decodes: R cached rows meet the query as they are and are then added
up by P. (0.1147 is 1 / sqrt(128 + 64), times a factor of 1.59 that V2 has for long contexts.)]],
    code = [[
toy = { hidden_size = 32, num_attention_heads = 4, q_lora_rank = 16,
  kv_lora_rank = 12, qk_nope_head_dim = 8, qk_rope_head_dim = 4,
  v_head_dim = 8 }
x = kv.random { 1, 6, 32, seed = 10 }
y = {}
for _, order in ipairs { 'expand', 'absorb', 'merged' } do
  y[order] = kv.attention(kv.mla, toy, { order = order }):full(x)
end
print(same(y.expand, y.absorb), same(y.expand, y.merged))
print(kv.count(kv.preset 'v2').read.total_bytes)
kv.preset 'v2':draw { layer = 1, order = 'absorb', parts = { 'attention' } }]] },
} }
