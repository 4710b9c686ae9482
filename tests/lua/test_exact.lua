-- Exact numbers against Lua's own integers where these suffice, and against known big values.
local lu = require 'luaunit'
local check = require 'check'
local exact = require 'kvlab.exact'
local json = require 'kvlab.json'

TestExact = {}

function TestExact:test_agrees_with_integers()
  math.randomseed(7)
  for _ = 1, 2000 do
    local bits = math.random(0, 30)
    local a, b = math.random(0, 1 << bits), math.random(1, 1 << math.random(0, 30))
    lu.assertEquals(tostring(exact(a) + exact(b)), tostring(a + b))
    lu.assertEquals(tostring(exact(a) * b), tostring(a * b))
    lu.assertEquals(tostring(exact(a) // exact(b)), tostring(a // b))
    lu.assertEquals(exact(a) < exact(b), a < b)
    lu.assertEquals(exact(a) == exact(b), a == b)
    if a >= b then lu.assertEquals(tostring(exact(a) - exact(b)), tostring(a - b)) end
    lu.assertAlmostEquals(exact(a, b):tonumber(), a / b, 1e-9 * (1 + a / b))
  end
end

function TestExact:test_reduces()
  lu.assertEquals(tostring(exact(14057 * 6, 24)), '14057/4')
  lu.assertEquals(tostring(exact(10, 5)), '2')
  lu.assertEquals(tostring(exact(0, 5)), '0')
  lu.assertEquals(tostring(exact(1, 3) + exact(1, 6)), '1/2')
end

-- 25! and 2^200, digit for digit, and back down again.
function TestExact:test_big()
  local factorial = exact(1)
  for i = 1, 25 do factorial = factorial * i end
  lu.assertEquals(tostring(factorial), '15511210043330985984000000')
  for i = 25, 1, -1 do factorial = factorial / i end
  lu.assertEquals(tostring(factorial), '1')
  local power = exact(1)
  for _ = 1, 200 do power = power * 2 end
  lu.assertEquals(tostring(power), '1606938044258990275541962092341162602522202993782792835301376')
  lu.assertEquals(power:tonumber(), 2.0 ^ 200)
  lu.assertEquals(json.encode(power), tostring(power))
end

function TestExact:test_tonumber_is_an_integer_when_it_fits()
  lu.assertEquals(math.type(exact(math.maxinteger):tonumber()), 'integer')
  lu.assertEquals(exact(math.maxinteger):tonumber(), math.maxinteger)
  lu.assertEquals(exact(14057, 4):tonumber(), 3514.25)
  lu.assertEquals(exact(1, 3):tonumber(), 1 / 3)
  lu.assertEquals(exact(2, 3):tonumber(), 2 / 3)
end

function TestExact:test_ceiling()
  lu.assertEquals(tostring(exact.ceiling(exact(7, 2))), '4')
  lu.assertEquals(tostring(exact.ceiling(exact(8, 2))), '4')
end

function TestExact:test_refuses()
  check.fails({ 'exact', '-1' }, exact, -1)
  check.fails({ 'exact', '1.5' }, exact, 1.5)
  check.fails('division by zero', exact, 1, 0)
  check.fails('negative', function() return exact(1) - exact(2) end)
end

check.main()
