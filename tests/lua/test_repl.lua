-- The prompt: piped lines, completion, and real sessions on a pseudo-terminal that `script` (util-linux, in
-- every Debian) provides. A session is driven by waiting for what it prints, never by time alone.
local lu = require 'luaunit'
local base = require('kvlab.core').base
local check = require 'check'
local complete_names = require('kvlab.complete').names
local kv = require 'kvlab'
local preview = require 'kvlab.preview'
local repl = require 'kvlab.repl'

local function quote(text) return "'" .. text:gsub("'", [['\'']]) .. "'" end

local function slurp(path)
  local file <close> = io.open(path, 'rb')
  return file and file:read('a') or ''
end

local function directory()
  local name = os.tmpname()
  os.remove(name)
  os.execute('mkdir ' .. quote(name))
  return name
end

local LAUNCHER = [[os.exit(require('kvlab.repl').run(require 'kvlab'))]]

-- piped(lines, environment) -> exit code, stdout, stderr of a session that reads `lines` from a pipe.
local function piped(lines, environment)
  local input, launcher = check.write(lines), check.write(LAUNCHER)
  local code, out, err = check.sh(('%s lua5.4 %s < %s'):format(environment or '', launcher, input))
  os.remove(input) os.remove(launcher)
  return code, out, err
end

TestPiped = {}

function TestPiped:test_echo()
  local cases = {
    { '1 + 1', '2\n' },
    { 'x = 5', '' },
    { 'x = 5\nx', '5\n' },
    { 'x = 5\nx * 2;', '' },
    { '6 * 7\n_ + 1', '42\n43\n' },
    { '1, nil, "a"', '1\tnil\ta\n' },
    { 'for i = 1, 2 do\nprint(i)\nend', '1\n2\n' },
    { '[[a\nb]]', 'a\nb\n' },
    { '1 +\n2', '3\n' },
    { 'return 7', '7\n' },
    { 'json.encode {1}', '[1]\n' },
    { 'json = 3\njson, kv.json.encode {}', '3\t{}\n' },
    { 'nosuch', 'nil\n' },
    { '\n   \n-- a comment', '' },
    { 'kv == require "kvlab", _G.kv == kv', 'true\ttrue\n' },
    { 'a = 1\nrequire("_G").a', 'nil\n' }, -- assignments stay in the session
    { 'table.concat({1, 2}, ",")', '1,2\n' },
    { 'co = coroutine.wrap(function() coroutine.yield(1) return 2 end)\nco(), co()', '1\t2\n' },
  }
  for _, case in ipairs(cases) do
    local code, out, err = piped(case[1])
    lu.assertEquals({ code, out, err }, { 0, case[2], '' }, case[1])
  end
end

function TestPiped:test_errors_are_one_message()
  local cases = {
    { 'error "boo"', 'boo\n' },
    { 'local t = nil\nerror({})', 'error: a table, not a message\n' },
    { 'error(setmetatable({}, {__tostring = function() return "shown" end}))', 'shown\n' },
    { 'nosuch.field', "attempt to index a nil value (global 'nosuch')\n" },
    { 'x y', "syntax error near 'y'\n" },
    { 'do\nerror "boo" end', 'line 2: boo\n' },
    { 'f(', 'unexpected symbol near <eof>\n' },
  }
  for _, case in ipairs(cases) do
    local code, out, err = piped(case[1])
    lu.assertEquals({ code, out, err }, { 1, '', case[2] }, case[1])
  end
end

function TestPiped:test_an_error_does_not_end_the_session()
  local code, out = piped('error "boo"\n1 + 1\n')
  lu.assertEquals({ code, out }, { 1, '2\n' })
end

function TestPiped:test_no_prompt_and_no_history()
  local home = directory()
  local _, out = piped('1', ('XDG_STATE_HOME=%s'):format(quote(home)))
  lu.assertEquals(out, '1\n')
  lu.assertEquals(slurp(home .. '/kvlab/history'), '')
  os.execute('rm -r ' .. quote(home))
end

function TestPiped:test_eval_string()
  local launcher = check.write([[os.exit(require('kvlab.repl').eval_string(arg[1]))]])
  local function run(text) return check.sh(('lua5.4 %s %s'):format(launcher, quote(text))) end
  lu.assertEquals({ run('1 + 1') }, { 0, '2\n', '' })
  lu.assertEquals({ run('x = json.encode {2}; print(x)') }, { 0, '[2]\n', '' })
  lu.assertEquals({ run('error "boo"') }, { 1, '', 'boo\n' })
  lu.assertEquals({ run('x = = 1') }, { 1, '', "unexpected symbol near '='\n" })
  os.remove(launcher)
end

TestPreview = {}

function TestPreview:test_small_values()
  lu.assertEquals(preview {}, '{}')
  lu.assertEquals(preview { 1, 2.5, 'a', true }, "{1, 2.5, 'a', true}")
  lu.assertEquals(preview { 1, b = { 2 }, a = {}, ['c d'] = "'\n\0" },
    "{1, a = {}, b = {2}, ['c d'] = '\\'\\n\\0'}")
  lu.assertEquals(preview(setmetatable({}, { __tostring = function() return 'me' end })), 'me')
end

function TestPreview:test_bounded()
  local long, keys, wide = {}, {}, {}
  for i = 1, 100000 do long[i] = i end
  for i = 1, 100000 do keys['key' .. i] = i end
  for i = 1, 9 do wide[i] = ('x'):rep(1000) end
  for _, value in ipairs { long, keys, wide } do
    local text = preview(value)
    lu.assertTrue(#text < 1000)
    lu.assertTrue(select(2, text:gsub('\n', '\n')) < 24)
  end
  lu.assertStrContains(preview(long), '... (99980 more)')
  lu.assertTrue(#preview(('x'):rep(1e6)) < 30000)
end

TestComplete = {}

function TestComplete:test_fields_and_methods()
  local called = false
  local class = { plan = function() end, size = 3, other = function() end }
  local object = setmetatable({ own = 1 }, { __index = class })
  local lazy = setmetatable({}, { __index = function() called = true end })
  local env = repl.environment(kv)
  env.record, env.lazy, env.text = object, lazy, 'abc'
  -- As readline does: a word begins after a dot, a colon, an operator, a quote or a slash.
  local function complete(line)
    local names, ending = complete_names(line, line:match('[%w_.-]*$'):match(line:find '[\'"]' and '.*' or '[%w_]*$'),
      env, kv)
    return table.concat(names, ' ') .. ending
  end
  lu.assertEquals(complete('kv.json.e'), 'encode')
  lu.assertEquals(complete('json.en'), 'encode')
  lu.assertEquals(complete('2+json.en'), 'encode')
  lu.assertEquals(complete('js'), 'json')
  lu.assertEquals(complete('whi'), 'while')
  lu.assertEquals(complete('record.'), 'other own plan size')
  lu.assertEquals(complete('record:'), 'other plan')
  lu.assertEquals(complete('text:up'), 'upper')
  for _, line in ipairs { 'lazy.field.x', 'nosuch.x', 'record.size.x', 'f().x', 'record...o', '1 .. "a".x' } do
    lu.assertEquals(complete(line), '', line)
  end
  lu.assertEquals(complete('record..jso'), 'json')
  lu.assertEquals(complete("kv.preset 'v4.1-f"), "v4.1-flash'")
  lu.assertEquals(complete("require 'kvlab.lesso"), 'kvlab.lesson kvlab.lessons kvlab.lessons.')
  lu.assertEquals(complete("io.open('tests/lua/test_repl."), "test_repl.lua'")
  lu.assertEquals(complete("io.open('test"), 'tests/')
  lu.assertEquals(complete("lesson 'csa2"), "csa2'")
  -- What modules of the library call is not for the prompt.
  env.layer = kv.attention(kv.mha, { hidden_size = 4, num_attention_heads = 1, head_dim = 4 })
  lu.assertEquals(complete('layer:pro'), 'probabilities') -- not project
  lu.assertFalse(called)
end

-- --- a real terminal --------------------------------------------------------------------------------

local Terminal = {}
Terminal.__index = Terminal

-- start(options): a session on a pseudo-terminal. options.readline = false hides the readline library; options.launcher
-- is the program in place of LAUNCHER.
local function start(options)
  local self = setmetatable({ dir = directory(), seen = 0 }, Terminal)
  local launcher, fifo = self.dir .. '/launch.lua', self.dir .. '/keys'
  self.log = self.dir .. '/log'
  self.state = options.state or self.dir .. '/state'
  local file = assert(io.open(launcher, 'w'))
  file:write(options.readline == false and "require('kvlab.core').readline.open = function() return false end\n" or '',
    options.launcher or LAUNCHER)
  file:close()
  os.execute('mkfifo ' .. quote(fifo))
  -- The sanitizer's run-time belongs to lua5.4 alone, and readline keeps memory to its end.
  local preload = os.getenv('LD_PRELOAD') or ''
  -- A plain sh dies of the Ctrl-C that its child survives, unless it has a trap of its own.
  local command = ('trap : INT; %s lua5.4 %s; echo exit=$?'):format(
    preload ~= '' and 'LD_PRELOAD=' .. quote(preload) .. ' ASAN_OPTIONS=detect_leaks=0' or '',
    quote(launcher))
  self.process = io.popen(('unset LD_PRELOAD; TERM=dumb INPUTRC=/dev/null HOME=%s XDG_STATE_HOME=%s '
    .. 'timeout 60 script -qfc %s %s < %s > /dev/null 2>&1'):format(quote(self.dir), quote(self.state),
    quote(command), quote(self.log), quote(fifo)))
  self.keys = assert(io.open(fifo, 'w'))
  self.keys:setvbuf('no')
  return self
end

function Terminal:wait(text)
  for _ = 1, 400 do
    local log = slurp(self.log)
    if #log > 1000000 then error('the session prints without end: ' .. log:sub(-200), 2) end
    local from, to = log:find(text, self.seen + 1, true)
    if from then
      self.seen = to
      return
    end
    os.execute('unset LD_PRELOAD; sleep 0.03')
  end
  error(('waited for %q, the terminal shows:\n%s'):format(text, slurp(self.log):sub(self.seen + 1)), 2)
end

-- Types `keys`, then waits for each text in turn.
function Terminal:type(keys, ...)
  self.keys:write(keys)
  for _, text in ipairs { ... } do self:wait(text) end
end

function Terminal:finish()
  self.keys:close()
  self.process:close()
  local log = slurp(self.log)
  os.execute('rm -r ' .. quote(self.dir))
  return log
end

local has_readline = require('kvlab.core').readline.open(function() end)

TestTerminal = {}

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
  if readline ~= false then s:wait('nonsense nonsense') else os.execute('sleep 0.3') end
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

function TestTerminal:test_session_without_readline() session(false) end

function TestTerminal:test_session_with_readline()
  lu.skipIf(not has_readline, 'the readline library is not installed')
  session(true)
end

function TestTerminal:test_readline_completes_and_recalls()
  lu.skipIf(not has_readline, 'the readline library is not installed')
  local state = directory()
  os.execute('mkdir ' .. quote(state .. '/kvlab'))
  local file = io.open(state .. '/kvlab/history', 'w')
  file:write('"from" .. "before"\n')
  file:close()
  local s = start { state = state }
  s:wait('kvlab> ')
  s:type('\16\n', 'frombefore', 'kvlab> ') -- Ctrl-P: the last line
  s:type('kv.json.enc\t{7}\n', '[7]', 'kvlab> ')
  s:type('\27[A\n', '[7]', 'kvlab> ') -- the arrow key, several bytes
  s:type('\18before', 'before') -- Ctrl-R search, given up by Ctrl-C
  s:type('\3', 'kvlab> ')
  s:type('40 + 2\n', '42', 'kvlab> ')
  s:type('\4', 'exit=0')
  s:finish()
  os.execute('rm -r ' .. quote(state))
end

function TestTerminal:test_unwritable_history_is_noted_once()
  local s = start { state = '/proc/nowhere', readline = false }
  s:wait('the history is not kept') s:wait('kvlab> ')
  s:type('1 + 1\n', '2', 'kvlab> ')
  s:type('2 + 2\n', '4', 'kvlab> ')
  s:type('\4', 'exit=0')
  local _, notes = s:finish():gsub('history is not kept', '')
  lu.assertEquals(notes, 1)
end

function TestTerminal:test_tab()
  lu.skipIf(not has_readline, 'the readline library is not installed')
  local s = start {}
  s:wait('kvlab> ')
  s:type("kv.preset 'v4.1-f\t", "kv.preset 'v4.1-flash'") -- with the quote
  s:type('.cut\n', 'kvlab> ')
  s:type('mine = { one = "first", other = 2 }\n', 'kvlab> ')
  s:type('mine.o\t', 'one', 'other') -- several: they are listed
  s:type('n\t\n', 'first', 'kvlab> ')
  s:type("help 'sliding_win\t\3", 'kvlab> ') -- nothing fits, nothing is added
  s:type('"al" .. "ive"\n', 'alive', 'kvlab> ')
  s:type('\4', 'exit=0')
  s:finish()
end

-- Work inside the library stops too: a product of large matrices, counting, a model.
function TestTerminal:test_interrupts_the_library()
  local s = start {}
  s:wait('kvlab> ')
  s:type('big = kv.ones(700, 700);\n', 'kvlab> ')
  for _, work in ipairs { 'while true do big:matmul(big):free() end',
    "while true do kv.count(kv.preset 'v4.1-flash') end",
    'm = kv.model("mha", { hidden_size = 64, num_attention_heads = 2, head_dim = 32, vocab_size = 99 }) '
      .. 'q = m:sequence() while true do q:prefill { 1, 2, 3 } q:reset() end' } do
    s:type('print("go".."ing") ' .. work .. '\n', 'going')
    local began = base.now()
    s:type('\3', 'interrupted', 'kvlab> ')
    lu.assertTrue(base.now() - began < 3, work) -- a busy machine; it is 0.1 s
  end
  s:type('big.size\n', '490000', 'kvlab> ')
  s:type('\4', 'exit=0')
  s:finish()
end

function TestTerminal:test_a_lesson()
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
  s:type('print(6 * 7) while true do end\n', '42')
  s:type('\3', 'interrupted', 'kvlab> ') -- and the lesson goes on
  s:type('next\n', '[cache 2/8: ', 'kvlab> ')
  s:type('quit\n', "lesson 'cache' goes on at step 2.", 'kvlab> ')
  s:type('mine, K ~= nil\n', '500500\ttrue', 'kvlab> ') -- variables stay
  s:type("lesson 'cahce'\n", "did you mean 'cache'?", 'kvlab> ')
  s:type('\4', 'exit=0')
  lu.assertStrContains(slurp(s.state .. '/kvlab/lessons'), 'cache 2\n')
  s:finish()
end

function TestTerminal:test_a_lesson_from_the_shell()
  local s = start { launcher = [[require('kvlab.lesson').begin_with 'mla' ]] .. LAUNCHER }
  s:wait('Ctrl-D ends.') s:wait('Lesson 2: ') s:wait('[mla 1/') s:wait('kvlab> ')
  s:type('quit\n', "lesson 'mla' goes on at step 1.", 'kvlab> ')
  s:type('\4', 'exit=0')
  s:finish()
end

function TestTerminal:test_history_survives_a_kill()
  local state = directory()
  local s = start { state = state, launcher = [[io.stdout:write('pid=', io.open('/proc/self/stat'):read('n'), '.\n')
]] .. LAUNCHER }
  s:wait('pid=') s:wait('kvlab> ')
  local pid = slurp(s.log):match('pid=(%d+)%.')
  s:type('6 * 7\n', '42', 'kvlab> ')
  s:type('print("go".."ing") while true do end\n', 'going') -- killed while it runs
  os.execute('kill -9 ' .. pid)
  s:wait('exit=137')
  s:finish()
  lu.assertStrContains(slurp(state .. '/kvlab/history'), '6 * 7\nprint("go".."ing") while true do end\n')
  if has_readline then
    s = start { state = state }
    s:wait('kvlab> ')
    s:type('\16\16\n', '42', 'kvlab> ') -- twice Ctrl-P
    s:type('\4', 'exit=0')
    s:finish()
  end
  os.execute('rm -r ' .. quote(state))
end

-- What is said besides values: hints, what was meant, the time of what took long.
function TestTerminal:test_hints()
  local s = start {}
  s:wait('kvlab> ')
  s:type('local gone = 1\n', "'gone' is local to this line", 'kvlab> ')
  s:type('gone + 1\n', "'gone' was local to the line that made it", 'kvlab> ')
  s:type("laoyut 'swa'\n", "did you mean 'layout'?", 'kvlab> ')
  s:type('json.encod {}\n', "did you mean 'json.encode'?", 'kvlab> ')
  s:type('local t = os.time() while os.time() < t + 3 do end\n', ' s\r\n', 'kvlab> ')
  lu.assertStrMatches(slurp(s.log), '.*\n%-%- [23]%.?%d* s\r\n.*')
  s:type('\4', 'exit=0')
  s:finish()
end

check.main()
