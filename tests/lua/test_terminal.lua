-- The prompt on a real terminal: typing, TAB, Ctrl-C, Ctrl-D, history, narrow and plain terminals, progress.
local lu = require 'luaunit'
local check = require 'check'
local core = require 'kvlab.core'
local kv = require 'kvlab'
local pty = require 'pty'
local progress = require 'kvlab.progress'

local quote, slurp, start = pty.quote, pty.slurp, pty.start

local function need_readline() lu.skipIf(not pty.has_readline, 'the readline library is not installed') end

-- --- sessions ---------------------------------------------------------------------------------------

TestSession = {}

local function session(readline)
  local s = start { readline = readline }
  s:wait('Ctrl-D ends.') s:wait('kvlab> ')
  s:type('1 + 41\n', '42', 'kvlab> ')
  -- during evaluation, in a plain loop, a loop that catches errors, a coroutine
  for _, loop in ipairs { 'print("go".."ing") while true do end',
    'print("go".."ing") while true do pcall(function() while true do end end) end',
    'print("go".."ing") coroutine.wrap(function() while true do end end)()' } do
    s:type(loop .. '\n', 'going')
    s:type('\3', 'interrupted', 'kvlab> ')
  end
  -- at the prompt: the line is cleared, and the next one is evaluated alone
  s:type('nonsense nonsense')
  if readline ~= false then s:wait('nonsense nonsense') else core.system.sleep(0.3) end
  s:type('\3', 'kvlab> ')
  s:type('\3', 'kvlab> ')
  s:type('2 + 3\n', '5', 'kvlab> ')
  -- in the middle of an unfinished input
  s:type('for i = 1, 2 do\n', '>> ')
  s:type('\3', 'kvlab> ')
  s:type('"al" .. "ive"\n', 'alive', 'kvlab> ')
  s:type('error "boo"\n', 'boo', 'kvlab> ')
  lu.assertStrContains(slurp(s.state .. '/kvlab/history'), '1 + 41\n') -- while the session still runs
  s:type('\4', 'exit=0')
  local history = slurp(s.state .. '/kvlab/history')
  lu.assertStrContains(history, '2 + 3\nfor i = 1, 2 do\n"al" .. "ive"\nerror "boo"\n')
  local log = s:finish()
  lu.assertNotStrContains(log, 'traceback')
  lu.assertNotStrContains(log, 'syntax error')
end

function TestSession:test_without_readline() session(false) end

function TestSession:test_with_readline()
  need_readline()
  session(true)
end

-- What the core computes is stopped as soon as a loop is.
function TestSession:test_ctrl_c_stops_kernels()
  local s = start { readline = false }
  s:wait('kvlab> ')
  s:type('a = kv.random { 3000, 3000, seed = 1 };\n', 'kvlab> ')
  s:type('m = kv.model("gqa*4", { hidden_size = 256, num_attention_heads = 8, num_key_value_heads = 2, head_dim = 32, '
    .. 'vocab_size = 9 });\n', 'kvlab> ')
  for _, code in ipairs { 'while true do a:matmul(a) end', 'a:matmul(a):matmul(a):matmul(a):matmul(a):matmul(a)',
    'while true do kv.count(kv.preset "v4.1-flash") end',
    'q = m:sequence() while true do q:prefill { 1, 2, 3 } q:reset() end', 'm:forward(kv.zeros(6000):to "int32")',
    'kv.measure(kv.preset "v4-flash", { context = 131072 })' } do
    s:type('print("go".."ing") ' .. code .. '\n', 'going')
    core.system.sleep(0.3)
    local took = s:type('\3', 'interrupted', 'kvlab> ')
    lu.assertTrue(took < 1.5, ('%s took %.2f s'):format(code, took)) -- 0.2 s on a machine that does nothing else
  end
  s:type('"al" .. "ive"\n', 'alive', 'kvlab> ')
  s:type('\4', 'exit=0')
  s:finish()
end

function TestSession:test_what_is_said_besides()
  local s = start { readline = false }
  s:wait('kvlab> ')
  s:type('local x = 3\n', "-- 'x' is local to this line and gone with it; without `local` it stays", 'kvlab> ')
  s:type('x\n', "-- 'x' was local to the line that made it", 'kvlab> ')
  s:type('local y = 3 print(y)\n', '\n3', 'kvlab> ')
  lu.assertNotStrContains(s.last, 'gone')
  s:type('nosuch.x\n', 'attempt to index a nil value', '-- help(_e) says more', 'kvlab> ')
  s:type('help(_e)\n', 'What stands before the dot', 'kvlab> ')
  s:type('nosuch.x\n', 'attempt to index a nil value', 'kvlab> ') -- once is enough
  lu.assertNotStrContains(s.last, 'says more')
  s:type('x = require("kvlab.core").system.sleep(1.1)\n', '-- 1.1', ' s', 'kvlab> ')
  s:type('\4', 'exit=0')
  lu.assertNotStrContains(s:finish(), 'traceback')
end

-- --- lessons ----------------------------------------------------------------------------------------

TestLessons = {}

function TestLessons:test_a_lesson()
  local s = start {}
  s:wait('kvlab> ')
  s:type("lesson 'cache'\n", 'Lesson 1: ', '[cache 1/8: next; back, again, quit]', 'kvlab> ')
  s:type('next\n', 'Question: ', '[cache 2/8: answer(...), or skip', 'kvlab> ')
  s:type('next({ "a" })\n', '1\ta', 'kvlab> ') -- Lua's own
  s:type('next\n', 'The question is open', 'kvlab> ')
  s:type('answer(3)\n', 'Not 3.', 'kvlab> ')
  s:type('answer "many"\n', "'many' is no answer here", 'kvlab> ')
  s:type('answer(nosuch)\n', 'nil is no answer here', 'kvlab> ')
  s:type('mine = 1000 * 1001 // 2\n', 'kvlab> ')
  s:type('answer(mine)\n', 'Right.', '[cache 2/8: next; back, again, quit]', 'kvlab> ')
  s:type('back\n', '[cache 1/8: ', 'kvlab> ')
  s:type('print("go" .. "ing") while true do end\n', 'going')
  s:type('\3', 'interrupted', 'kvlab> ') -- and the lesson goes on
  s:type('next\n', '[cache 2/8: ', 'kvlab> ')
  s:type('quit\n', "lesson 'cache' goes on at step 2.", 'kvlab> ')
  s:type('mine, K ~= nil\n', '500500\ttrue', 'kvlab> ') -- variables stay
  s:type("lesson 'cahce'\n", "did you mean 'cache'?", 'kvlab> ')
  s:type('\4', 'exit=0')
  lu.assertStrContains(slurp(s.state .. '/kvlab/lessons'), 'cache 2\n')
  s:finish()
end

function TestLessons:test_a_lesson_from_the_shell()
  local s = start { prepare = "require('kvlab.lesson').begin_with 'mla'" }
  s:wait('Ctrl-D ends.') s:wait('Lesson 2: ') s:wait('[mla 1/') s:wait('kvlab> ')
  s:type('quit\n', "lesson 'mla' goes on at step 1.", 'kvlab> ')
  s:type('\4', 'exit=0')
  s:finish()
end

-- --- editing ----------------------------------------------------------------------------------------

TestEditing = {}

function TestEditing:test_completes_and_recalls()
  need_readline()
  local state = pty.directory()
  os.execute('mkdir ' .. quote(state .. '/kvlab'))
  local file <close> = io.open(state .. '/kvlab/history', 'w')
  file:write('"from" .. "before"\n', 'rubbish\27[2J\n') -- rubbish does not come back
  file:close()
  local s = start { state = state }
  s:wait('kvlab> ')
  s:type('\16\n', 'frombefore', 'kvlab> ') -- Ctrl-P: the last line
  s:type('kv.json.enc\t{7}\n', '[7]', 'kvlab> ')
  s:type('\27[A\n', '[7]', 'kvlab> ') -- the arrow key, several bytes
  s:type('\18before', 'before') -- Ctrl-R search, given up by Ctrl-C
  s:type('\3', 'kvlab> ')
  s:type('40 + 2\n', '42', 'kvlab> ')
  s:type("kv.preset 'v4.1\t.name\n", 'DeepSeek-V4.1-Flash', 'kvlab> ') -- the quote is closed
  s:type("kv.preset('v4\t", 'v4-pro', 'v4.1-flash', 'kvlab> ') -- several: shown at the first TAB
  s:type('\3', 'kvlab> ')
  s:type("io.open '/pro\tself/mountin\t ~= nil\n", 'true', 'kvlab> ') -- files
  s:type('kv.\t', 'layout', 'kvlab> ') -- more than a hundred, without a question
  s:type('\21"al" .. "ive"\n', 'alive', 'kvlab> ')
  s:type('\4', 'exit=0')
  s:finish()
  os.execute('rm -r ' .. quote(state))
end

-- A paste is one input when it is a program, so that its locals last; else it is taken line by line.
function TestEditing:test_paste()
  need_readline()
  local s = start { term = 'xterm' }
  s:wait('kvlab> ')
  s:type('\27[200~local a = 5\nprint("sum", a + 37)\27[201~\n', 'sum\t42', 'kvlab> ')
  s:type('\27[200~6 * 7\n_ + 1\27[201~\n', '42', '43', 'kvlab> ')
  s:type('\4', 'exit=0')
  lu.assertStrContains(slurp(s.state .. '/kvlab/history'), 'local a = 5\nprint("sum", a + 37)\n6 * 7\n_ + 1\n')
  s:finish()
end

-- --- history ----------------------------------------------------------------------------------------

TestHistory = {}

function TestHistory:test_survives_a_kill()
  local state = pty.directory()
  local s = start { state = state, readline = false }
  s:wait('kvlab> ')
  s:type('before = "the end"\n', 'kvlab> ')
  s:type('before\n', 'the end', 'kvlab> ')
  s:type('before\n', 'the end', 'kvlab> ') -- the same line is kept once
  s:type('os.execute("kill -9 " .. io.open("/proc/self/stat"):read("n"))\n', 'exit=137')
  s:finish()
  lu.assertEquals(slurp(state .. '/kvlab/history'),
    'before = "the end"\nbefore\nos.execute("kill -9 " .. io.open("/proc/self/stat"):read("n"))\n')
  os.execute('rm -r ' .. quote(state))
end

function TestHistory:test_sessions_side_by_side()
  local state = pty.directory()
  local a, b = start { state = state, readline = false }, start { state = state, readline = false }
  a:wait('kvlab> ') b:wait('kvlab> ')
  a:type('"a1"\n', 'kvlab> ') b:type('"b1"\n', 'kvlab> ') a:type('"a2"\n', 'kvlab> ')
  lu.assertEquals(slurp(state .. '/kvlab/history'), '"a1"\n"b1"\n"a2"\n')
  a:type('\4', 'exit=0') b:type('\4', 'exit=0')
  a:finish() b:finish()
  os.execute('rm -r ' .. quote(state))
end

-- What was typed is bounded on the disk and in memory, and an old part comes back with the new one.
function TestHistory:test_is_bounded()
  local state = pty.directory()
  os.execute('mkdir ' .. quote(state .. '/kvlab'))
  local path = state .. '/kvlab/history'
  local file <close> = io.open(path, 'w')
  for i = 1, 20000 do file:write(('value_%d = %d\n'):format(i, i)) end
  file:write(('x'):rep(100000), '\n')
  file:close()
  local code, out = check.sh(([[XDG_STATE_HOME=%s lua5.4 -e '
    local history = require "kvlab.history"
    local remember, recent = history.open()
    print(#recent, recent[#recent], recent[1])
    remember "new" remember "new" remember "" remember(("y"):rep(5000)) remember "newer"
    local _, again = history.open()
    print(#again, again[#again - 1], again[#again])']]):format(quote(state)))
  lu.assertEquals(code, 0)
  lu.assertEquals(out, '999\tvalue_20000 = 20000\tvalue_19002 = 19002\n999\tnew\tnewer\n')
  lu.assertEquals(slurp(path), 'new\nnewer\n')
  lu.assertEquals(#slurp(path .. '.old') > 100000, true)
  os.execute('rm -r ' .. quote(state))
end

-- Where it cannot be written it is said once, and the session goes on.
function TestHistory:test_unwritable()
  local full = pty.directory()
  os.execute('mkdir ' .. quote(full .. '/kvlab') .. ' && ln -s /dev/full ' .. quote(full .. '/kvlab/history'))
  for _, state in ipairs { '/proc/nowhere', full } do
    local s = start { state = state, readline = false }
    s:wait('kvlab> ')
    s:type('1 + 1\n', '2', 'kvlab> ')
    s:type('2 + 2\n', '4', 'kvlab> ')
    s:type('\4', 'exit=0')
    local _, notes = s:finish():gsub('the history is not kept: ', '')
    lu.assertEquals(notes, 1)
  end
  os.execute('rm -r ' .. quote(full))
end

-- --- terminals --------------------------------------------------------------------------------------

TestTerminals = {}

function TestTerminals:test_narrow()
  local s = start { columns = 30, readline = false }
  s:wait('kvlab> ')
  s:type('help(kv.layout)\n', 'Makes a layout', 'kv.layout {', 'kvlab> ')
  s:type('{ "one thing", "another", "a third", "a fourth" }\n', "'a fourth'", 'kvlab> ')
  s:type('\4', 'exit=0')
  local log = s:finish()
  for line in log:match('help%(kv.layout%)\r?\n(.-)\r\n\r\n  #kv'):gmatch('[^\r\n]+') do
    lu.assertTrue(#line <= 30, line)
  end
  lu.assertStrContains(log, "{\r\n  'one thing', 'another',\r\n")
  lu.assertNotStrContains(log, '\27')
end

-- A page of help that is longer than the screen waits for `more`; the map is one screen.
function TestTerminals:test_low()
  local s = start { columns = 80, rows = 24, readline = false }
  s:wait('kvlab> ')
  s:type('help()\n', 'kvlab 0', 'ends', 'kvlab> ')
  lu.assertNotStrContains(s.last, 'shows them')
  s:type('help(kv.trace)\n', 'kv.trace(what, options) -> Trace', ' more lines; `more` shows them', 'kvlab> ')
  s:type('1 + 1\n', '2', 'kvlab> ')
  s:type('more\n', '--> true', 'kvlab> ')
  s:type('more\n', 'nil', 'kvlab> ')
  s:type('help "glossary"\n', ' more lines; `more` shows them', 'kvlab> ')
  s:type('more = 7\n', 'kvlab> ') -- a name of one's own
  s:type('more\n', '7', 'kvlab> ')
  s:type('\4', 'exit=0')
  local log = s:finish()
  local page = log:match('kv%.trace%(what, options%) %-> Trace.-%-%- %d+ more lines')
  lu.assertEquals(select(2, page:gsub('\n', '')), 22) -- and the prompt
end

-- An ASCII terminal gets ASCII; no terminal gets colours.
function TestTerminals:test_ascii_and_no_colour()
  local s = start { readline = false, env = 'LC_ALL=C NO_COLOR=1' }
  s:wait('kvlab> ')
  s:type('"5 \\u{d7} 3 \\u{2014}"\n', '5 x 3 -', 'kvlab> ')
  s:type('\4', 'exit=0')
  lu.assertNotStrContains(s:finish(), '\27')
  local t = start { readline = false, env = 'LC_ALL=C.UTF-8' }
  t:wait('kvlab> ')
  t:type('"5 \\u{d7} 3"\n', '5 \u{d7} 3', 'kvlab> ')
  t:type('\4', 'exit=0')
  t:finish()
end

-- --- progress ---------------------------------------------------------------------------------------

TestProgress = {}

function TestProgress:test_text()
  local function text(done, columns) return progress.text('training', done, 300, 30, columns or 79) end
  lu.assertEquals(text(0), 'training    0 %  [--------------------]  0/300  30 s')
  lu.assertEquals(text(150), 'training   50 %  [##########----------]  150/300  30 s, about 30 s left')
  lu.assertEquals(text(1), 'training    0 %  [--------------------]  1/300  30 s, about 2 h 29 min left')
  lu.assertEquals(text(100.5, 40), 'training   33 %  [######--------------]')
  lu.assertEquals(text(150, 12), 'training')
  lu.assertEquals(text(150, 7), 'tra ...')
  lu.assertEquals(progress.text('', 2, 1, 0.1, 30), '100 %  [####################]')
  lu.assertEquals(progress.text('', 0, 0, 0, 6), '100 %')
end

function TestProgress:test_a_loop_is_a_loop()
  local function sum(...)
    local total = 0
    for i in kv.progress(...) do
      if i > 100 then break end
      total = total + i
    end
    return total
  end
  lu.assertEquals({ sum(1, 10), sum(5, 5, 'x'), sum(3, 2), sum(-1, 1.0), sum(99, 1000) }, { 55, 5, 0, 0, 199 })
  check.fails({ "progress: first is '1'", 'expected a whole number' }, kv.progress, '1', 3)
  check.fails('progress: last is nil', kv.progress, 1)
  check.fails('progress: last is 1.5', kv.progress, 1, 1.5)
  check.fails('progress: the label is a table, expected text', kv.progress, 1, 2, {})
end

-- It is drawn, by one loop of several, goes before what is printed, and is erased at the end, also by an error.
function TestProgress:test_on_a_terminal()
  local s = start { readline = false, term = 'xterm', columns = 60 }
  s:wait('kvlab> ')
  s:type('sleep = require("kvlab.core").system.sleep\n', 'kvlab> ')
  s:type('for i in kv.progress(1, 8, "outer") do for _ in kv.progress(1, 3, "inner") do sleep(0.04) end '
    .. 'if i == 7 then print("sa".."id") end end print("do".."ne")\n', '\router ', 'said', 'done', 'kvlab> ')
  s:type('for i in kv.progress(1, 8, "fails") do sleep(0.1) if i == 7 then error("bo".."o") end end\n', '\rfails', 'boo',
    'kvlab> ')
  s:type('\4', 'exit=0')
  local log = s:finish()
  lu.assertNotStrContains(log, '\rinner')
  for _, text in ipairs { 'said', 'done', 'boo' } do
    lu.assertStrContains(log, (' '):rep(20) .. '\r' .. text) -- the bar was drawn over with blanks
  end
  for line in log:gmatch('\r(outer[^\r]*)') do lu.assertTrue(#line <= 59, line) end
end

-- A program that prints while its own loop goes on leaves nothing of the bar.
function TestProgress:test_of_a_program()
  local name = check.write [[local sleep = require('kvlab.core').system.sleep
    for i in require('kvlab').progress(1, 12, 'a label that is longer than what is printed') do
      sleep(0.1)
      if i == 8 then print 'said' elseif i == 10 then io.write 'written\n' end
    end]]
  local _, out = check.sh(('env -u LD_PRELOAD TERM=xterm timeout 30 script -qfec %s /dev/null < /dev/null'):format(
    quote('lua5.4 scripts/kvlab run ' .. quote(name))))
  os.remove(name)
  lu.assertStrContains(out, '\ra label that is longer')
  for _, text in ipairs { 'said', 'written' } do lu.assertStrContains(out, (' '):rep(40) .. '\r' .. text .. '\r\n') end
end

function TestProgress:test_not_on_a_dumb_terminal()
  local s = start { readline = false }
  s:wait('kvlab> ')
  s:type('for i in kv.progress(1, 8, "outer") do require("kvlab.core").system.sleep(0.1) end print("do".."ne")\n', 'done',
    'kvlab> ')
  s:type('\4', 'exit=0')
  lu.assertNotStrContains(s:finish(), '\router')
end

-- The library's own work is shown at the prompt, and nowhere else.
function TestProgress:test_of_the_library()
  local s = start { readline = false, term = 'xterm' }
  s:wait('kvlab> ')
  s:type('kv.measure(kv.preset "v4-flash", { context = 1 << 17 }).equal\n', '\rfilling the caches ')
  s:type('\3', (' '):rep(20) .. '\rinterrupted', 'kvlab> ')
  s:type('\4', 'exit=0')
  s:finish()
  local none <close> = progress.start('work', 3)
  none:to(1)
  lu.assertFalse(progress.active())
end

check.main()
