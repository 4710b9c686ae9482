-- Count = measured: what formulas say of the five models, and what real caches say.
return { number = 12, name = 'measure', title = 'Count = measured: five models, then yours', steps = {
  { text = [[
Here are the five models side by side, as a count: what a token adds to the cache, and what one step reads with
131,072 tokens cached, each model in the records that are in use for it. A step reads every entry that a layer
attends to once for that layer, and every search key that an indexer scores.]],
    code = [[
models = { 'mha', 'v2', 'v3.2', 'v4-flash', 'v4.1-flash' }
line = '%-10s | %9s | %6s | %11s | %9s'
print(line:format('', 'B / token', 'of MHA', 'KV read', 'keys'))
mha_bytes = kv.count(kv.preset 'mha').store.bytes_per_token:tonumber()
function MB(bytes) return ('%.1f MB'):format(bytes:tonumber() / 1e6) end
for _, name in ipairs(models) do
  local n = kv.count(kv.preset(name), { context = 131072 })
  local bytes = n.store.bytes_per_token:tonumber()
  print(line:format(name, ('%.0f'):format(bytes),
    ('1/%.0f'):format(mha_bytes / bytes), MB(n.read.kv_bytes),
    MB(n.read.index_bytes)))
end]],
    ask = { question = [[
Beside what grows there are the windows, which do not: in V4.1-Flash 40 layers x 128 tokens x 528 bytes. At how many
tokens of context does the part that grows catch up? (To 1 %.)]],
      answer = "kv.count(kv.preset 'v4.1-flash').crossover_tokens", tolerance = 0.01,
      hint = 'Divide 40 x 128 x 528 by the 890 bytes of a token.',
      working = '2,703,360 / 890 = 3,037.5. In a shorter conversation most of the cache is windows.' } },

  { text = [[
A formula can be wrong: a layer forgotten, a scale left out, an entry too many. kv.measure does not trust it. It
makes the real caches of a layout, at the real widths, fills them with tokens (random rows stand in for what the
weights would give), runs the cache side of one decode step - scoring, selection, attention - and asks the caches
what they hold and the counters of their readers what was read. A reader counts the bytes that it decodes; nobody
else counts.]],
    code = [[
r = kv.measure(kv.preset 'v4.1-flash', { context = 2000 })
for _, what in ipairs { 'store_bytes', 'kv_bytes', 'index_bytes' } do
  print(('%-12s computed %9s  measured %9d'):format(what,
    r.computed[what], r.measured[what]))
end
print('equal in total and in each layer:', r.equal)]],
    ask = { question = [[
With 2,000 tokens the pool of 16,384 holds every position. How many search keys were read? (3 encoder layers read a
key for every 2 tokens, 5 decoder layers one for every token.)]],
      answer = 'r.measured.index_bytes // 68',
      hint = '3 x 1,000 + 5 x 2,000.',
      working = '13,000 keys of 68 bytes are the 884,000 bytes that were measured.' } },

  { text = [[
The same for all five, with 200 tokens each; MHA gets only 4, and pages of 4 tokens, since a page of the usual 64
would take 4 MB in each of its 60 layers. `kvlab measure v4.1-flash` does it from the shell, at 131,072 tokens in a
few seconds.]],
    code = [[
small_pages = kv.record_named('heads-bf16'):with { page = { entries = 4 } }
for _, name in ipairs(models) do
  local options = { context = 200 }
  if name == 'mha' then options = { context = 4, records = small_pages } end
  local r = kv.measure(kv.preset(name), options)
  print(('%-10s stored %9d  read %9d + %7d  %s'):format(name,
    r.measured.store_bytes, r.measured.kv_bytes, r.measured.index_bytes,
    r.equal and 'as computed' or 'NOT as computed'))
end]],
    ask = { question = 'V2 stores (512 + 64) x 2 bytes in each of 60 layers. How many bytes are 200 tokens?',
      answer = '200 * 60 * (512 + 64) * 2',
      hint = '200 x 69,120.',
      working = '200 x 69,120 = 13,824,000: to the byte what the caches said.' } },

  { text = [[
"Bytes per token" is the slope of a long context. In detail a cache grows by steps: an entry exists only when its
block is full. A layer of V4 that compresses 128 tokens stores nothing but its window until then, and the window
stops growing at 128 tokens.]],
    code = [[
for _, N in ipairs { 1, 127, 128, 129, 255, 256 } do
  local r = kv.measure(kv.layout 'hca', { context = N,
    records = { main = 'v4-main', window = 'v4-main' } })
  print(('%3d tokens: %6d bytes = %3d window rows + %d entries'):format(N,
    r.measured.store_bytes, math.min(N, 128),
    r.measured.store_bytes / 584 - math.min(N, 128)))
end]],
    ask = { question = 'How many entries does this layer have at 1,000 tokens?',
      answer = '1000 // 128',
      hint = '1,000 / 128 = 7.8, and an unfinished block is no entry.',
      working = 'The last 104 tokens are in the window, and their block is still open.' } },

  { text = [[
What the machine allocates is a little more than what is stored. Caches consist of pages, here of 64 entries, and
the last page of each is not full; a window keeps a row to spare, so that its 129 rows take three pages; some
records align their pages. kv.measure says that too. It matters for short sequences, and vanishes for long ones.]],
    code = [[
for _, N in ipairs { 100, 1000, 5000 } do
  local r = kv.measure(kv.preset 'v4.1-flash', { context = N })
  print(('%5d tokens: stored %8d, allocated %8d (+ %.1f %%)'):format(N,
    r.measured.store_bytes, r.allocated_bytes,
    100 * (r.allocated_bytes / r.measured.store_bytes - 1)))
end]] },

  { text = [[
Now a layout that nobody has built: an encoder with two groups of [Full, Reuse x 3] that compress 4 tokens, and a
decoder of one Full layer that compresses 2, with a Reindex. It has the widths and records of V4.1-Flash: 288 bytes
an entry, 68 a key, 528 a window row. Count it by hand before you go on.]],
    code = [[
mine = kv.layout 'swa*2 [full/4 reuse*3]*2 | full/2 reuse reindex reuse'
print(#mine, 'layers')]],
    ask = { question = 'How many bytes per token?',
      answer = 'kv.count(mine).store.bytes_per_token',
      hint = 'Two layers store an entry and a key for 4 tokens, one layer for 2.',
      working = '(2/4 + 1/2) x (288 + 68) = 356. And the caches?',
      code = [[
r = kv.measure(mine, { context = 3001 })
print(r.measured.store_bytes, r.computed.store_bytes, r.equal)]] } },

  { text = [[
Put a layout of your own in its place: mine = kv.layout '...', then `again`, or kv.measure(mine, { context = 3000
}). Bytes are not seconds, by the way. r.seconds says how long the step took; at 16,384 tokens a step of V4.1-Flash
reads 73 times less than one of V2, and took 29 times less time on the machine of docs/measure.md. Keys have to be
scored and records unpacked. 4,418 times less storage does not make anything 4,418 times as fast.]],
    code = [[
rows = {}
for i, name in ipairs(models) do
  local n = kv.count(kv.preset(name), { context = 131072 })
  rows[i] = { name, { n.read.kv_bytes:tonumber() / 1e6,
    n.read.index_bytes:tonumber() / 1e6 } }
end
plot.bars { title = 'Read by a step at 131,072 tokens', unit = 'MB',
  width = 40, scale = 'log', parts = { 'KV', 'keys' }, rows = rows }]] },
} }
