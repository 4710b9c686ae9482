-- How the prompt shows values: bounded, whatever they are.
local lu = require 'luaunit'
local check = require 'check'
local kv = require 'kvlab'
local preview = require 'kvlab.preview'
local terminal = require 'kvlab.terminal'

local function lines(text) return select(2, text:gsub('\n', '\n')) + 1 end

TestPreview = {}

function TestPreview:test_small_values()
  lu.assertEquals(preview {}, '{}')
  lu.assertEquals(preview { 1, 2.5, 'a', true }, "{1, 2.5, 'a', true}")
  lu.assertEquals(preview { 1, b = { 2 }, a = {}, ['c d'] = "'\n\0" },
    "{1, a = {}, b = {2}, ['c d'] = '\\'\\n\\0'}")
  lu.assertEquals(preview { 1, { 2, { 3, { 4 } } } }, '{1, {2, {3, {...}}}}')
  lu.assertEquals(preview(setmetatable({}, { __tostring = function() return 'me' end })), 'me')
  lu.assertEquals(preview(setmetatable({ 7 }, { __index = function() error 'looked' end })), '{7}')
  lu.assertEquals(preview(nil), 'nil')
  lu.assertEquals(preview '', '')
  lu.assertEquals(preview 'a picture\n +--+\n', 'a picture\n +--+\n')
  lu.assertEquals(preview(kv.layout 'swa full'), 'swa full/1')
end

function TestPreview:test_nothing_steers_the_terminal()
  lu.assertEquals(preview 'a\27[2Jb\xff\xc3\xa9', 'a\\27[2Jb\\255\xc3\xa9')
  lu.assertEquals(preview { 'a\27b' }, "{'a\\27b'}")
  lu.assertEquals(preview(setmetatable({}, { __tostring = function() return '\7' end })), '\\7')
end

function TestPreview:test_bounded()
  local long, keys, wide, deep, grid = {}, {}, {}, {}, {}
  for i = 1, 100000 do long[i] = i end
  for i = 1, 100000 do keys['key' .. i] = i end
  for i = 1, 9 do wide[i] = ('x'):rep(1000) end
  local at = deep
  for i = 1, 1000 do
    at[1], at.name = {}, 'depth ' .. i
    at = at[1]
  end
  for i = 1, 100 do
    grid[i] = {}
    for k = 1, 100 do grid[i][k] = { i, k, name = 'item ' .. k } end
  end
  for _, value in ipairs { long, keys, wide, deep, grid } do
    local text = preview(value)
    lu.assertTrue(#text < 3500, tostring(#text))
    lu.assertTrue(lines(text) <= 42, tostring(lines(text)))
  end
  lu.assertStrContains(preview(long), '1, 2, 3, 4')
  lu.assertStrContains(preview(long), '... (99980 more)')
  lu.assertStrContains(preview(keys), '... (99980 more)')
  lu.assertTrue(#preview(('x'):rep(1e6)) < 30000)
  lu.assertStrContains(preview(('x'):rep(1e6)), '(1000000 bytes in all)')
  local text = preview(('line\n'):rep(1000))
  lu.assertEquals(lines(text), 41)
  lu.assertStrContains(text, '... 961 more lines; show(_) prints all')
end

function TestPreview:test_a_table_inside_itself()
  local t = { 1 }
  t.again = t
  lu.assertEquals(preview(t), '{1, again = {...}}')
  lu.assertEquals(preview.all(t), '{1, again = {...}}')
end

function TestPreview:test_all_leaves_nothing_out()
  local list = {}
  for i = 1, 1000 do list[i] = { i, { { { i } } } } end
  local text = preview.all(list)
  lu.assertStrContains(text, '{1000, {{{1000}}}}')
  lu.assertNotStrContains(text, '...')
  lu.assertEquals(lines(preview.all(('line\n'):rep(1000))), 1001)
end

function TestPreview:test_tensors()
  lu.assertEquals(preview(kv.tensor { 1, 2, 3 }), 'float32 {3} {1, 2, 3}')
  local t = kv.arange(0, 999999):reshape(1000, 1000)
  local text = preview(t)
  lu.assertTrue(#text < 1000)
  lu.assertStrContains(text, 'int32 {1000, 1000}')
  lu.assertStrContains(text, 'min 0, mean 5e+05, max 999999')
  lu.assertStrContains(preview(t:to 'float32' - 0.25), 'min -0.25, mean 5e+05, max 1e+06')
  lu.assertEquals(preview(kv.zeros(0, 3)), 'float32 {0, 3}\n(no elements)')
  lu.assertEquals(preview { kv.zeros(2, 3), t }, '{float32 {2, 3}, int32 {1000, 1000}}')
  t:free()
  lu.assertEquals(preview(t), 'Tensor (freed)')
end

function TestPreview:test_narrow()
  local columns = terminal.columns
  terminal.columns = function() return 30 end
  local ok, problem = pcall(function()
    lu.assertEquals(preview { 'one thing', 'another', 'a third' }, "{\n  'one thing', 'another',\n  'a third'\n}")
    lu.assertEquals(preview { a = 1, b = 2, name = 'something longer' },
      "{\n  a = 1,\n  b = 2,\n  name = 'something longer'\n}")
  end)
  terminal.columns = columns
  lu.assertTrue(ok, tostring(problem))
end

TestTerminal = {}

function TestTerminal:test_cut_and_wrap()
  lu.assertEquals(terminal.cut('abcdefgh', 8), 'abcdefgh')
  lu.assertEquals(terminal.cut('abcdefghi', 8), 'abcd ...')
  lu.assertEquals(terminal.cut(('é'):rep(9), 8), ('é'):rep(4) .. ' ...')
  lu.assertEquals(terminal.wrap('one two three', 8, ' '), { ' one two', ' three' })
  lu.assertEquals(terminal.wrap('averylongword b', 5, '', '  '), { 'averylongword', '  b' })
  lu.assertEquals(terminal.wrap('', 5, '  '), { '  ' })
end

check.main()
