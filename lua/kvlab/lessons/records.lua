-- Records: FP8 and FP4 by hand, scales, what an outlier does to its group, and error against bytes.
return { number = 11, name = 'records', title = 'Records: FP8, FP4, scales and outliers', steps = {
  { text = [[
Up to here a stored number had as many bytes as we liked. BF16 has 2; caches of today use 1 (FP8) or half a one
(FP4). A float is a sign, e bits of exponent and m bits of mantissa, and the name says how many: E4M3 is the FP8 of
these caches, E2M1 the FP4. With so few bits there are few numbers. Here are all that E2M1 has, not counting signs,
and the first of E4M3 from 1 and from 256 on: within a power of two the steps are equal, in the next power of two
they are twice as wide.]],
    code = [[
function numbers(format, from, many)
  local first, list = kv.number.encode(format, from), {}
  for code = first, first + many - 1 do
    list[#list + 1] = ('%g'):format(kv.number.decode(format, code))
  end
  return table.concat(list, '  ')
end
print('E2M1            ' .. numbers('e2m1', 0, 8))
print('E4M3, from 1    ' .. numbers('e4m3', 1, 10))
print('E4M3, from 256  ' .. numbers('e4m3', 256, 7))
print('largest of E4M3 ' .. kv.number.info('e4m3').max)]],
    ask = { question = 'Storing rounds to the nearest of these. What is read back when 300 is stored as E4M3?',
      answer = "kv.number.decode('e4m3', kv.number.encode('e4m3', 300))",
      hint = 'Which number of the last list is nearest to 300?',
      working = [[
The neighbours are 288 and 320, and 300 is nearer to the first. The error of 4 % is typical; it is at most half a
step, 1/16 of the number.]] } },

  { text = [[
E2M1 ends at 6 and has nothing between 0 and 0.5, but the numbers of a cache may all be below 0.1. So they are
divided by a scale before they are rounded, and multiplied by it when they are read. The scale is made for a group
of neighbouring channels, and stored once for the group: the largest magnitude of the group (amax) is to become the
largest number of the format. Here it is by hand.]],
    code = [[
function round(x)  -- to the nearest number of E2M1
  return kv.number.decode('e2m1', kv.number.encode('e2m1', x))
end
function in_group(group)
  local amax = 0
  for _, x in ipairs(group) do amax = math.max(amax, math.abs(x)) end
  local scale = amax / 6
  print(('amax %g, scale %g'):format(amax, scale))
  for _, x in ipairs(group) do
    print(('%6.2f  / scale = %5.2f  stored %4.1f  read %6.2f'):format(x,
      x / scale, round(x / scale), round(x / scale) * scale))
  end
end
in_group { 0.3, -1.2, 0.04, 0.75 }]],
    ask = { question = 'Now the same group has 12 in place of -1.2. What is read back for 0.75?',
      answer = 'round(0.75 / (12 / 6)) * (12 / 6)',
      hint = 'The scale is 12 / 6 = 2. What does 0.75 / 2 = 0.375 become?',
      working = [[
0.375 is nearer to 0.5 than to 0, so 0.5 is stored, and 0.5 x 2 = 1 is read. The other two are lost altogether:]],
      code = 'in_group { 0.3, 12, 0.04, 0.75 }' } },

  { text = [[
The scale takes space too, so it is kept small itself. The entries of V4.1 have an E4M3 scale for every 16 channels.
Its search keys have one power of two for every 32 (UE8M0: 8 bits of exponent and nothing else), rounded up so that
nothing exceeds 6. What a cache stores is the rounded scale, and dividing by just that one undoes part of the
damage. By hand, and by the record of V4.1, for one group of 16:]],
    code = [[
x = kv.random { 1, 16, seed = 1 }
function by_hand(x)
  local s = x:abs():max() / 6
  s = kv.number.decode('e4m3', kv.number.encode('e4m3', s))
  local back = {}
  for i = 1, x.size do back[i] = round(x[1][i] / s) * s end
  return kv.tensor { back }
end
main = kv.record_named 'v4.1-main'
one = main:plan { channels = 16 }
print('one group has', one.bytes, 'bytes')
print('the same:', by_hand(x):equal(one:roundtrip(x)))
main:formula()]],
    ask = { question = 'A search key has 128 channels in E2M1 and a scale of one byte for every 32. How many bytes?',
      answer = "kv.record_named('index-fp4'):plan().bytes",
      hint = 'Half a byte for each channel, and 128 / 32 scales.',
      working = '64 + 4 = 68. The record says the same:',
      code = "kv.record_named('index-fp4'):formula()" } },

  { text = [[
Some channels of keys in trained models are much larger than others. What does one large channel do to its group?
Here are 32 ordinary numbers, two groups of the V4.1 record, written and read back; then the same with the first
number 20 times as large. Its own group turns to zeros and a few coarse numbers, since the scale follows the
largest. The other group has a scale of its own, and notices nothing.]],
    code = [[
row = kv.random { 1, 32, seed = 4 }
loud = row:clone()
loud[1][1] = row[1][1] * 20
function print_row(name, t, first)
  local line = { name }
  for i = 0, 9 do line[i + 2] = ('%5.2f'):format(t[1][first + i] + 0.0) end
  print(table.concat(line, ' '))
end
two = main:plan { channels = 32 }
for first = 1, 17, 16 do
  print(('channels %d to %d'):format(first, first + 9))
  print_row('  stored      ', row, first)
  print_row('  read        ', two:roundtrip(row), first)
  print_row('  with outlier', two:roundtrip(loud), first)
end]],
    ask = { question = 'In how many of the 32 channels is zero read back, with the outlier?',
      answer = 'two:roundtrip(loud):eq(0):sum()',
      hint = 'two:roundtrip(loud):eq(0) has a 1 for each; :sum() counts them.',
      working = 'All but one stand beside the outlier. Without it there are',
      code = 'two:roundtrip(row):eq(0):sum()' } },

  { text = [[
FP8 does not mind. E4M3 has an exponent of its own in every number, so a small neighbour of a large one is stored as
precisely as ever until it falls below the format's range. FP4 has two bits of exponent, and what a shared scale
takes away is gone. Here is the error of all channels but the outliers, ||lost|| / ||row||, for rows of 512 with one
large channel in 64.]],
    code = [[
rows = kv.random { 256, 512, seed = 7 }
loud_mask = kv.arange(512):eq(5)
for i = 1, 7 do
  loud_mask = loud_mask:maximum(kv.arange(512):eq(64 * i + 5))
end
loud_rows = kv.where(loud_mask, rows * 20, rows)
function size(x) return (x * x):sum() ^ 0.5 end
function lost(record, rows)
  local plan = kv.record_named(record):plan { channels = 512, rotary = 64 }
  local back = plan:roundtrip(rows)
  local function ordinary(x) return kv.where(loud_mask, 0, x) end
  return size(ordinary(back - rows)) / size(ordinary(rows)), plan.bytes
end
for _, name in ipairs { 'bf16', 'v4-main', 'v4.1-local', 'v4.1-main' } do
  local plain, bytes = lost(name, rows)
  print(('%-10s %4d bytes: %.4f, beside outliers %.4f'):format(name, bytes,
    plain, lost(name, loud_rows)))
end]],
    ask = { question = 'By what factor does FP4 (v4.1-main) get worse beside outliers? (To 5 %.)',
      answer = "lost('v4.1-main', loud_rows) / lost('v4.1-main', rows)", tolerance = 0.05,
      hint = 'Divide the two numbers of the last line.',
      working = '0.23 / 0.095 or so. The two FP8 records, v4-main and v4.1-local, keep theirs to the third digit.' } },

  { text = [[
Smaller groups confine the damage and cost bytes for scales. A record is a value that can be made: these have 512
channels in E2M1 and an E4M3 scale for every 8, 16, 32, 64 or 128. In V4.1 it is 16.]],
    code = [[
points = { plain = {}, loud = {}, bytes = {} }
for i, g in ipairs { 8, 16, 32, 64, 128 } do
  local name = 'fp4-by-' .. g
  kv.record { name = name, fields = { { channels = 'rest', number = 'e2m1',
    scale = { number = 'e4m3', group = g } } } }
  points.plain[i], points.bytes[i] = lost(name, rows)
  points.loud[i] = lost(name, loud_rows)
end
plot.line { title = 'Error against bytes: groups of 128, 64, 32, 16, 8',
  x = 'bytes of an entry', y = 'error', from = 0, height = 12, series = {
    { 'ordinary rows', points.plain, x = points.bytes },
    { 'beside outliers', points.loud, x = points.bytes } } }]],
    ask = { question = 'How many bytes has an entry with groups of 8?',
      answer = "kv.record_named('fp4-by-8'):plan({ channels = 512 }).bytes",
      hint = '512 halves of a byte and 512 / 8 scales.',
      working = '256 + 64 = 320, against 288 with groups of 16: a ninth more for every entry.' } },

  { text = [[
A search key is there to be ranked, so count what happens to the ranking. 100 queries look for the best 64 of about
2,000 keys; shown is the share of these that they still find when the keys were stored. Outliers cost FP4 dearly,
for keys that are stored as they are. V3.2 and V4 turn query and key by a Hadamard matrix first: orthogonal, so all
scores stay the same, but every channel becomes a mixture of all, and nothing sticks out. V4.1 has given that up
again.]],
    code = [[
loud_two = kv.arange(128):eq(5):maximum(kv.arange(128):eq(70))
plain_keys = kv.random { 1, 2000, 128, seed = 8 }
loud_keys = kv.where(loud_two, plain_keys * 20, plain_keys)
queries = kv.random { 1, 100, 8, 128, seed = 9 }
function best(keys, q)
  return kv.index { q = q, w = kv.ones(1, 100, 8), keys = { rows = keys },
    k = 64, pos0 = 1900 }.top
end
function kept(plan, keys, turn)
  local want, n = best(keys, queries), 0
  local got = best(plan:roundtrip(turn(keys)), turn(queries))
  for t = 1, 100 do
    local set = {}
    for _, id in ipairs(want[1][t]:totable()) do set[id] = true end
    for _, id in ipairs(got[1][t]:totable()) do
      if set[id] then n = n + 1 end
    end
  end
  return n / 6400
end
function as_it_is(x) return x end
print('record     ordinary  outliers  outliers, turned')
for _, name in ipairs { 'index-bf16', 'index-fp8', 'index-fp4' } do
  local p = kv.record_named(name):plan()
  print(('%-10s %8.2f  %8.2f  %8.2f'):format(name,
    kept(p, plain_keys, as_it_is), kept(p, loud_keys, as_it_is),
    kept(p, loud_keys, kv.hadamard)))
end]] },

  { text = [[
These are the sizes of the records of the five models: elements, scales, padding. An entry went from 65,536 bytes to
288, by width (32,768 numbers to 512) and by bytes of a number (2 to 0.5625, scales included). The rest of the way
from 3.9 MB to 890 bytes is the number of layers that store, and of tokens that share an entry; search keys take a
little of it back.]],
    code = [[
for _, name in ipairs { 'heads-bf16', 'mla-bf16', 'v3.2-main', 'v4-main',
    'v4.1-main', 'index-fp8', 'index-fp4' } do
  local sum = kv.record_named(name):formula():match '= (.*)'
  print(('%-10s  %s'):format(name, sum))
end]],
    ask = { question = [[
The window rows of V4.1 have 512 channels in FP8 and one byte of scale for every 32. How many bytes?]],
      answer = "kv.record_named('v4.1-local'):plan().bytes",
      hint = '512 + 512 / 32.',
      working = '512 + 16 = 528.' } },
} }
