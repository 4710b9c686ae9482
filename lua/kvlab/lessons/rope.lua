-- RoPE: scores that depend on distance only, and why MLA keeps the rotated part of a key apart.
return { number = 3, name = 'rope', title = 'RoPE: positions as rotations, and where they may not be', steps = {
  { text = [[
Attention as it stands does not know the order of tokens: a key is the same wherever its token stands. RoPE tells
it. The numbers of a query or key are taken in pairs, each pair is a point in a plane, and for a token at position t
the point is turned about the origin by t times a fixed angle, the frequency. Here is one pair that turns by 1
radian a position; it starts at (1, 0).]],
    code = [[
freqs = kv.rope_freqs { channels = 2 }
function turn(pair, position)
  local x = kv.tensor(pair):reshape(1, 1, -1) -- {batch, tokens, width}
  return kv.rope(x, freqs, { pos0 = position }):flatten()
end
for t = 0, 3 do print(t, turn({ 1, 0 }, t)) end]] },

  { text = [[
A query at t has been turned by t, a key at s by s. Their dot product depends on the angle between them, and turning
both by the same amount leaves that angle as it is. So the score depends on t - s only: the model learns what "three
tokens ago" means, and it means the same everywhere.]],
    code = [[
q, k = { 0.8, 0.6 }, { 0.5, -1 }
function score(t, s) return (turn(q, t) * turn(k, s)):sum() end
for _, t in ipairs { 3, 10, 1000 } do
  print(('t = %4d, s = %4d: %.4f'):format(t, t - 3, score(t, t - 3)))
end
print(('t = %4d, s = %4d: %.4f'):format(10, 5, score(10, 5)))]],
    ask = { question = [[
What is the score of a query (1, 0) at position 12 with a key (1, 0) at position 4? Two decimals are enough.]],
      answer = '(turn({ 1, 0 }, 12) * turn({ 1, 0 }, 4)):sum()',
      tolerance = 0.05,
      hint = 'Only the distance counts: the cosine of 12 - 4 radians. The function `turn` is still there.',
      working = 'cos(8) = -0.1455: after 8 radians, more than a full turn, they are almost at right angles.' } },

  { text = [[
One pair is not enough: it comes back to where it was after 6.3 positions, so near and far look alike. DeepSeek
rotates 64 numbers, 32 pairs, with frequencies from 1 down to about 1/7,500. The fast pairs tell neighbours apart,
the slow ones hardly move for thousands of tokens. (For long contexts the released models slow the slow ones down
further; these lessons leave that out.)]],
    code = [[
list = kv.rope_freqs { channels = 64 }:frequencies()
for _, i in ipairs { 1, 9, 17, 25, 32 } do
  turn_in = 2 * math.pi / list[i]
  print(('pair %2d: once around in %8.1f tokens'):format(i, turn_in))
end]] },

  { text = [[
With all pairs together the score of a query with an equal key falls off with distance. Each pair adds the cosine of
its angle; the picture shows their mean. Near tokens stand out, and all frequencies together keep far ones from
looking near.]],
    code = [[
points = {}
for distance = 0, 60 do
  local total = 0
  for _, f in ipairs(list) do total = total + math.cos(distance * f) end
  points[#points + 1] = { distance, total / #list }
end
plot.line { series = { { 'mean of 32 cosines', points } }, width = 70,
  height = 10, x = 'distance t - s (tokens)', y = 'score' }]] },

  { text = [[
Can the content keys of MLA be rotated like this, too? A key is built from the latent c of its token: k = c WUK,
then turned by s. Absorbing means to carry WUK over to the query, so that one vector q_hat meets every latent in the
cache. But now the rotation stands in between. In row vectors, R(t) for the rotation to position t:

  score = (q R(t)) . (c WUK R(s)) = q R(t - s) (WUK)^T . c

The vector that meets c is q R(t - s) (WUK)^T. Here it is for one query at t = 3 and the four tokens it sees.]],
    code = [[
freqs = kv.rope_freqs { channels = 8 }
WUK = kv.random { 12, 8, seed = 7 }
c = kv.random { 4, 12, seed = 15 }        -- latents of tokens 0 to 3
q = kv.random { 1, 1, 8, seed = 9 }
for s = 0, 3 do
  -- turned forward by t = 3, back by s
  local x = kv.rope(kv.rope(q, freqs, { pos0 = 3 }), freqs,
    { pos0 = s, inverse = true })
  q_hat = x:reshape(8):matmul(WUK:transpose())
  print(('for token %d: %6.2f %6.2f %6.2f ...'):format(s, q_hat:get(1),
    q_hat:get(2), q_hat:get(3)))
end]] },

  { text = [[
Four tokens need four different vectors: no single q_hat exists. If one is used all the same, say that of the newest
token, the scores are wrong everywhere but there.]],
    code = [[
keys = kv.rope(c:matmul(WUK):reshape(1, 4, 8), freqs):reshape(4, 8)
right = keys:matmul(kv.rope(q, freqs, { pos0 = 3 }):flatten())
wrong = c:matmul(q_hat)                   -- q_hat of token 3
for s = 0, 3 do
  print(('token %d: right %6.2f, with one q_hat %6.2f'):format(s,
    right:get(s + 1), wrong:get(s + 1)))
end]],
    ask = { question = [[
A q_hat for every token would be right. In V2 one takes 128 x 512 multiply-adds. What does a key cost that is
expanded from its latent, for each token?]],
      answer = '512 * 128',
      hint = 'A latent of 512 numbers times a matrix {512, 128}.',
      working = '512 x 128 = 65,536, just as much. Absorbing would save nothing any more.' } },

  { text = [[
So MLA splits the key. The content part, from the latent, is not rotated and can be absorbed. The position goes into
a small rotary key of 64 numbers, one for all heads, that is rotated once and stored beside the latent. Content
scores are blind to position, rotary scores see t - s, and the sum of both is the score.]],
    code = [[
freqs = kv.rope_freqs { channels = 4 }
qC, kC = kv.random { 4, 8, seed = 10 }, kv.random { 4, 8, seed = 11 }
qR, kR = kv.random { 1, 4, 4, seed = 12 }, kv.random { 1, 4, 4, seed = 13 }
function scores(first) -- of four tokens, the first at that position
  local a = kv.rope(qR, freqs, { pos0 = first }):reshape(4, 4)
  local b = kv.rope(kR, freqs, { pos0 = first }):reshape(4, 4)
  return qC:matmul(kC:transpose()) + a:matmul(b:transpose())
end
print('positions 0 to 3 and 1000 to 1003 score the same:',
  (scores(0) - scores(1000)):abs():max() < 1e-3)]] },

  { text = [[
The split costs width: 576 numbers for a token instead of 512. It also means that a stored rotary key can never
move: it was turned for its own position. Later models, which store one vector as key and value at once, meet this
again, and there the output has to be turned back (lesson 7).]],
    ask = { question = 'Which part of the 576 stored numbers is the rotary key, in percent?',
      answer = '64 / 576 * 100',
      tolerance = 0.02,
      hint = '64 of 576.',
      working = '64 / 576 = 11.1 percent: the price of knowing the order while reading only latents.' } },
} }
