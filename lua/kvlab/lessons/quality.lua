-- Quality: small models learn recall, or not, by what their layers can read.
-- Training amplifies last bits, so losses differ a little between processors; what is learned does not.
return { number = 13, name = 'quality', title = 'Quality: what a layout can and cannot learn', varies = true, steps = {
  { text = [[
Bytes are half of the story. Whether a model can do with what its layers share is shown by training, and small
models on a small task show a good deal in seconds. The task is recall: pairs of a key and a value, then some of the
keys again, each to be answered with its value. This is what a cache is there for. Below is one row: tokens 0 to 7
are keys, 8 to 15 values; a point means that nothing is asked.]],
    code = [[
recall = kv.tasks.recall { vocab = 16, pairs = 4, length = 16 }
batch = recall.batch(1, 1, 32)  -- seed, step, rows
tokens, targets = '', ''
for t = 1, 16 do
  tokens = tokens .. ('%3d'):format(batch.tokens[1][t])
  local target = batch.targets[1][t]
  targets = targets .. (target < 0 and '  .' or ('%3d'):format(target))
end
print('tokens ' .. tokens)
print('targets' .. targets)]],
    ask = { question = [[
Guessing among all values is right once in 8. A model that has learnt that the answer is one of the values of the
row, but not which, guesses among 4. Its loss, the mean of -ln p, is then...?]],
      answer = 'math.log(4)', tolerance = 0.01,
      hint = 'p = 1/4, and -ln(1/4) = ln 4. math.log is the natural logarithm.',
      working = 'ln 4 = 1.386. We will meet that number.' } },

  { text = [[
First, layers with windows of two tokens: each sees its own token and the one before. (They have keys and values by
heads, as MHA has, so their kind is spelt out: layer{form=heads,window=2}. The models here consist of attention
alone.) Does it help to stack them? A token that is changed must change what comes later, if it is to be seen there.
So change one token at a time and see whether the prediction at the last of 12 positions moves. (The weights are
random; training cannot make a path that is not there.)]],
    code = [[
widths = { hidden_size = 32, num_attention_heads = 4,
  num_key_value_heads = 4, head_dim = 8, vocab_size = 16 }
window = 'layer{form=heads,window=2}'
function reach(layout)
  local m, line = kv.model(layout, widths, { ffn = 0 }), ''  -- no MLPs
  local ids = { 3, 9, 1, 12, 5, 8, 2, 14, 6, 10, 7, 3 }
  local before = m:forward(ids):select(2, 12)
  for t = 1, 12 do
    local changed = table.move(ids, 1, 12, 1, {})
    changed[t] = (ids[t] + 1) % 16
    local same = m:forward(changed):select(2, 12):equal(before)
    line = line .. (same and '.' or '#')
  end
  return line
end
print(plot.strip { x = 'token that is changed', rows = {
  { 'one window layer', reach(window) },
  { 'two', reach(window .. '*2') },
  { 'three', reach(window .. '*3') },
  { 'one full layer', reach 'mha' } },
  legend = { { '#', 'seen at position 12' }, { '.', 'not seen' } } })]],
    ask = { question = [[
How many tokens does position 12 see through three layers whose windows have 4 tokens (itself included)?]],
      answer = "select(2, reach('layer{form=heads,window=4}*3'):gsub('#', ''))",
      hint = "Each layer adds 3 tokens. Or ask: reach 'layer{form=heads,window=4}*3'",
      working = '1 + 3 x 3 = 10. Windows alone reach layers x (window - 1) tokens back, and not one more.' } },

  { text = [[
So on recall two such layers must fail whenever the pair is further away than two tokens. Let us train them all the
same, to know what failure looks like. 150 steps of 32 rows take a second or two; raise `steps` when you have more
time. Accuracy is measured on rows that training has not seen.]],
    code = [[
steps = 150
results, curves, layouts = {}, {}, {}
function train(name, layout, seed)
  local m = kv.model(layout, widths, { ffn = 0, seed = seed or 2 })
  local optimiser = kv.adamw(m, { lr = 1e-2,
    schedule = kv.schedule.cosine { warmup = 20, steps = steps } })
  local losses, at, sum = {}, {}, 0
  for step = 1, steps do
    local loss, gradients = m:loss(recall.batch(seed or 2, step, 32))
    optimiser:step(gradients)
    sum = sum + loss
    if step % 10 == 0 then
      table.insert(losses, sum / 10)  -- the mean of ten steps
      table.insert(at, step)
      sum = 0
    end
  end
  local check = recall.validation(1, 128)
  local score = recall.score(check, m:forward(check.tokens):argmax(3))
  results[name] = score.correct / score.count
  curves[name], layouts[name] = { name, losses, x = at }, layout
  print(('%-20s %d steps: loss %.2f, right %.2f'):format(name, steps,
    losses[#losses], results[name]))
end
train('window, window', window .. '*2')]] },

  { text = [[
Now one window layer and one layer that sees everything. The window layer can write into the row of each value which
key stands before it; the next layer's key rows then say "value of key k", and a query for k finds it. Two layers
are needed, and they are enough.]],
    code = [[
train('window, full', window .. ' mha')]],
    ask = { question = 'Which share of the answers was right? (To 5 %.)',
      answer = "results['window, full']", tolerance = 0.05,
      hint = 'The last number of the line above.',
      working = 'Practically all: the task can be learnt by two small layers in 150 steps.' } },

  { text = [[
Next, two layers that see everything but share: a full layer (MHA) stores keys and values, the second reads the same
ones (reuse). They stand directly on the embeddings, the vectors that tokens have before the first layer.]],
    code = [[
train('full, reuse', 'mha reuse')]],
    ask = { question = 'It has found the set of 4 values, but not which. What accuracy is guessing among them?',
      answer = '1 / 4',
      hint = 'One of four.',
      working = [[
And its loss nears ln 4 = 1.39. More steps do not help: type steps = 600 and train again. In longer trials, of 3,000
steps, it stayed there too.]] } },

  { text = [[
Why? The rows that both layers read are made from the input of the full layer, the embeddings. The row of a value
knows the value and nothing of the key before it; the row of a key knows nothing of the value behind it. The second
layer has a better query, since the first has looked around, but reads the same rows as the first, and none of them
joins a key with its value. Here one of 8 tokens is changed, and a mark says which key rows of the full layer change
with it: on the embeddings, and above a window layer.]],
    code = [[
below = kv.attention(kv.layer { form = 'heads', window = 2 }, widths)
full_layer = kv.attention(kv.mha, widths)
function keys(x, with_window)
  if with_window then x = x + below:full(x) end
  return kv.linear(x, full_layer.w['k_proj.weight'])
end
function changed_rows(with_window)
  local x, line = kv.random { 1, 8, 32, seed = 1 }, ''
  local y = x:clone()
  y:select(2, 4):add_(1)  -- the fourth token
  local a, b = keys(x, with_window), keys(y, with_window)
  for t = 1, 8 do
    line = line .. (a:select(2, t):equal(b:select(2, t)) and '.' or '#')
  end
  return line
end
plot.strip { x = 'row of the cache; token 4 is changed', rows = {
  { 'on the embeddings', changed_rows(false) },
  { 'above a window layer', changed_rows(true) } } }]],
    ask = { question = [[
In a model [Full, Full], without sharing, layer 2 has rows of its own. From how many of the tokens 1 to 8 may its
row 8 know?]],
      answer = '8',
      hint = 'Its rows are made from the output of layer 1, which sees every token up to its own.',
      working = [[
Of all. Two unshared layers can learn recall, though these two take longer than 150 steps: the first has to learn to
look one token back, which a window of two need not learn. With steps = 600, train('full, full', 'mha mha') often
gets there.]] } },

  { text = [[
So one window layer below repairs the sharing model: its full layer then stores rows that join key and value, and
the Reuse layer reads those. V4.1-Flash, too, begins with two layers that have a window only, before its first Full
layer. Beside it the same model without sharing.]],
    code = [[
train('window, full, reuse', window .. ' mha reuse')
train('window, full, full', window .. ' mha mha')
order = { 'window, window', 'full, reuse', 'window, full',
  'window, full, reuse', 'window, full, full' }
series = {}
for i, name in ipairs(order) do series[i] = curves[name] end
plot.line { title = 'Loss while training', x = 'step', y = 'loss', from = 0,
  height = 14, series = series }]],
    ask = { question = [[
By how much is the model that shares worse than the other, as a difference of what is right? (To 0.05.)]],
      answer = "math.floor((results['window, full, full'] - results['window, full, reuse']) * 20 + 0.5) / 20",
      hint = "Compare results['window, full, full'] with results['window, full, reuse'].",
      working = 'Here sharing has cost no quality: it was the missing window layer, not the sharing, that failed.' } },

  { text = [[
And the bytes? Each full layer stores the keys and values of 4 heads of 8 numbers, in BF16; a window layer stores
two tokens, however long the context.]],
    code = [[
function bytes(text)
  local L = kv.layout(text):labelled { widths = widths }
  return kv.count(L, { records = 'bf16' }).store
end
for _, name in ipairs(order) do
  local store = bytes(layouts[name])
  print(('%-20s %3s bytes per token + %3s, right %.2f'):format(name,
    store.bytes_per_token, store.fixed_bytes, results[name]))
end]],
    ask = { question = 'How many bytes per token would four more Reuse layers add?',
      answer = "(bytes(window .. ' mha reuse*5').bytes_per_token - bytes(window .. ' mha reuse').bytes_per_token)",
      hint = 'What does a Reuse layer store for the whole context?',
      working = 'None. That is the idea of CSA2, and of V4.1-Flash, whose 4 Full layers store for 38.' } },

  { text = [[
One small task decides nothing for large models. Try harder ones: more pairs, a window of 3, other seeds (the third
argument of train). Runs differ from seed to seed; a claim needs several, and `kvlab sweep` runs them and reports
mean and spread (docs/sweeps.md). This is where the way from 3.9 MB to 890 bytes ends: what is stored and read can
be computed and measured; what it does to a model has to be tried, and the layouts of these models were trained as
they are.]],
    code = [[
recall = kv.tasks.recall { vocab = 32, pairs = 6, length = 24 }
widths.vocab_size = 32
-- then steps = 400, and train(...) as above]] },
} }
