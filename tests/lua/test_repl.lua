-- The prompt without a terminal: piped lines, -e CODE, what it says besides values. test_terminal.lua has the rest.
local lu = require 'luaunit'
local check = require 'check'
local kv = require 'kvlab'
local pty = require 'pty'

local quote, slurp, directory = pty.quote, pty.slurp, pty.directory

-- piped(lines, environment, prepare) -> exit code, stdout, stderr of a session that reads `lines` from a pipe; prepare:
-- Lua that runs before it.
local function piped(lines, environment, prepare)
  local input, launcher = check.write(lines), check.write((prepare or '') .. pty.LAUNCHER)
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
    { '6 * 7;\n_', '42\n' },
    { '1 + 1 -- said;', '2\n' },
    { '"a;b"', 'a;b\n' },
    { '"a\\27[2Jb\\255"', 'a\\27[2Jb\\255\n' }, -- nothing steers the terminal
    { 'print "said"\n_', 'said\nnil\n' },
    { 'show { 1, { 2 } }', '{1, {2}}\n' },
    { 'for i in kv.progress(1, 2, "x") do print(i) end', '1\n2\n' },
    { 'kv.preset "v4-flash"', 'swa*2 [csa hca]*20 csa\n' },
    { 'next { 7 }', '1\t7\n' }, -- Lua's own, while no lesson runs
    { 'lesson == nil or type(lesson) == "function"', 'true\n' },
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
    { 'kv.matmul(kv.zeros(2, 3), kv.zeros(2, 3))', 'matmul: inner sizes differ: {2, 3} x {2, 3}\n' }, -- no place inside kvlab
    { 'error "a\\27[2Jb"', 'a\\27[2Jb\n' },
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

-- The session in docs/prompt.md is what the prompt does.
function TestPiped:test_the_session_of_the_documentation()
  local session = slurp(check.root .. '/docs/prompt.md'):match('```text\n(.-)```')
  local typed, shown = {}, {}
  for line in session:gmatch('(.-)\n') do
    local input = line:match('^kvlab> (.*)$')
    table.insert(input and typed or shown, input or line)
  end
  local _, out = piped(table.concat(typed, '\n') .. '\n', 'exec 2>&1;')
  lu.assertEquals(out, table.concat(shown, '\n') .. '\n')
end

TestHints = {}

function TestHints:test_what_was_meant()
  local cases = {
    { 'laoyut()', "attempt to call a nil value (global 'laoyut')\n-- did you mean 'layout'?\n" },
    { 'laoyut.x', "attempt to index a nil value (global 'laoyut')\n-- did you mean 'layout'?\n" },
    { 'L = kv.layout "swa"\nL:onwer(1)', "attempt to call a nil value (method 'onwer')\n-- did you mean 'L:owner'?\n" },
    { 'kv.layout "swa":onwer(1)', "attempt to call a nil value (method 'onwer')\n-- did you mean ':owner'?\n" },
    { 'kv.json.encdoe {}', "attempt to call a nil value (field 'encdoe')\n-- did you mean 'kv.json.encode'?\n" },
    { 'string.uper "x"', "attempt to call a nil value (field 'uper')\n-- did you mean 'string.upper'?\n" },
    { 'kv.laoyut', "kvlab has no 'laoyut'; did you mean 'layout'?\n" },
    { 'local width = 4\nwidth + 1', "attempt to perform arithmetic on a nil value (global 'width')\n"
      .. "-- 'width' was local to the line that made it: write width = ... without local\n" },
    { 'lesson csa', "syntax error near 'csa'\n-- did you mean lesson 'csa'?\n" },
    { 'help v4.1-flash', "syntax error near 'v4'\n-- did you mean help 'v4.1-flash'?\n" },
    { ' help  top-k', "syntax error near 'top'\n-- did you mean help 'top-k'?\n" },
    { 'answer 42', "syntax error near '42'\n-- did you mean answer(42)?\n" },
    { 'count swa', "syntax error near 'swa'\n" },
    { 'qqqqqq()', "attempt to call a nil value (global 'qqqqqq')\n" },
  }
  for _, case in ipairs(cases) do
    local code, out, err = piped(case[1])
    lu.assertEquals({ code, out, err }, { 1, '', case[2] }, case[1])
  end
end

-- A nil that is only looked at is no error.
function TestHints:test_a_nil_that_is_shown()
  local cases = {
    { 'laoyut', "-- there is no 'laoyut'; did you mean 'layout'?\n" },
    { 'L = kv.layout "swa"\nL.widhts', "-- there is no 'widhts'; did you mean 'L.widths'?\n" },
    { 'kv.zeros(2).shpae', '' }, -- what is before the dot would have to be called
    { 't = kv.zeros(2)\nt.shpae', "-- there is no 'shpae'; did you mean 't.shape'?\n" },
    { 't = { value = 1 }\nt.valeu', "-- there is no 'valeu'; did you mean 't.value'?\n" },
    { 'layout = nil\nnil', '' },
    { 'local width = 4\nwidth', "-- 'width' was local to the line that made it: write width = ... without local\n" },
  }
  for _, case in ipairs(cases) do
    local code, out, err = piped(case[1])
    lu.assertEquals({ code, out, err }, { 0, 'nil\n', case[2] }, case[1])
  end
end

-- The words of lessons, where no lesson runs and nothing has their name.
function TestHints:test_words_of_lessons()
  local state = directory()
  local function run(lines) return { piped(lines, 'XDG_STATE_HOME=' .. quote(state)) } end
  local function ends_with(lines, out, err)
    local got = run(lines)
    lu.assertEquals({ got[1], got[2]:sub(-#out), got[3] }, { 0, out, err }, lines)
  end
  local none = "-- no lesson runs: lesson 'NAME' starts one, lesson() lists them"
  ends_with('back', 'nil\n', none .. '\n')
  ends_with('quit', 'nil\n', none .. '; Ctrl-D ends the session\n')
  ends_with('exit', 'nil\n', '-- Ctrl-D ends the session\n')
  ends_with('back = 3\nback', '3\n', '')
  ends_with('lesson = 3\nlesson', '3\n', '')
  lu.assertEquals(run('lesson')[3], "-- lesson() lists them, lesson 'NAME' starts one\n")
  lu.assertEquals(run('lesson()\nanswer')[3], '-- answer(x) answers the question of a lesson\n')
  lu.assertEquals(run('answer(3)')[2], 'No question is open. lesson() lists the lessons.\n')
  lu.assertEquals(run('help')[3], '-- help() shows what there is\n')
  ends_with('next == _G.next, next {}', 'true\tnil\n', '')
  ends_with("lesson 'cache'\nnext\nquit\nskip", 'nil\n', "-- no lesson runs: lesson 'cache' goes on at step 2\n")
  lu.assertStrContains(run("lesson 'cache'\nnext\nquit\nnext")[3], "lesson 'cache' goes on at step 2")
  lu.assertStrContains(run("lesson('cache', 8)\nnext\nnext")[3], "no lesson runs: lesson 'mla' starts the next one")
  os.execute('rm -r ' .. quote(state))
end

function TestHints:test_the_last_error_can_be_explained()
  local code, out, err = piped('kv.count(kv.layout "swa", { conetxt = 1 })\nhelp(_e)')
  lu.assertEquals(code, 1)
  lu.assertEquals(err, "count: unknown option 'conetxt'; did you mean 'context'?\n")
  lu.assertStrContains(out, "error: : unknown ... '...'\n")
end

TestLessons = {}

-- What the prompt asks of the module of lessons, whoever writes it.
local LESSONS = [[
local words = {}
package.loaded['kvlab.lesson'] = {
  install = function(env)
    assert(not rawget(env, 'answer'), 'installed twice')
    function env.lesson(name) words.running = name print('lesson ' .. name) end
    function env.answer(x) print('answered ' .. x) end
  end,
  word = function(line)
    local word = line:match('^%s*(%l+)%s*$')
    if word == 'broken' then error 'a broken word' end
    if not words.running or word ~= 'next' and word ~= 'quit' then return false end
    print('word ' .. word)
    if word == 'quit' then words.running = nil end
    return true
  end,
}
]]

function TestLessons:test_words_go_to_the_lesson_that_runs()
  local code, out, err = piped('next { 7 }\nlesson "csa"\nnext\nx = 4\nanswer(x)\nfor i = 1, 1 do\nnext\n{} end\nquit\ntype(next)\n',
    nil, LESSONS)
  lu.assertEquals({ code, out, err }, { 0, '1\t7\nlesson csa\nword next\nanswered 4\nword quit\nfunction\n', '' })
end

function TestLessons:test_a_failing_word_does_not_end_the_session()
  local code, out, err = piped('broken\n1 + 1\n', nil, LESSONS)
  lu.assertEquals({ code, out }, { 1, '2\n' })
  lu.assertStrContains(err, 'a broken word')
end

check.main()
