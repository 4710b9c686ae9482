-- The causal encoder-decoder and bounded replay: what prefill saves, the error, and when there is none.
return { number = 10, name = 'replay', title = 'The encoder-decoder and bounded replay', steps = {
  { text = [[
V4.1-Flash calls its first 20 layers encoder and its last 20 decoder. That is not the encoder-decoder of
translation: both halves run over the same tokens, each token sees only what came before it, and a token passes
through all 40 layers in turn. The difference is where the decoder's global KV comes from. Entries and keys, one for
each token, are projected from the encoder's output; the 20 decoder layers share them. What a decoder layer makes
from its own input is a query and the rows of its own window. Here is such a model in small, three layers and three
layers, with windows of 4 tokens.]],
    code = [[
toy = { hidden_size = 64, num_attention_heads = 4, head_dim = 32,
  qk_rope_head_dim = 16, q_lora_rank = 32, sliding_window = 4,
  index_n_heads = 8, index_head_dim = 32, index_topk = 4,
  intermediate_size = 64, vocab_size = 100 }
m = kv.model('swa full/2 reuse | full/1 reuse reuse', toy)
m.layout:draw { widths = toy }]] },

  { text = [[
This saves work in prefill, when a prompt is taken in. Nobody needs the decoder's output for the tokens of a prompt,
but for the last one, from which the first new token comes. And what later tokens need from the decoder is its
caches. The global KV comes from the encoder; the windows hold the last few tokens only. So the encoder runs over
the whole prompt, and the decoder over the last n tokens. The report calls this replay. Here n = 4 for a prompt of
48 tokens; the owner of the decoder's entries and keys makes them (k) for all tokens, without running.]],
    code = [[
prompt = kv.permutation(100, 1):slice(1, 1, 48)
grid = kv.trace.prefill(m, { tokens = prompt, replay = 4 })
print(grid)
print('entries of layer 4:', grid.layers[4].entries)]],
    ask = { question = [[
3 x 48 + 3 x 4 = 156 evaluations of a layer at a position, instead of 6 x 48 = 288. V4.1-Flash replays 128 tokens.
How many does it need for a prompt of 100,000?]],
      answer = '20 * 100000 + 20 * 128',
      hint = '20 layers run on all of the 100,000 tokens and 20 layers on the last 128.',
      working = [[
Half of the 4,000,000 without replay. That is a count of evaluations; time depends on more.]] } },

  { text = [[
But the result is not the same: the picture said so of the last layer's output. A replayed token near the beginning
of the replay should see the window rows of the tokens before it, and they were never computed. Let us measure what
it does to the logits, the numbers from which the next token is chosen: those of the last token, with replay of n
tokens and without, as ||difference|| / ||logits||. (A model with random weights is good enough to see it.)]],
    code = [[
whole = m:sequence { records = 'f32' }
want = whole:prefill(prompt)
function size(x) return (x * x):sum() ^ 0.5 end
function shown(e)
  return e < 1e-5 and 'rounding only' or ('%.4f'):format(e)
end
for n = 1, 12 do
  local s = m:sequence { records = 'f32' }
  local e = size(s:prefill(prompt, { replay = n }) - want) / size(want)
  print(('replay of %2d tokens: error %s'):format(n, shown(e)))
  s:free()
end]],
    ask = { question = [[
Three decoder layers, windows of 4: exact from n = 10. What would it be with two decoder layers?]],
      answer = [[(function()
  local m = kv.model('swa full/2 reuse | full/1 reuse', toy)
  local right = m:sequence { records = 'f32' }:prefill(prompt)
  for n = 1, 48 do
    local e = size(m:sequence { records = 'f32' }:prefill(prompt, { replay = n }) - right)
    if e < 1e-5 * size(right) then return n end
  end
end)()]],
      hint = 'A layer whose window is W looks W - 1 = 3 tokens back, and each layer adds as many.',
      working = '1 + 2 x 3 = 7, as a run of such a model says too; with three layers it was 1 + 3 x 3 = 10.' } },

  { text = [[
Why so sharp? The input of the first decoder layer is the encoder's output, and that is right everywhere. But the
first W - 1 tokens of the replay look at window rows that are missing, so their output is wrong. The next layer
takes this in; its token number 2 (W - 1) is the last that sees a wrong row. Each layer hands the damage W - 1
tokens on. With D decoder layers the last token of the prompt is right when n is at least 1 + D (W - 1).]],
    code = [[
function damage(n, W, D)
  local rows = {}
  for layer = D, 1, -1 do
    local wrong = math.min(n, layer * (W - 1))
    local cells = ('x'):rep(wrong) .. ('#'):rep(n - wrong)
    rows[#rows + 1] = { 'decoder layer ' .. layer, cells }
  end
  return plot.strip { rows = rows, x = 'token of the replay',
    legend = { { '#', 'output is right' }, { 'x', 'output is wrong' } } }
end
print(damage(10, 4, 3))
print(damage(9, 4, 3))]],
    ask = { question = [[
V4.1-Flash has 20 decoder layers and windows of 128 tokens. How many tokens would make its first token exact?]],
      answer = '1 + 20 * (128 - 1)',
      hint = '1 + D (W - 1).',
      working = [[
1 + 20 x 127 = 2,541. It replays 128 and accepts the error; the model is trained with this truncation. And a long
way is rarely used to its full: in the table above the error has all but gone long before n = 10.]] } },

  { text = [[
What would exactness cost? For a short prompt a replay of 2,541 tokens is the whole prompt. For a long one the two
can hardly be told apart, since both halve the evaluations.]],
    code = [[
function share(T, n)  -- of the evaluations without replay, in percent
  return 100 * (20 * T + 20 * math.min(n, T)) / (40 * T)
end
lengths, a, b = {}, {}, {}
for i = 0, 14 do
  lengths[#lengths + 1] = 1000 * 100 ^ (i / 14)
  a[#a + 1] = share(lengths[#lengths], 128)
  b[#b + 1] = share(lengths[#lengths], 2541)
end
plot.line { title = 'Evaluations of a prefill', x = 'prompt, tokens',
  y = '% of all', xscale = 'log', height = 12, from = 40, upto = 100,
  series = { { 'replay of 128', a, x = lengths },
    { 'exact, 2541', b, x = lengths } } }]],
    ask = { question = 'A prompt of 10,000 tokens: how many percent of the evaluations does the exact replay need?',
      answer = 'share(10000, 2541)', tolerance = 0.01,
      hint = 'share(10000, 2541)',
      working = '(20 x 10,000 + 20 x 2,541) / (40 x 10,000) = 62.7 %; with 128 it is 50.6 %.' } },

  { text = [[
Nor does the error stay. Every generated token runs through all layers and puts right rows, or nearly right ones,
into the windows, and wrong ones fall out. For the bound, k generated tokens count like k replayed ones. Here both
sequences go on with the same tokens after a replay of 4.]],
    code = [[
replayed = m:sequence { records = 'f32' }
first = replayed:prefill(prompt, { replay = 4 })
errors = { size(first - want) / size(want) }
exact_one = whole:fork()
for k = 1, 8 do
  local want = exact_one:decode(k)
  errors[k + 1] = size(replayed:decode(k) - want) / size(want)
end
for k, e in ipairs(errors) do
  print(('after %d generated tokens: error %s'):format(k - 1, shown(e)))
end]],
    ask = { question = 'In V4.1-Flash, with a replay of 128: after how many generated tokens is the next result exact?',
      answer = '1 + 20 * 127 - 128',
      hint = 'n + k = 1 + D (W - 1).',
      working = '2,541 - 128 = 2,413. In the small model it was 10 - 4 = 6.' } },

  { text = [[
Two things do not change. Decoding: a generated token runs through all layers, so replay saves nothing there. And
the cache: the same rows are stored, right or not quite.]],
    code = [[
before = replayed.evaluations
replayed:decode(50)
print('evaluations for one generated token:', replayed.evaluations - before)
exact_one:decode(50)
print('bytes stored after replay:   ', replayed:stats().stored_bytes)
print('bytes stored without replay: ', exact_one:stats().stored_bytes)]] },
} }
