-- Suggestions for misspelt names.
local lu = require 'luaunit'
local check = require 'check'
local options = require 'kvlab.options'
local suggest = require 'kvlab.suggest'

local kinds = { 'mha', 'mqa', 'gqa', 'mla', 'dsa', 'swa', 'hca', 'csa', 'full', 'reindex', 'reuse', 'group' }
local presets = { 'mha', 'v2', 'v2-lite', 'v3', 'v3.2', 'v4-flash', 'v4-pro', 'v4.1-flash' }

TestSuggest = {}

function TestSuggest:test_nearest()
  local cases = {
    { 'reindx', kinds, 'reindex' },      -- missing letter
    { 'reindexx', kinds, 'reindex' },    -- one too many
    { 'resue', kinds, 'reuse' },         -- neighbours swapped: one edit
    { 'ruese', kinds, 'reuse' },
    { 'FULL', kinds, 'full' },           -- case
    { 'Reuze', kinds, 'reuse' },
    { 'swaa', kinds, 'swa' },
    { 'ful', kinds, 'full' },
    { 'gropu', kinds, 'group' },
    { 'v4', presets, 'v4-pro' },         -- two letters forgive no edit: the shortest that begins so
    { 'v4-', presets, 'v4-pro' },
    { 'v4.1', presets, 'v4.1-flash' },
    { 'v4flash', presets, 'v4-flash' },
    { 'v4_flash', presets, 'v4-flash' },
    { 'context-length', { 'context', 'memory' }, 'context' },
    { 'zebra', kinds, nil },
    { 'x', kinds, nil },
    { '', kinds, nil },
    { 'window', { 'ratio', 'pool' }, nil },
  }
  for _, case in ipairs(cases) do
    lu.assertEquals(suggest.nearest(case[1], case[2]), case[3], case[1])
  end
end

function TestSuggest:test_names_as_keys_and_ties()
  lu.assertEquals(suggest.nearest('ratoi', { ratio = 1, window = 2 }), 'ratio')
  -- both one edit away: the first in the alphabet, whatever the order
  lu.assertEquals(suggest.nearest('xla', { 'zla', 'mla' }), 'mla')
  lu.assertEquals(suggest.nearest('xla', { 'mla', 'zla' }), 'mla')
end

function TestSuggest:test_long_words_are_fast()
  local start = os.clock()
  lu.assertNil(suggest.nearest(('x'):rep(1000000), kinds))
  lu.assertTrue(os.clock() - start < 1)
end

function TestSuggest:test_phrase_and_list()
  lu.assertEquals(suggest.phrase('reindx', kinds), "; did you mean 'reindex'?")
  lu.assertEquals(suggest.phrase('zebra', kinds), '')
  lu.assertEquals(suggest.list { 'b', 'c', 'a' }, 'a, b and c')
  lu.assertEquals(suggest.list { 'b', 'a' }, 'a and b')
  lu.assertEquals(suggest.list { 'a' }, 'a')
  lu.assertEquals(suggest.list {}, 'nothing')
  lu.assertEquals(suggest.list { b = 1, a = 2 }, 'a and b')
end

function TestSuggest:test_options()
  lu.assertNil(options.check(nil, { 'a' }, 'f'))
  lu.assertEquals(options.check({ a = 1 }, { 'a' }, 'f'), { a = 1 })
  check.fails("f: unknown option 'indnt'; did you mean 'indent'?",
    options.check, { indnt = 2 }, { 'indent' }, 'f', 'option')
  check.fails("f: unknown key 'zz'; expected b, a", options.check, { zz = 2 }, { 'b', 'a' }, 'f')
  check.fails("f: unknown key '1'", options.check, { 'x' }, { 'b', 'a' }, 'f')
  check.fails('f: expected a table, not a number', options.check, 3, { 'b' }, 'f')
  check.fails({ "f: 'blue' is unknown", 'red, green' }, options.word, 'blue', { 'red', 'green' }, 'f')
  check.fails('f is 1.5, expected a whole number, 1 or more', options.whole, 1.5, 1, 'f')
end

check.main()
