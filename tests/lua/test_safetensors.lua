-- test_safetensors.lua: files from Lua. What a file can lie about is in tests/c/test_safetensors.c.
local lu = require 'luaunit'
local check = require 'check'
local kv = require 'kvlab'

TestSafeTensors = {}

function TestSafeTensors:setUp() self.path = os.tmpname() end

function TestSafeTensors:tearDown() os.remove(self.path) end

function TestSafeTensors:test_round_trip()
  local x = kv.random { 3, 4, seed = 1 }
  kv.safetensors.save(self.path, {
    x = x, turned = x:transpose(), ids = kv.arange(5), half = { x, 'BF16' }, byte = { kv.arange(3), 'U8' },
    ['name with "quotes"'] = { x, 'F64' }, empty = kv.zeros(0, 2),
  }, { made_by = 'a test' })
  local file <close> = kv.safetensors.open(self.path)
  lu.assertEquals(#file, 7)
  lu.assertTrue(file:load('x'):equal(x))
  lu.assertTrue(file:load('turned'):equal(x:transpose()))
  lu.assertTrue(file:load('name with "quotes"'):equal(x))
  lu.assertTrue(file:load('ids'):equal(kv.arange(5)))
  lu.assertTrue(file:load('byte'):equal(kv.arange(3)))
  lu.assertEquals(file:load('empty').shape, { 0, 2 })
  lu.assertEquals({ file:info('half') }, { 'BF16', { 3, 4 } })
  lu.assertEquals(file:metadata(), { made_by = 'a test' })
  lu.assertTrue(file:has('x'))
  lu.assertFalse(file:has('y'))
  local relative = file:compare('half', x)
  lu.assertTrue(relative > 0 and relative < 2 ^ -8) -- bf16 keeps 8 bits
  lu.assertEquals({ file:compare('x', x) }, { 0, 0 })
  local names = file:names()
  table.sort(names)
  lu.assertEquals(names, { 'byte', 'empty', 'half', 'ids', 'name with "quotes"', 'turned', 'x' })
  lu.assertEquals(tostring(file), 'SafeTensors (7 tensors)')
end

function TestSafeTensors:test_compare_in_double()
  kv.safetensors.save(self.path, { a = { kv.tensor { 3, 4 }, 'F64' } })
  local file <close> = kv.safetensors.open(self.path)
  local relative, largest = file:compare('a', kv.tensor { 3, 4.5 })
  lu.assertEquals({ relative, largest }, { 0.1, 0.5 })
  check.fails({ '{2}', '{3}' }, file.compare, file, 'a', kv.zeros(3))
end

function TestSafeTensors:test_errors()
  check.fails({ '/nowhere/x', 'No such' }, kv.safetensors.open, '/nowhere/x')
  check.fails('too few', kv.safetensors.open, self.path)
  check.fails('string expected', kv.safetensors.open, {})
  check.fails('character 0', kv.safetensors.open, 'a\0b')
  check.fails('table expected', kv.safetensors.save, self.path, 3)
  check.fails("'a' is number", kv.safetensors.save, self.path, { a = 3 })
  check.fails('name of a tensor', kv.safetensors.save, self.path, { kv.zeros(1) })
  check.fails("such as 'BF16'", kv.safetensors.save, self.path, { a = { kv.zeros(1), 'FP4' } })
  check.fails('int32 is not written as F16', kv.safetensors.save, self.path, { a = { kv.arange(1), 'F16' } })
  check.fails('metadata', kv.safetensors.save, self.path, {}, { a = 1 })
  check.fails('UTF-8', kv.safetensors.save, self.path, { ['\xff'] = kv.zeros(1) })
  kv.safetensors.save(self.path, { a = kv.zeros(1) })
  local file = kv.safetensors.open(self.path)
  check.fails("no tensor 'b'", file.load, file, 'b')
  check.fails('no tensor', file.load, file, 'a\0')
  check.fails('expected', file.load, kv.zeros(1), 'a')
  check.fails('Tensor expected', file.compare, file, 'a', 3)
  file:close()
  file:close()
  check.fails('closed', file.load, file, 'a')
  check.fails('closed', function() return #file end)
  lu.assertEquals(tostring(file), 'SafeTensors (closed)')
  lu.assertEquals(getmetatable(file), 'kvlab.SafeTensors')
end

check.main()
