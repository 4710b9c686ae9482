-- golden.lua: what the byte tests share: the input generator of the golden pages, hexadecimal, SHA-256.
local golden = {}

-- lcg_bf16(seed, n): s <- s * 1664525 + 1013904223 mod 2^32, x = bf16(((s >> 8) - 2^23) / 2^21).
-- The value has at most 24 bits; it is rounded to 8 of them, ties to even, in integers.
function golden.lcg_bf16(seed, n)
  local row, s = {}, seed
  for i = 1, n do
    s = (s * 1664525 + 1013904223) % 2 ^ 32 | 0
    local k = (s >> 8) - (1 << 23)
    local magnitude, unit = math.abs(k), 1
    while magnitude // unit >= 256 do unit = unit * 2 end
    local whole, rest = magnitude // unit, magnitude % unit
    if rest * 2 > unit or (rest * 2 == unit and whole % 2 == 1) then whole = whole + 1 end
    row[i] = (k < 0 and -1 or 1) * whole * unit / 2 ^ 21
  end
  return row
end

function golden.zeros(n)
  local row = {}
  for i = 1, n do row[i] = 0 end
  return row
end

function golden.hex(bytes)
  return (bytes:gsub('.', function(c) return ('%02x'):format(c:byte()) end))
end

-- SHA-256 (FIPS 180-4). The constants are derived as the standard defines them: the first 32 bits of the
-- fractional parts of the square and cube roots of the first primes.
local function primes(count)
  local list, candidate = {}, 2
  while #list < count do
    local prime = true
    for _, p in ipairs(list) do prime = prime and candidate % p ~= 0 end
    if prime then list[#list + 1] = candidate end
    candidate = candidate + 1
  end
  return list
end

-- The first 32 bits after the point of a root of p: a double has 50 there.
local function root_bits(p, degree)
  return math.floor((p ^ (1 / degree) % 1) * 2 ^ 32) & 0xffffffff
end

local H, K = {}, {}
for i, p in ipairs(primes(64)) do
  if i <= 8 then H[i] = root_bits(p, 2) end
  K[i] = root_bits(p, 3)
end

local function rotate(x, n) return (x >> n | x << (32 - n)) & 0xffffffff end

function golden.sha256(text)
  local padded = text .. '\128' .. ('\0'):rep((-#text - 9) % 64) .. (('>I8'):pack(#text * 8))
  local h = { table.unpack(H) }
  local w = {}
  for at = 1, #padded, 64 do
    for i = 1, 16 do w[i] = (('>I4'):unpack(padded, at + 4 * (i - 1))) end
    for i = 17, 64 do
      local a, b = w[i - 15], w[i - 2]
      local s0 = rotate(a, 7) ~ rotate(a, 18) ~ a >> 3
      local s1 = rotate(b, 17) ~ rotate(b, 19) ~ b >> 10
      w[i] = (w[i - 16] + s0 + w[i - 7] + s1) & 0xffffffff
    end
    local a, b, c, d, e, f, g, hh = table.unpack(h)
    for i = 1, 64 do
      local s1 = rotate(e, 6) ~ rotate(e, 11) ~ rotate(e, 25)
      local t1 = hh + s1 + ((e & f) ~ (~e & g)) + K[i] + w[i]
      local s0 = rotate(a, 2) ~ rotate(a, 13) ~ rotate(a, 22)
      local t2 = s0 + ((a & b) ~ (a & c) ~ (b & c))
      hh, g, f, e, d, c, b, a = g, f, e, (d + t1) & 0xffffffff, c, b, a, (t1 + t2) & 0xffffffff
    end
    for i, value in ipairs { a, b, c, d, e, f, g, hh } do h[i] = (h[i] + value) & 0xffffffff end
  end
  return (('%08x'):rep(8)):format(table.unpack(h))
end

return golden
