-- plot/axis.lua: an axis: its range, where a value lies on it, and its ticks.
--
-- The pictures in text and in files have the same axes, so that they show the same.
local format = require 'kvlab.format'
local screen = require 'kvlab.plot.screen'

local axis = {}
local class = {}
class.__index = class

local ROUND <const> = { 1, 2, 5, 10 }

local TINY <const> = 1e-290 -- a span that can still be cut into steps

local function exponent(x) return math.floor(math.log(x, 10) + 1e-12) end

-- The round step that is at least `step`: 1, 2 or 5 times a power of ten.
local function round_step(step)
  local power = 10.0 ^ exponent(step)
  for _, m in ipairs(ROUND) do
    if m * power >= step * (1 - 1e-9) then return m * power end
  end
  return 10 * power
end

-- The next value of 1, 2 or 5 times a power of ten, at or below x, or at or above it.
local function round_down(x)
  local power, best = 10.0 ^ exponent(x), nil
  for _, m in ipairs(ROUND) do
    if m * power <= x * (1 + 1e-9) then best = m * power end
  end
  return best or power
end
local round_up = round_step

-- axis.new { low =, high =, scale = 'linear' | 'log', label =, ends = 'round' | 'exact', whole = true }: an axis over
-- the values low to high, which may all be whole. With round ends a linear one begins and ends at a tick of about 8, a
-- logarithmic one at 1, 2 or 5.
function axis.new(o)
  local self = setmetatable({ scale = o.scale or 'linear', label = o.label or '', whole = o.whole }, class)
  local low, high = o.low, o.high
  if self.scale == 'log' then
    low, high = math.max(TINY, math.min(low, 1e300)), math.max(TINY, math.min(high, 1e300))
    if high <= low * (1 + 1e-9) then low, high = low / 2, high * 2 end
    if o.ends ~= 'exact' then low, high = round_down(low), round_up(high) end
    self.low, self.high = low, high
    self.first, self.span = math.log(self.low), math.log(self.high) - math.log(self.low)
    return self
  end
  low, high = math.max(-1e300, math.min(low, 1e300)), math.max(-1e300, math.min(high, 1e300))
  local middle = math.max(math.abs(low), math.abs(high))
  if high - low <= middle * 1e-12 or high - low < TINY then -- one value: some room around it
    local room = middle > 0 and math.max(middle / 10, TINY) or 1
    low, high = low - room, high + room
  end
  if o.ends ~= 'exact' then
    local step = round_step((high - low) / 8)
    low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
  end
  self.low, self.high = low, high
  self.first, self.span = low, high - low
  return self
end

-- Where a value lies: 0 at the low end, 1 at the high one.
function class:at(value)
  return ((self.scale == 'log' and math.log(value) or value) - self.first) / self.span
end

-- The value at a place.
function class:value(place)
  local x = self.first + place * self.span
  return self.scale == 'log' and math.exp(x) or x
end

local function linear_places(low, high, count, whole)
  local step = round_step((high - low) / count)
  if whole then step = math.max(1, step) end
  local places = {}
  for i = math.ceil(low / step - 1e-6), math.floor(high / step + 1e-6) do places[#places + 1] = i * step end
  return places, step
end

-- Powers of ten, every one or every few; with 2 and 5 between them when there are few.
local function log_places(low, high, count)
  local first, last = math.ceil(math.log(low, 10) - 1e-9), exponent(high * (1 + 1e-9))
  local every, steps = math.max(1, math.ceil((last - first) / count)), { 1 }
  if (last - first) * 3 <= count then first, steps = first - 1, { 1, 2, 5 } end
  local places = {}
  for k = first, last, every do
    for _, m in ipairs(steps) do
      local x = m * 10.0 ^ k
      if x >= low * (1 - 1e-9) and x <= high * (1 + 1e-9) then places[#places + 1] = x end
    end
  end
  if #places < 2 then return (linear_places(low, high, count)) end
  return places
end

local function short(x)
  return (('%.6g'):format(x):gsub('e%+?(%-?)0*(%d)', 'e%1%2'))
end

-- ticks(count) -> list of { value, text }, about `count` of them, and the power of ten by which texts are divided (0
-- mostly): an axis to 3,000,000 is written in 10^6.
function class:ticks(count)
  count = math.max(1, count)
  local out = {}
  local largest = math.max(math.abs(self.low), math.abs(self.high))
  if self.scale == 'log' then
    local places = log_places(self.low, self.high, count)
    local plain = self.low >= 0.999e-3 and self.high <= 1.001e6
    local powers = true
    for _, x in ipairs(places) do powers = powers and math.abs(x / 10.0 ^ exponent(x) - 1) < 1e-6 end
    for i, x in ipairs(places) do
      out[i] = { x, plain and format.number(x, 5) or powers and ('10^%d'):format(exponent(x)) or short(x) }
    end
    return out, 0
  end
  local places, step = linear_places(self.low, self.high, count, self.whole)
  local power = 0
  if largest >= 1e6 or largest < 1e-3 then power = exponent(largest) // 3 * 3 end
  local unit = 10.0 ^ power
  local digits = math.max(0, -exponent(step / unit))
  for i, x in ipairs(places) do
    local text = digits > 12 and short(x / unit) or format.number(x / unit, digits)
    if digits > 0 and digits <= 12 then text = ('%.' .. digits .. 'f'):format(x / unit) end
    out[i] = { x, (text:gsub('^%-(0%.?0*)$', '%1')) }
  end
  return out, power
end

-- tick_line(ticks, width) -> the texts of ticks in a line of `width` characters, none over another.
function class:tick_line(ticks, width)
  local line, free = '', 0
  for _, tick in ipairs(ticks) do
    local at, length = math.floor(self:at(tick[1]) * (width - 1) + 0.5), screen.width(tick[2])
    local start = math.max(0, math.min(at - (length - 1) // 2, width - length))
    if start >= free then
      line = screen.pad(line, start) .. tick[2]
      free = start + length + 1
    end
  end
  return line
end

-- What stands beside the axis: its label, the power of ten of its numbers, and that it is logarithmic.
function class:caption(power)
  local parts = { self.label ~= '' and self.label or nil }
  if power and power ~= 0 then parts[#parts + 1] = ('in 10^%d'):format(power) end
  if self.scale == 'log' then parts[#parts + 1] = 'log scale' end
  return table.concat(parts, ', ')
end

return axis
