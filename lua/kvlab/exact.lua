-- exact.lua: exact non-negative rational numbers of any size.
--
-- Bytes must be exact: a million layers at 10^12 tokens is beyond 2^63, and bytes per token is a
-- fraction whose denominator is the common multiple of all compression ratios. A value is a reduced
-- fraction of two naturals; a natural is a list of limbs in base 10^7, lowest first, without leading
-- zeros, so that zero is the empty list and a product of two limbs stays far below 2^63.
local json = require 'kvlab.json'

local exact = {}

local BASE, DIGITS = 10000000, 7

-- --- naturals --------------------------------------------------------------------------------------
local function trim(a)
  while #a > 0 and a[#a] == 0 do a[#a] = nil end
  return a
end

local function natural(n) -- from a Lua integer >= 0
  local a = {}
  while n > 0 do
    a[#a + 1] = n % BASE
    n = n // BASE
  end
  return a
end

local function compare(a, b)
  if #a ~= #b then return #a < #b and -1 or 1 end
  for i = #a, 1, -1 do
    if a[i] ~= b[i] then return a[i] < b[i] and -1 or 1 end
  end
  return 0
end

local function add(a, b)
  local sum, carry = {}, 0
  for i = 1, math.max(#a, #b) do
    local digit = (a[i] or 0) + (b[i] or 0) + carry
    sum[i], carry = digit % BASE, digit // BASE
  end
  if carry > 0 then sum[#sum + 1] = carry end
  return sum
end

local function subtract(a, b) -- a >= b
  local difference, borrow = {}, 0
  for i = 1, #a do
    local digit = a[i] - (b[i] or 0) - borrow
    borrow = digit < 0 and 1 or 0
    difference[i] = digit + borrow * BASE
  end
  return trim(difference)
end

local function multiply(a, b)
  local product = {}
  for i = 1, #a + #b do product[i] = 0 end
  for i = 1, #a do
    local carry = 0
    for j = 1, #b do
      local digit = product[i + j - 1] + a[i] * b[j] + carry
      product[i + j - 1], carry = digit % BASE, digit // BASE
    end
    product[i + #b] = carry
  end
  return trim(product)
end

-- Schoolbook long division: each quotient limb is found by bisection, which is simple and never wrong.
local function divide(a, b) -- -> quotient, remainder; b > 0
  if compare(a, b) < 0 then return {}, a end
  local quotient, rest = {}, {}
  for i = #a, 1, -1 do
    table.insert(rest, 1, a[i])
    trim(rest)
    local low, high = 0, BASE - 1
    while low < high do
      local middle = (low + high + 1) // 2
      if compare(multiply(b, natural(middle)), rest) <= 0 then low = middle else high = middle - 1 end
    end
    quotient[i] = low
    if low > 0 then rest = subtract(rest, multiply(b, natural(low))) end
  end
  return trim(quotient), rest
end

local function gcd(a, b)
  while #b > 0 do
    local _, rest = divide(a, b)
    a, b = b, rest
  end
  return a
end

local function digits(a)
  if #a == 0 then return '0' end
  local parts = { tostring(a[#a]) }
  for i = #a - 1, 1, -1 do parts[#parts + 1] = ('%0' .. DIGITS .. 'd'):format(a[i]) end
  return table.concat(parts)
end

-- --- fractions -------------------------------------------------------------------------------------
local class = {}
local meta = { __name = 'kvlab.Exact', __index = class }
local ONE = natural(1)

local function make(n, d)
  if #d ~= 1 or d[1] ~= 1 then
    local g = gcd(n, d)
    if #g ~= 1 or g[1] ~= 1 then n, d = divide(n, g), divide(d, g) end
  end
  return setmetatable({ n = n, d = d }, meta)
end

local function is_exact(x) return type(x) == 'table' and rawget(x, 'n') ~= nil and rawget(x, 'd') ~= nil end

local function of(x)
  if is_exact(x) then return x end
  if math.type(x) == 'integer' and x >= 0 then return setmetatable({ n = natural(x), d = ONE }, meta) end
  error(('exact: expected a whole number >= 0 or an exact value, got %s'):format(tostring(x)), 3)
end

-- exact(n [, d]) -> the value n / d.
setmetatable(exact, { __call = function(_, n, d)
  return d and of(n) / of(d) or of(n)
end })

function meta.__add(a, b)
  a, b = of(a), of(b)
  if compare(a.d, b.d) == 0 then return make(add(a.n, b.n), a.d) end
  return make(add(multiply(a.n, b.d), multiply(b.n, a.d)), multiply(a.d, b.d))
end

-- The difference of values that cannot be negative: raises when it would be.
function meta.__sub(a, b)
  a, b = of(a), of(b)
  local x, y = multiply(a.n, b.d), multiply(b.n, a.d)
  if compare(x, y) < 0 then error('exact: the difference would be negative', 2) end
  return make(subtract(x, y), multiply(a.d, b.d))
end

function meta.__mul(a, b)
  a, b = of(a), of(b)
  return make(multiply(a.n, b.n), multiply(a.d, b.d))
end

function meta.__div(a, b)
  a, b = of(a), of(b)
  if #b.n == 0 then error('exact: division by zero', 2) end
  return make(multiply(a.n, b.d), multiply(a.d, b.n))
end

-- a // b: the whole part of the quotient, an exact value.
function meta.__idiv(a, b)
  local q = of(a) / of(b)
  return setmetatable({ n = (divide(q.n, q.d)), d = ONE }, meta)
end

local function order(a, b)
  a, b = of(a), of(b)
  return compare(multiply(a.n, b.d), multiply(b.n, a.d))
end

function meta.__eq(a, b) return order(a, b) == 0 end
function meta.__lt(a, b) return order(a, b) < 0 end
function meta.__le(a, b) return order(a, b) <= 0 end

-- '890' or '14057/4'.
function meta.__tostring(a)
  if a:is_whole() then return digits(a.n) end
  return digits(a.n) .. '/' .. digits(a.d)
end

function class:is_whole() return #self.d == 1 and self.d[1] == 1 end
function class:is_zero() return #self.n == 0 end

-- The Lua integer when it is one that fits, otherwise the nearest float (to about 1e-16).
function class:tonumber()
  if self:is_whole() then
    local n = tonumber(digits(self.n))
    if math.type(n) == 'integer' then return n end
  end
  local whole, rest = divide(self.n, self.d)
  -- Twenty digits after the point settle the rounding of the float; strings are read correctly rounded.
  local scale = natural(10000000000)
  local fraction = divide(multiply(rest, multiply(scale, scale)), self.d)
  return tonumber(('%s.%s'):format(digits(whole), ('0'):rep(20 - #digits(fraction)) .. digits(fraction)))
end

-- Raw text for the JSON writer: whole numbers with every digit, others as the nearest float.
function meta:__tojson()
  if self:is_whole() then return digits(self.n) end
  return json.encode(self:tonumber())
end

-- ceiling(a) -> the smallest whole value >= a.
function exact.ceiling(a)
  a = of(a)
  local q, r = divide(a.n, a.d)
  return setmetatable({ n = #r > 0 and add(q, ONE) or q, d = ONE }, meta)
end

exact.is = is_exact
exact.class = class
return exact
