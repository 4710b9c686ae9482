-- The task on text: windows, targets, repeated n-grams, validation, vocabulary, bad files. What is expected is cut out
-- of the text itself.
local lu = require 'luaunit'
local check = require 'check'
local kv = require 'kvlab'

local function same(a, b)
  return a.tokens:equal(b.tokens) and a.targets:equal(b.targets)
end

TestText = {}

-- Lines that repeat each other here and there; with and without characters of several bytes.
local function story(extra)
  local lines = {}
  for i = 1, 120 do
    lines[i] = ('%d times the %s fox %s\n'):format(i, i % 3 == 0 and 'quick' or 'slow', extra[i % #extra + 1])
  end
  return table.concat(lines)
end

local function with_file(text, f)
  local name = check.write(text)
  local ok, message = pcall(f, name)
  os.remove(name)
  if not ok then error(message, 0) end
end

local function characters(text)
  local list = {}
  for _, code in utf8.codes(text) do list[#list + 1] = utf8.char(code) end
  return list
end

function TestText:test_windows_targets_and_repeats()
  for _, text in ipairs { story { 'jumps', 'sleeps' }, story { 'hüpft', 'schläft €5 𝄞' } } do
    with_file(text, function(name)
      local all = characters(text)
      local t = kv.tasks.text { files = name, length = 40, ngram = 5, train = 0.8 }
      local distinct = {}
      for _, c in ipairs(all) do distinct[c] = true end
      local count = 0
      for _ in pairs(distinct) do count = count + 1 end
      lu.assertEquals(t.vocab, count)
      local trained = #all * 8 // 10
      local before, behind = table.concat(all, '', 1, trained), table.concat(all, '', trained + 1)
      for _, case in ipairs { { t.batch(1, 1, 12), before }, { t.validation(1, 12), behind } } do
        local batch, part = case[1], case[2]
        local targets, marks = batch.targets:totable(), batch.slices.repeated:totable()
        for b, row in ipairs(batch.tokens:totable()) do
          local input, output = t.decode(row), characters(t.decode(targets[b]))
          local window = characters(input)
          window[#window + 1] = output[#output]
          lu.assertEquals(table.concat(window, '', 2), table.concat(output))
          lu.assertStrContains(part, table.concat(window))
          for i = 1, 40 do
            local expected = 0
            for j = 1, i - 4 do -- the 5-gram that ends at target i begins at window[i - 3]
              if i >= 4 and table.concat(window, '', j, j + 4) == table.concat(window, '', i - 3, i + 1)
                and j < i - 3 then expected = 1 end
            end
            lu.assertEquals(marks[b][i], expected)
          end
        end
      end
      lu.assertEquals(t.decode(t.encode('slow fox')), 'slow fox')
      check.fails("'#' does not occur in the training text", t.encode, 's#')
      check.fails('id 500, but ids are 0 to', t.decode, { 500 })
    end)
  end
end

function TestText:test_validation_is_fixed_and_whole()
  with_file(story { 'jumps' }, function(name)
    local t = kv.tasks.text { files = { name }, length = 16, ngram = 2 }
    lu.assertTrue(t.windows > 10)
    lu.assertTrue(same(t.validation(2, 4), t.validation(2, 4)))
    local seen, expected, text = {}, {}, story { 'jumps' }
    for index = 1, t.windows do
      seen[index] = t.decode(t.validation(index, 1).tokens:select(1, 1))
      expected[index] = text:sub(#text * 9 // 10 + 1):sub(16 * index - 15, 16 * index)
      lu.assertEquals(#expected[index], 16)
    end
    lu.assertNotEquals(seen, expected) -- in random order
    table.sort(seen)
    table.sort(expected)
    lu.assertEquals(seen, expected)
    lu.assertTrue(same(t.validation(t.windows + 1, 1), t.validation(1, 1)))
    -- a batch of 4 is the same windows as 4 batches of 1
    lu.assertTrue(t.validation(2, 4).tokens:slice(1, 3, 3):equal(t.validation(7, 1).tokens))
    local score = t.score(t.validation(1, 4), t.validation(1, 4).targets)
    lu.assertEquals(score.correct, 64)
    lu.assertTrue(score.slices.repeated.count > 0)
    lu.assertEquals(kv.tasks.text { files = name, length = 16, ngram = 0 }.batch(1, 1, 1).slices, nil)
  end)
end

function TestText:test_training_windows_reach_both_ends()
  local text = ('abcdefghijklmnopqrstuvwxyz'):rep(1)
  with_file(text, function(name)
    local t = kv.tasks.text { files = name, length = 4, train = 0.5, ngram = 0 } -- trains on a to m
    local seen = {}
    for _, row in ipairs(t.batch(1, 1, 300).tokens:totable()) do seen[t.decode(row)] = true end
    local list = {}
    for window in pairs(seen) do list[#list + 1] = window end
    table.sort(list)
    lu.assertEquals(table.concat(list, ' '), 'abcd bcde cdef defg efgh fghi ghij hijk ijkl')
    lu.assertEquals(t.windows, 3) -- n to z: 13 letters
  end)
end

function TestText:test_bytes_and_digest()
  with_file('\0\255abc\200' .. ('xyz'):rep(20), function(name)
    local t = kv.tasks.text { files = name, length = 4, unit = 'byte', train = 0.7 }
    lu.assertEquals(t.vocab, 9)
    lu.assertEquals(t.encode('\0a\255'), { 0, 1, 8 })
    lu.assertEquals(t.decode { 0, 1, 8 }, '\0a\255')
    check.fails('byte 1 does not occur', t.encode, '\1')
    check.fails({ name, 'not UTF-8 at byte 2', "unit = 'byte'" }, kv.tasks.text, { files = name, length = 4 })
    local digest = t.options.digest
    lu.assertEquals(#digest, 16)
    lu.assertEquals(kv.tasks.text(t.options).options, t.options)
    with_file('\0\255abc\200' .. ('xyz'):rep(19) .. 'xyy', function(other)
      check.fails('the text is another one now', kv.tasks.text,
        { files = other, length = 4, unit = 'byte', digest = digest })
      lu.assertNotEquals(kv.tasks.text { files = other, length = 4, unit = 'byte' }.options.digest, digest)
    end)
  end)
end

function TestText:test_bad_files()
  with_file('', function(name) check.fails(name .. ' is empty', kv.tasks.text, { files = name }) end)
  with_file('short', function(name)
    check.fails({ 'length is 64', 'part has only', 'expected 65 or more' }, kv.tasks.text, { files = name })
  end)
  check.fails({ 'cannot read', '/nowhere/at-all.txt' }, kv.tasks.text, { files = '/nowhere/at-all.txt' })
  check.fails('cannot read', kv.tasks.text, { files = '/' })
  check.fails('files is nil, expected the name of a text file', kv.tasks.text, {})
  check.fails('files is an empty list', kv.tasks.text, { files = {} })
  check.fails('files[1] is a number', kv.tasks.text, { files = { 5 } })
  check.fails('train is 1, expected the share', kv.tasks.text, { files = 'x', train = 1 })
  check.fails('train is 0.9x', kv.tasks.text, { files = 'x', train = '0.9x' })
  check.fails('ngram is 1, expected 2 or more', kv.tasks.text, { files = 'x', ngram = 1 })
  check.fails("'characters' is unknown", kv.tasks.text, { files = 'x', unit = 'characters' })
end

check.main()
