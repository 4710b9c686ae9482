-- standin.lua: stand-ins for projection matrices: of the product x W^T only the shape is kept, the numbers are random.
--
-- A measurement (kvlab.measure) needs rows to put into caches and queries to read them with, but no weights: a layer of
-- a released model has gigabytes of them. A stand-in has the shape of its matrix and gives, instead of the product, a
-- view of a block of normal numbers that all stand-ins of a measurement share. Every call begins at another place of
-- the block, so chunks differ from each other, but the numbers are drawn once.
local tensor = require 'kvlab.tensor'

local standin = {}

-- --- the block ----------------------------------------------------------------------------------------
local Noise = {}
Noise.__index = Noise

local SIZE = 4194304   -- float32 numbers, 16 MiB
local STRIDE = 1000003 -- prime, so that starts come back late

-- standin.noise(seed) -> the block that stand-ins draw from.
function standin.noise(seed)
  return setmetatable({ seed = seed, calls = 0 }, Noise)
end

-- take(n) -> n numbers, a view of the block; at least half of the block remains as room for different starts.
function Noise:take(n)
  if not self.block or self.block.shape[1] < 2 * n then
    self.block = tensor.random { math.max(SIZE, 2 * n), seed = self.seed }
  end
  self.calls = self.calls + 1
  local start = self.calls * STRIDE % (self.block.shape[1] - n + 1)
  return self.block:slice(1, start + 1, start + n)
end

-- --- stand-ins ----------------------------------------------------------------------------------------
local class = {}
local meta = { __name = 'kvlab.Standin', __index = class }

-- standin.new(shape, noise): for a matrix [out, in], or a matrix for each head [H, in, out].
function standin.new(shape, noise)
  return setmetatable({ shape = shape, noise = noise }, meta)
end

function standin.is(value) return getmetatable(value) == meta end

-- What B x T rows become: [B, T, out], or [B, T, H, out].
function class:outputs(B, T)
  local shape = self.shape
  if #shape == 2 then return self.noise:take(B * T * shape[1]):reshape(B, T, shape[1]) end
  return self.noise:take(B * T * shape[1] * shape[3]):reshape(B, T, shape[1], shape[3])
end

-- The views of matrices that are taken before anything is multiplied (MLA's up-projection), as shapes.
function class:reshape(...) return standin.new({ ... }, self.noise) end

function class:slice(dim, first, last)
  local shape = table.move(self.shape, 1, #self.shape, 1, {})
  shape[dim] = (last < 0 and shape[dim] + 1 + last or last) - first + 1
  return standin.new(shape, self.noise)
end

return standin
