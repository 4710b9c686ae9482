-- The main job: the article's five models, counted from their layouts and records, beside what the article says, and
-- measured: real caches are filled, read by one decode step, and have to agree with the count to the byte.
--   scripts/kvlab run experiments/generations/run.lua [--full]
-- What is typed in here is only what the article prints; every computed figure comes from kv.count, every measured one
-- from kv.measure. --full measures at the article's 131,072 tokens, which takes minutes and 10 GB of memory.
local kv = require 'kvlab'
local count = require 'kvlab.count'
local exact = require 'kvlab.exact'
local format = require 'kvlab.format'
local measure = require 'kvlab.measure'

local N = 131072

local argument = ...
if argument ~= nil and argument ~= '--full' or select('#', ...) > 1 then
  error('generations: expected nothing or --full', 0)
end
local measured_context = argument == '--full' and N or 4096
local MHA_CONTEXT = 64 -- 4 MB a token

-- The article's figures, as printed. Reads are of one generated token at N tokens.
local MODELS = {
  { preset = 'mha', short = 'MHA', store = '3,932,160', store_bf16 = '3,932,160', read = '515 GB' },
  { preset = 'v2', short = 'V2', store = '69,120', store_bf16 = '69,120', read = '9.06 GB', ratio = '1/57' },
  { preset = 'v3.2', short = 'V3.2', store = '48,068', store_bf16 = '85,888', ratio = '1/82', kv = '82 MB',
    keys = '1.06 GB', read = '1.14 GB' },
  { preset = 'v4-flash', short = 'V4-Flash', store = '3,514', store_bf16 = '6,880', ratio = '1/1,119', kv = '21.5 MB',
    keys = '46.8 MB', read = '68 MB', fixed = '3.2 MB', crossover = '900' },
  { preset = 'v4.1-flash', short = 'V4.1-Flash', store = '890', store_bf16 = '3,200', ratio = '1/4,418', kv = '8.3 MB',
    keys = '26.7 MB', read = '35.0 MB', fixed = '2.7 MB', crossover = '3,038' },
}

-- Why an exact number differs from the printed one.
local REMARKS = {
  ['V4-Flash store'] = "the article writes 'about 3,514'",
  ['V4-Flash crossover'] = "the article says 'roughly 900'; 915 is the first whole token",
  ['V4.1-Flash crossover'] = 'the article rounds up: 3,038 is the first token at which global KV is the larger part',
}

for _, m in ipairs(MODELS) do
  local layout = kv.preset(m.preset)
  m.deployed = kv.count(layout, { context = N })
  m.bf16 = kv.count(layout, { context = N, records = 'bf16' })
end
local by_name = {}
for _, m in ipairs(MODELS) do by_name[m.short] = m end
local mha, v2, v32, v4, v41 = by_name.MHA, by_name.V2, by_name['V3.2'], by_name['V4-Flash'], by_name['V4.1-Flash']

-- --- printed against computed -------------------------------------------------------------------------
local UNIT = { kB = 1e3, MB = 1e6, GB = 1e9 }

-- Does `value` (exact) round to the printed text, in its unit and with its digits?
local function agrees(printed, value)
  local whole, digits, unit = printed:gsub(',', ''):gsub('^1/', ''):match('^(%d+)%.?(%d*)%s*(%a*)$')
  local scaled = value:tonumber() / (UNIT[unit] or 1)
  return ('%.' .. #digits .. 'f'):format(scaled) == whole .. (#digits > 0 and '.' .. digits or '')
end

local differences = {}
local function said(m, what, printed, value, label)
  if not printed then return '-' end
  local exactly = agrees(printed, value)
  local fractional = not printed:find('%a') and not printed:find('/') and not value:is_whole()
  if not exactly or fractional then
    local remark = REMARKS[m.short .. ' ' .. what]
    differences[#differences + 1] = ('%s, %s: the article has %s, exactly it is %s%s'):format(m.short, label, printed,
      format.number(value, 4), remark and ' (' .. remark .. ')' or '')
  end
  return exactly and printed or printed .. ' (!)'
end

local function heading(text) print('\n' .. text .. '\n' .. ('-'):rep(#text)) end
local function show(rows, align) print(table.concat(format.table(rows, align), '\n')) end

print("DeepSeek's KV cache, from the layouts: what one token of context stores and one generated token reads")

heading('Storage: bytes added per token of context')
local rows = { { 'model', 'layers', 'deployed', 'article', 'bf16', 'article', 'MHA /', 'article', 'local KV',
  'article' } }
for _, m in ipairs(MODELS) do
  local d, b = m.deployed.store, m.bf16.store
  local ratio = count.mha_bytes_per_token() / d.bytes_per_token
  rows[#rows + 1] = { m.short, tostring(#m.deployed.layout), format.number(d.bytes_per_token),
    said(m, 'store', m.store, d.bytes_per_token, 'bytes per token'), format.number(b.bytes_per_token),
    said(m, 'store_bf16', m.store_bf16, b.bytes_per_token, 'bytes per token in bf16'), format.ratio(ratio),
    said(m, 'ratio', m.ratio, ratio, 'part of MHA'), d.fixed_bytes:is_zero() and '-' or format.bytes(d.fixed_bytes),
    said(m, 'fixed', m.fixed, d.fixed_bytes, 'local KV') }
end
show(rows)

heading(('Reads: bytes for one generated token at %s tokens'):format(format.number(N)))
rows = { { 'model', 'KV', 'article', 'search keys', 'article', 'total', 'article', 'bf16 KV', 'bf16 keys' } }
for _, m in ipairs(MODELS) do
  local d, b = m.deployed.read, m.bf16.read
  rows[#rows + 1] = { m.short, format.number(d.kv_bytes), said(m, 'kv', m.kv, d.kv_bytes, 'KV read'),
    format.number(d.index_bytes), said(m, 'keys', m.keys, d.index_bytes, 'search keys read'),
    format.number(d.total_bytes), said(m, 'read', m.read, d.total_bytes, 'bytes read'),
    format.number(b.kv_bytes), format.number(b.index_bytes) }
end
show(rows)

-- --- the figures --------------------------------------------------------------------------------------
local function record_line(m)
  local names, seen = {}, {}
  for _, c in ipairs(m.deployed.classes) do
    for _, part in ipairs { { 'entry', c.main_plan }, { 'key', c.index_plan }, { 'local row', c.window_plan } } do
      local text = part[2] and ('%s %s B'):format(part[1], format.number(part[2].bytes))
      if text and not seen[text] then
        seen[text] = true
        names[#names + 1] = text
      end
    end
  end
  return table.concat(names, ', ')
end

local function figure(number, upto, title)
  heading(('Figure %d: %s'):format(number, title))
  local store, read = {}, {}
  for i = 1, upto do
    local m = MODELS[i]
    local d = m.deployed
    local ratio = count.mha_bytes_per_token() / d.store.bytes_per_token
    local of_mha = i == 1 and 'the reference' or ('about 1/%s of MHA'):format(format.ratio(ratio))
    local note = record_line(m)
    if not d.store.fixed_bytes:is_zero() then
      note = note .. ('\n+ local KV (SWA) kept apart: %s B, fixed'):format(format.number(d.store.fixed_bytes))
    end
    local mark = number > 1 and i == upto
    store[i] = { m.short, d.store.bytes_per_token:tonumber(), mark = mark, note = note,
      text = ('%s B, %s'):format(format.number(d.store.bytes_per_token), of_mha) }
    local keys = d.read.index_bytes
    read[i] = { m.short, { d.read.kv_bytes:tonumber(), keys:tonumber() }, mark = mark,
      text = format.bytes(d.read.total_bytes) .. (keys:is_zero() and ''
        or (', KV %s and keys %s'):format(format.bytes(d.read.kv_bytes), format.bytes(keys))) }
  end
  -- One axis for all figures, so that their bars compare.
  print(kv.plot.bars { title = 'stored: added per token of a long context', unit = 'bytes per token', scale = 'log',
    from = v41.deployed.store.bytes_per_token:tonumber(), upto = mha.deployed.store.bytes_per_token:tonumber(),
    rows = store })
  print()
  print(kv.plot.bars { title = ('read: by one generated token at %s tokens'):format(format.number(N)), unit = 'bytes',
    scale = 'log', from = v41.deployed.read.total_bytes:tonumber(), upto = mha.deployed.read.total_bytes:tonumber(),
    parts = { 'KV', 'search keys' }, rows = read })
end

figure(1, 5, 'what is stored and what is read')
figure(2, 2, 'MHA to V2')
figure(7, 3, 'MHA to V3.2: fewer positions read, more stored at equal precision')
figure(11, 4, 'MHA to V4-Flash: several tokens in one entry')
figure(20, 5, 'MHA to V4.1-Flash: few layers own the cache')

-- --- the comparisons it makes -------------------------------------------------------------------------
local function owners(m)
  local n = 0
  for _, c in ipairs(m.deployed.classes) do
    if c.shape.owns then n = n + c.count end
  end
  return n
end

-- How much of the visible entries a selecting layer reads.
local function selected_part(m)
  for _, c in ipairs(m.deployed.classes) do
    if c.shape.topk then return exact(c.entries, c.rows) end
  end
end

local v3 = kv.count(kv.preset 'v3', { context = N, records = 'bf16' })
local more = (v32.bf16.store.bytes_per_token / v3.store.bytes_per_token):tonumber() * 100 - 100
local less = mha.deployed.store.bytes_per_token / v41.deployed.store.bytes_per_token

heading('The comparisons that the article makes')
show({
  { 'V3.2 against V3, both in bf16', ('%+.2f %%'):format(more), 'article: 22 % more' },
  { 'search keys in what V3.2 reads', format.percent(v32.deployed.read.index_bytes, v32.deployed.read.total_bytes),
    'article: about 93 %' },
  { 'positions that a V3.2 layer attends to', '1/' .. format.ratio(selected_part(v32)), 'article: 1/64' },
  { 'reads of V3.2 against V2', '1/' .. format.ratio(v2.deployed.read.total_bytes / v32.deployed.read.total_bytes),
    'article: about 1/8' },
  { 'V4-Flash against V2, both in bf16',
    '1/' .. format.ratio(v2.bf16.store.bytes_per_token / v4.bf16.store.bytes_per_token),
    'article: about one-tenth' },
  { 'V4.1-Flash against V4-Flash, both in bf16',
    '1/' .. format.ratio(v4.bf16.store.bytes_per_token / v41.bf16.store.bytes_per_token),
    'article: about half' },
  { 'layers that store global KV, V4-Flash to V4.1-Flash', ('%d to %d'):format(owners(v4), owners(v41)),
    'article: 41 to 4' },
  { 'V4.1-Flash against MHA', '1/' .. format.ratio(less), 'article: about 1/4,400' },
  { 'crossover of local and global KV, V4-Flash', format.number(v4.deployed.crossover_tokens),
    'article: ' .. said(v4, 'crossover', v4.crossover, v4.deployed.crossover_tokens, 'crossover in tokens') },
  { 'crossover of local and global KV, V4.1-Flash', format.number(v41.deployed.crossover_tokens),
    'article: ' .. said(v41, 'crossover', v41.crossover, v41.deployed.crossover_tokens, 'crossover in tokens') },
  { 'V3.2 as in the HF reference: main KV in bf16', format.number(kv.count(kv.preset 'v3.2',
    { records = { main = 'mla-bf16', index = 'index-fp8' } }).store.bytes_per_token), 'article: 78,324' },
}, { 'l', 'r', 'l' })

-- --- measured -----------------------------------------------------------------------------------------
heading(('Measured: caches filled with %s tokens (MHA %s) and read by one decode step'):format(
  format.number(measured_context), format.number(MHA_CONTEXT)))
rows = { { 'model', 'stored', 'KV read', 'search keys', '', 'fill', 'step', 'bytes read', 'seconds' } }
local all_equal, refusals = true, {}
local reference -- V2, at the same context as the models after it
for _, m in ipairs(MODELS) do
  local context = m == mha and MHA_CONTEXT or measured_context
  local layout = kv.preset(m.preset)
  local refusal = measure.refusal(kv.count(layout, { context = context }))
  if refusal then
    refusals[#refusals + 1] = refusal
  else
    local r = kv.measure(layout, { context = context })
    all_equal = all_equal and r.equal
    local read, seconds = r.measured.kv_bytes + r.measured.index_bytes, r.seconds
    if m == v2 then reference = { read = read, step = seconds.step } end
    local compared = reference and m ~= v2
    rows[#rows + 1] = { m.short, format.number(r.measured.store_bytes), format.number(r.measured.kv_bytes),
      format.number(r.measured.index_bytes), r.equal and 'as counted' or 'DIFFERENT', ('%.2f s'):format(seconds.fill),
      ('%.3f s'):format(seconds.step), compared and ('V2 / %.3g'):format(reference.read / read) or '-',
      compared and ('V2 / %.3g'):format(reference.step / seconds.step) or '-' }
  end
end
show(rows)
refusals[#refusals + 1] = measure.refusal(mha.deployed)
for _, refusal in ipairs(refusals) do print('Not measured: ' .. refusal .. '.') end
if measured_context < N then print(('--full measures at %s tokens.'):format(format.number(N))) end

heading('Where the article and the exact number differ')
for _, line in ipairs(differences) do print('- ' .. line) end
print('Everything else above agrees to every printed digit.')
return all_equal and 0 or 1
