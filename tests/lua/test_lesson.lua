-- Lessons: each runs, its answers are right and wrong ones are not; how the engine behaves at the prompt; the tutorial.
local lu = require 'luaunit'
local check = require 'check'
local kv = require 'kvlab'
local lesson = require 'kvlab.lesson'
local lessons = require 'kvlab.lessons'
local repl = require 'kvlab.repl'

local getenv = os.getenv

-- A session as the prompt has it. s.type(line) is a line that is typed, and gives what it printed; its progress is in
-- s.state, a new folder or that of an earlier session.
local function session(state)
  if not state then
    state = os.tmpname()
    os.remove(state)
  end
  local s = { env = repl.environment(kv), said = {}, state = state }
  os.getenv = function(name) -- luacheck: ignore 122
    return name == 'XDG_STATE_HOME' and state or getenv(name)
  end
  lesson.install(s.env, function(text) s.said[#s.said + 1] = text end)
  function s.type(line)
    s.said = {}
    if not lesson.word(line, s.env) then
      local chunk = assert(load(line, '=line', 't', s.env))
      chunk()
    end
    return table.concat(s.said)
  end
  return s
end

-- Formulas, brackets and code count as nothing.
local function sentences(text)
  local plain = ('\n' .. table.concat(lessons.lines(text), '\n')):gsub('\n  [^\n]*', ''):gsub('%s+', ' ')
  return select(2, (plain:gsub('%b()', ''):gsub('%b``', 'x') .. ' '):gsub('[.?!:]"?%s', ''))
end

-- --- the lessons ------------------------------------------------------------------------------------

TestLessons = {}

function TestLessons:test_numbers_and_names()
  local names = {}
  for i, l in ipairs(lessons.all()) do
    lu.assertEquals(l.number, i)
    lu.assertNil(names[l.name])
    names[l.name] = true
    lu.assertTrue(l.name:find('^[%w_-]+$') ~= nil and #l.title <= 60, l.name)
  end
  lu.assertTrue(#lessons.all() >= 7)
end

function TestLessons:test_steps_are_short()
  for _, l in ipairs(lessons.all()) do
    for i, step in ipairs(l.steps) do
      local n = sentences(step.text)
      lu.assertTrue(n >= 1 and n <= 8, ('%s, step %d: %d sentences'):format(l.name, i, n))
    end
  end
end

function TestLessons:tearDown() os.getenv = getenv end -- luacheck: ignore 122

-- Every lesson through the prompt: each question is answered wrongly, then rightly, and its code works.
function TestLessons:test_every_lesson_and_answer()
  for _, l in ipairs(lessons.all()) do
    local s = session()
    local asked = 0
    s.type(("lesson '%s'"):format(l.name))
    for i, step in ipairs(l.steps) do
      local where = ('%s, step %d'):format(l.name, i)
      local text = table.concat(s.said)
      lu.assertStrContains(text, ('[%s %d/%d'):format(l.name, i, #l.steps), false, where .. ': ' .. text)
      if step.ask then
        local right = lessons.expected(step.ask, s.env)
        s.env.right = right
        s.env.wrong = type(right) == 'number' and right * 1.5 + 1 or { 77 }
        lu.assertStrContains(s.type 'answer(wrong)', 'Not ', false, where)
        text = s.type 'answer(right)'
        lu.assertStrContains(text, 'Right. ', false, where)
        asked = asked + 1
      end
      s.type 'next'
    end
    lu.assertStrContains(table.concat(s.said), ("That was lesson '%s'."):format(l.name))
    lu.assertTrue(asked >= 2, l.name .. ' asks too little')
    os.execute(('rm -rf %q'):format(s.state))
    collectgarbage()
  end
end

function TestLessons:test_printed_whole()
  for _, l in ipairs(lessons.all()) do
    local env
    local fresh = repl.environment(kv)
    local function print_all()
      local out = {}
      env = repl.environment(kv)
      lu.assertTrue(lesson.all(l.name, env, function(text) out[#out + 1] = text end), l.name)
      return table.concat(out)
    end
    local text = print_all()
    for name in pairs(env) do -- a lesson's own names hide none of kv
      lu.assertTrue(rawget(kv, name) == nil or rawget(fresh, name) ~= nil, ('%s hides kv.%s'):format(l.name, name))
    end
    for line in text:gmatch('[^\n]*') do
      lu.assertTrue((utf8.len(line) or #line) <= 80, ('%s: %s'):format(l.name, line))
    end
    if not l.varies then lu.assertEquals(print_all(), text) end
  end
end

-- --- answers ----------------------------------------------------------------------------------------

TestAnswers = {}

function TestAnswers:test_judge()
  local freed = kv.ones(2)
  freed:free()
  local hostile = setmetatable({}, { __index = function() error 'no' end, __len = function() error 'no' end })
  local cases = {
    { 5, 5, true }, { 6, 5, false }, { 5.0, 5, true }, { 5.0001, 5, false }, { '5', 5, true }, { ' 3,932,160 ', 3932160, true },
    { '0x10', 16, true }, { kv.exact(10, 2), 5, true }, { kv.exact(11, 2), 5.5, true }, { kv.tensor { 5 }, 5, true },
    { kv.tensor { 5, 5 }, 5, nil }, { nil, 5, nil }, { 'five', 5, nil }, { '', 5, nil }, { 0 / 0, 5, nil }, { {}, 5, nil },
    { true, 5, nil }, { print, 5, nil }, { coroutine.create(print), 5, nil }, { hostile, 5, nil }, { freed, 5, nil },
    { kv.tensor { 0 / 0 }, 5, nil }, { math.huge, 5, false }, { -math.huge, 5, false }, { math.mininteger, 5, false },
    { 0.3333333, 1 / 3, true }, { 0.333, 1 / 3, false }, { 0.33, 1 / 3, true, 0.02 }, { 0, 0, true }, { 1e-9, 0.0, false },
    { 102, 100, true, 0.02 }, { 103, 100, false, 0.02 },
    { { 1, 2 }, { 1, 2 }, true }, { { 2, 1 }, { 1, 2 }, false }, { { 1 }, { 1, 2 }, false }, { { 1, 2, 3 }, { 1, 2 }, false },
    { kv.tensor({ 1, 2 }, 'int32'), { 1, 2 }, true }, { kv.tensor { { 1, 2 } }, { 1, 2 }, true }, { { 1, 'x' }, { 1, 2 }, false },
    { 1, { 1 }, true }, { 1, { 1, 2 }, false }, { hostile, { 1, 2 }, nil }, { { 0 / 0, 2 }, { 1, 2 }, false }, { freed, { 1 }, nil },
    { true, true, true }, { false, true, false }, { 1, true, nil }, { 'Full ', 'full', true }, { 'reuse', 'full', false }, { 1, 'full', nil },
  }
  for i, case in ipairs(cases) do
    local given, right, expected = table.unpack(case, 1, 3)
    local good, problem = lessons.judge(given, right, case[4])
    local said = ('case %d: %s'):format(i, lessons.said(given))
    lu.assertEquals(good, expected, said)
    lu.assertEquals(type(problem), good == nil and 'string' or 'nil', said)
  end
end

function TestAnswers:test_said()
  local cases = { { 1234567, '1,234,567' }, { 2.0, '2' }, { 1 / 3, '0.333333' }, { 0 / 0, 'NaN' }, { 'a\27b', "'a?b'" },
    { ('x'):rep(100), "'" .. ('x'):rep(37) .. "...'" }, { nil, 'nil' }, { false, 'false' }, { { 1, 2 }, '{ 1, 2 }' },
    { { {}, 'x' }, '{ ..., ... }' }, { kv.ones(2), 'a tensor' }, { print, 'a function' } }
  for i, case in ipairs(cases) do lu.assertEquals(lessons.said(case[1]), case[2], tostring(i)) end
end

-- --- the engine -------------------------------------------------------------------------------------

TestEngine = {}

function TestEngine:setUp() self.s = session() end

function TestEngine:tearDown()
  os.getenv = getenv -- luacheck: ignore 122
  os.execute(('rm -rf %q'):format(self.s.state))
  self.s = nil
end

function TestEngine:test_list()
  local text = self.s.type 'lesson()'
  for _, l in ipairs(lessons.all()) do lu.assertStrContains(text, l.title) end
  lu.assertNotStrContains(text, 'done')
  lu.assertNotStrContains(text, 'step ')
end

function TestEngine:test_words_only_in_a_lesson()
  for _, word in ipairs { 'next', 'back', 'again', 'skip', 'quit' } do
    lu.assertFalse(lesson.word(word, self.s.env))
  end
  self.s.type "lesson 'cache'"
  for _, line in ipairs { 'next()', 'next = 1', 'nexts', 'Next', '', 'print(next)', 'next;', 'start', 'words', ' next x' } do
    lu.assertFalse(lesson.word(line, self.s.env), line)
  end
  lu.assertFalse(lesson.word(nil, self.s.env))
  lu.assertFalse(lesson.word('next', {}))
  lu.assertTrue(lesson.word('  next ', self.s.env))
  self.s.type 'assert(next {} == nil)'
  self.s.type 'quit'
  lu.assertFalse(lesson.word('next', self.s.env))
end

function TestEngine:test_a_question()
  local s = self.s
  s.type "lesson('cache', 2)"
  lu.assertStrContains(s.type 'next', 'The question is open')
  lu.assertStrContains(s.type 'answer()', 'Question: Without a cache')
  local text = s.type 'answer(1000)'
  lu.assertStrContains(text, 'Not 1,000. Step t computes t rows')
  lu.assertNotStrContains(text, 'skip shows')
  lu.assertStrContains(s.type "answer 'many'", "'many' is no answer here; expected a number.")
  lu.assertStrContains(s.type 'answer(nil)', 'nil is no answer here')
  lu.assertStrContains(s.type 'answer(0/0)', 'NaN is no answer')
  lu.assertStrContains(s.type 'answer({})', 'expected a number')
  lu.assertStrContains(s.type 'answer(kv.ones(3))', 'a tensor is no answer here')
  lu.assertStrContains(s.type 'answer(7)', 'skip shows the answer')
  lu.assertStrContains(s.type 'answer(500500)', 'Right. ')
  lu.assertStrContains(s.type 'answer(1)', 'Not 1.') -- once more, for fun
  lu.assertStrContains(s.type 'next', '[cache 3/')
end

function TestEngine:test_skip_shows_the_answer()
  self.s.type "lesson('cache', 2)"
  local text = self.s.type 'skip'
  lu.assertStrContains(text, 'The answer is 500,500.')
  lu.assertStrContains(text, '[cache 3/')
end

function TestEngine:test_the_right_answer_is_that_of_the_step()
  self.s.type "lesson('cache', 6)"
  self.s.type 'function bytes_per_token() return 1 end'
  lu.assertStrContains(self.s.type 'answer(1)', 'Not 1.')
  lu.assertStrContains(self.s.type 'answer(1280)', 'Right.')
end

function TestEngine:test_answers_outside_a_question()
  local s = self.s
  lu.assertStrContains(s.type 'answer(1)', 'No question is open')
  lu.assertStrContains(s.type 'answer()', 'No question is open')
  s.type "lesson 'cache'"
  lu.assertStrContains(s.type 'answer(1)', 'This step asks nothing')
end

function TestEngine:test_moving()
  local s = self.s
  s.type "lesson 'cache'"
  lu.assertStrContains(s.type 'back', 'first step')
  lu.assertStrContains(s.type 'skip', '[cache 2/')
  lu.assertStrContains(s.type 'back', '[cache 1/')
  lu.assertStrContains(s.type 'again', '[cache 1/')
  lu.assertStrContains(s.type 'quit', "lesson 'cache' goes on at step 1")
  lu.assertStrContains(s.type 'lesson(2)', 'Lesson 2:')
end

function TestEngine:test_variables_stay()
  local s = self.s
  s.type "lesson 'cache'"
  s.type 'mine = 41'
  s.type 'next'
  lu.assertEquals(s.env.mine, 41)
  lu.assertTrue(kv.is_tensor(s.env.K_cached))
  lu.assertNil(rawget(s.env, 'print'))
  s.type 'quit'
  lu.assertTrue(kv.is_tensor(s.env.K_cached))
end

function TestEngine:test_a_step_that_fails_says_how_to_go_on()
  local s = self.s
  s.type "lesson 'cache'"
  s.type 'X = nil'
  lu.assertStrContains(s.type 'next', "may mean something else by now; lesson('cache', 2) makes")
  lu.assertStrContains(s.type "lesson('cache', 2)", 'Question: ')
  s.type 'kv = 7'
  lu.assertStrContains(s.type 'again', 'may mean something else by now')
end

function TestEngine:test_wrong_names()
  local env = self.s.env
  check.fails("there is no lesson 'cach'; did you mean 'cache'?", env.lesson, 'cach')
  check.fails("there is no lesson ''", env.lesson, '')
  check.fails('there is no lesson 99; lesson() lists them', env.lesson, 99)
  check.fails('there is no lesson 1.5', env.lesson, 1.5)
  check.fails({ 'there is no lesson', 'xxx...' }, env.lesson, ('x'):rep(100000))
  for _, thing in ipairs { {}, true, print, kv.ones(2) } do check.fails('expected a name', env.lesson, thing) end
  for _, at in ipairs { 0, 99, -1, 1.5, 'x', {}, 0 / 0 } do
    check.fails("'cache' has the steps 1 to", env.lesson, 'cache', at)
  end
  lu.assertFalse(lesson.word('next', env))
end

function TestEngine:test_progress_is_kept()
  local s = self.s
  s.type "lesson 'cache'"
  s.type 'next'
  s.type 'skip'
  s.type "lesson('mla', 2)"
  s.type 'quit'
  local later = session(s.state)
  local text = later.type 'lesson()'
  lu.assertStrContains(text, ('step 3 of %d'):format(#lessons.find('cache').steps))
  lu.assertStrContains(text, 'step 2 of')
  text = later.type "lesson 'cache'"
  lu.assertStrContains(text, '[cache 3/')
  lu.assertTrue(kv.is_tensor(later.env.K_cached)) -- of a step before
  for _ = 1, #lessons.find('cache').steps do if later.env and lesson.word('skip', later.env) then later.said = {} end end
  lu.assertFalse(lesson.word('skip', later.env))
  text = session(s.state).type 'lesson()'
  lu.assertStrContains(text, 'done')
  lu.assertStrContains(session(s.state).type "lesson 'cache'", '[cache 1/')
end

function TestEngine:test_a_damaged_progress_file()
  local s = self.s
  os.execute(('mkdir -p %q/kvlab'):format(s.state))
  local file <close> = assert(io.open(s.state .. '/kvlab/lessons', 'wb'))
  file:write('cache 999\n\0\255 x\nmla\nmla two\nnosuch 4\n\ncache -3\nmla 99999999999999999999999\nrope 0\n', ('x'):rep(5000))
  file:close()
  lu.assertStrContains(s.type 'lesson()', 'cache')
  lu.assertStrContains(s.type "lesson 'cache'", ('[cache %d/'):format(#lessons.find('cache').steps))
  lu.assertStrContains(s.type "lesson 'mla'", '[mla 1/')
  lu.assertStrContains(s.type "lesson 'rope'", '[rope 1/')
end

function TestEngine:test_progress_that_cannot_be_kept()
  local file <close> = assert(io.open(self.s.state, 'wb')) -- a file where the folder should be
  local script = ([[local kv, lesson = require 'kvlab', require 'kvlab.lesson'
    local env = require('kvlab.repl').environment(kv)
    lesson.install(env)
    env.lesson 'cache'
    lesson.word('next', env)]])
  local name = check.write(script)
  local code, out, err = check.sh(('XDG_STATE_HOME=%s lua5.4 %s'):format(self.s.state, name))
  os.remove(name)
  lu.assertEquals(code, 0)
  lu.assertStrContains(out, '[cache 2/')
  lu.assertStrContains(err, 'progress in lessons is not kept: ')
  lu.assertEquals(select(2, err:gsub('\n', '')), 1)
end

function TestEngine:test_narrow_terminal()
  local before = os.getenv
  os.getenv = function(name) return name == 'COLUMNS' and '30' or before(name) end -- luacheck: ignore 122
  local text = self.s.type "lesson 'cache'"
  local prose = text:match('\n\n(.-)\n\n')
  for line in prose:gmatch('[^\n]+') do lu.assertTrue(#line < 30, line) end
  lu.assertStrContains(text, '[cache 1/')
end

-- --- files, the command, the tutorial ---------------------------------------------------------------

TestFormat = {}

function TestFormat:test_check()
  local function step(fields) return { number = 1, name = 'x', title = 'X', steps = { fields } } end
  lu.assertEquals(lessons.check(step { text = 'x' }, 'f').name, 'x')
  check.fails("f: no 'title'", lessons.check, { number = 1, name = 'x', steps = {} }, 'f')
  check.fails("f, step 1: no 'text'", lessons.check, step { code = 'x' }, 'f')
  check.fails("f, step 1: unknown field 'cod'; did you mean 'code'?", lessons.check, step { text = 'x', cod = 'x' }, 'f')
  check.fails("f, step 1, ask: no 'hint'", lessons.check,
    step { text = 'x', ask = { question = 'x', answer = '1', working = 'x' } }, 'f')
end

function TestFormat:test_lines_and_wrapping()
  lu.assertEquals(lessons.lines '\n  a\n    b\n\n  c\n', { 'a', '  b', '', 'c' })
  lu.assertEquals(lessons.lines 'a\n  b\n    c', { 'a', 'b', '  c' })
  lu.assertEquals(lessons.wrapped('one two\nthree\n\n  x =  y\nfour', 9), { 'one two', 'three', '', '  x =  y', 'four' })
  lu.assertEquals(lessons.wrapped('one two three', 7), { 'one two', 'three' })
  lu.assertEquals(lessons.wrapped(('x'):rep(20), 7), { ('x'):rep(20) })
end

function TestFormat:test_execute()
  local function run(code, env)
    local out = {}
    local ok, why = lessons.execute(code, env or repl.environment(kv), function(text) out[#out + 1] = text end)
    return table.concat(out), ok, why
  end
  local cases = { { '1 + 1', '2\n' }, { 'x = 3\nx', '3\n' }, { 'x = 3', '' }, { 'print(1, nil)', '1\tnil\n' },
    { 'print "a"\n1, 2', 'a\n1\t2\n' }, { 'for i = 1, 2 do\nprint(i)\nend', '1\n2\n' },
    { 'function f()\nreturn 4\nend\nf()', '4\n' }, { 'local a = 5\na', '5\n' }, { 'f = function()\n  g(1)\nend', '' },
    { 'x = 1\nif x then\n  print(x)\nend', '1\n' }, { 'plot == kv.plot', 'true\n' } }
  for _, case in ipairs(cases) do
    local out, ok, why = run(case[1])
    lu.assertEquals({ out, ok, why }, { case[2], true }, case[1])
  end
  local _, ok, why = run 'x ='
  lu.assertEquals({ ok, type(why) }, { false, 'string' })
  local env = repl.environment(kv)
  local out
  out, ok, why = run('print(1)\nerror {}', env)
  lu.assertEquals({ out, ok }, { '1\n', false })
  lu.assertNil(rawget(env, 'print'))
  _, _, why = run 'error "here"'
  lu.assertEquals(why, 'line 1: here')
end

-- Ctrl-C in the code of a step stops that code only.
function TestFormat:test_interrupt()
  local name = check.write [[require('kvlab.core').base.catch_interrupts(false)
    local env = require('kvlab.repl').environment(require 'kvlab')
    local code = 'io.popen("kill -INT $PPID"):close() while true do pcall(function() end) end'
    print(require('kvlab.lessons').execute(code, env, print))
    print(require('kvlab.lessons').execute('1 + 1', env, io.write))]]
  local _, out, err = check.sh('timeout 20 lua5.4 ' .. name)
  os.remove(name)
  lu.assertEquals({ out, err }, { 'false\tinterrupted\n2\ntrue\n', '' })
end

-- And in the steps that run before one at which a lesson starts.
function TestFormat:test_interrupt_before_the_first_step()
  local name = check.write [[require('kvlab.core').base.catch_interrupts(false)
    local lessons, lesson = require 'kvlab.lessons', require 'kvlab.lesson'
    table.insert(lessons.all(), { number = 99, name = 'own', title = 'Own', steps = {
      { text = 'One.', code = 'io.popen("kill -INT $PPID"):close() while true do end' },
      { text = 'Two.', code = 'ran = true' }, { text = 'Three.' } } })
    local env = require('kvlab.repl').environment(require 'kvlab')
    lesson.install(env)
    env.lesson('own', 3)
    print(env.ran, lesson.word('next', env))
    env.lesson('own', 1)
    print(lesson.word('next', env))]]
  local _, out = check.sh('XDG_STATE_HOME=/dev/null timeout 20 lua5.4 ' .. name .. ' 2>/dev/null')
  os.remove(name)
  lu.assertStrContains(out, "Lesson 99: Own\ninterrupted; lesson('own', 1) begins without the steps before.\nnil\tfalse\n")
  lu.assertStrContains(out, '[own 2/3')
end

TestCommand = {}

local KVLAB <const> = 'XDG_STATE_HOME=/dev/null lua5.4 scripts/kvlab '

function TestCommand:test_all_prints_a_lesson()
  local code, out, err = check.sh(KVLAB .. 'lesson cache --all')
  lu.assertEquals({ code, err }, { 0, '' })
  lu.assertStrContains(out, '3932160')
  lu.assertEquals(select(2, check.sh(KVLAB .. 'lesson 1 --all')), out)
end

function TestCommand:test_list()
  local code, out = check.sh(KVLAB .. 'lesson')
  lu.assertEquals(code, 0)
  for _, name in ipairs(lessons.names()) do lu.assertStrContains(out, name) end
end

function TestCommand:test_bad_usage()
  for _, case in ipairs { { 'lesson cahce --all', "did you mean 'cache'?" }, { 'lesson cache </dev/null', 'needs a terminal' },
    { 'lesson --all', 'needs the name' }, { 'lesson cache mla', 'expected one name, got 2' }, { 'lesson 99', 'no lesson 99' } } do
    local code, out, err = check.sh(KVLAB .. case[1])
    lu.assertEquals({ code, out }, { 2, '' }, case[1])
    lu.assertStrContains(err, case[2])
  end
end

TestTutorial = {}

function TestTutorial:test_is_up_to_date()
  local code, _, err = check.sh('lua5.4 scripts/gentutorial.lua --check')
  lu.assertEquals({ code, err }, { 0, '' })
end

function TestTutorial:test_refuses_other_options()
  local code, _, err = check.sh('lua5.4 scripts/gentutorial.lua --chek')
  lu.assertEquals(code, 2)
  lu.assertStrContains(err, "'--chek'")
end

check.main()
