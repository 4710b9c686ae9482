-- draw.lua: random numbers of tasks.
--
-- Every row of a batch has a stream of its own, found from (seed, step, row) alone. So a batch does not depend on
-- what was drawn before it, nor on the size of the batch or the number of threads, and a resumed run goes on with
-- exactly the rows that it would have seen.
--
-- The generator is splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014):
-- number i of a stream is mix(start + i * GAMMA) in 64-bit integers, the same on every machine.
local draw = {}

local GAMMA = 0x9e3779b97f4a7c15 -- 2^64 / golden ratio, odd

local function mix(z)
  z = (z ~ (z >> 30)) * 0xbf58476d1ce4e5b9
  z = (z ~ (z >> 27)) * 0x94d049bb133111eb
  return z ~ (z >> 31)
end
draw.mix = mix

-- stream(seed, step, row) -> below: below(n) is a whole number in 0 .. n-1, for n in 1 .. 2^31 - 1. The product
-- below maps 32 random bits to n values, so their chances differ by at most one in 2^32.
function draw.stream(seed, step, row)
  local state = mix(mix(mix(seed + GAMMA) + step + GAMMA) + row + GAMMA)
  return function(n)
    state = state + GAMMA
    local z = (state ~ (state >> 30)) * 0xbf58476d1ce4e5b9
    z = (z ~ (z >> 27)) * 0x94d049bb133111eb
    return (((z ~ (z >> 31)) >> 32) * n) >> 32
  end
end

-- distinct(below, n, k) -> a list of k different numbers of 0 .. n-1 in random order: the first k steps of a
-- Fisher-Yates shuffle of which only the moved places are kept.
function draw.distinct(below, n, k)
  local list, moved = {}, {}
  for i = 0, k - 1 do
    local j = i + below(n - i)
    list[i + 1] = moved[j] or j
    moved[j] = moved[i] or i
  end
  return list
end

-- shuffle(below, list) -> the list itself, in random order.
function draw.shuffle(below, list)
  for i = #list, 2, -1 do
    local j = 1 + below(i)
    list[i], list[j] = list[j], list[i]
  end
  return list
end

-- words(below, n, length, count) -> a list of `count` different words: lists of `length` numbers of 0 .. n-1.
-- There must be that many.
function draw.words(below, n, length, count)
  local list, seen = {}, {}
  while #list < count do
    local word = {}
    for i = 1, length do word[i] = below(n) end
    local name = table.concat(word, ' ')
    if not seen[name] then
      seen[name] = true
      list[#list + 1] = word
    end
  end
  return list
end

return draw
