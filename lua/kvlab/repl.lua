-- repl.lua: the prompt of `kvlab`, and `kvlab -e CODE`.
--
-- A line is tried as an expression, whose value is shown, then as a statement; an unfinished one goes on.
-- Globals of the session live in an environment of their own, which also finds the standard globals and the
-- fields of kv: `swa` is kv.swa. Ctrl-C stops what runs, or clears the line; Ctrl-D ends the session.
-- What the prompt says besides values is a comment of Lua, so that a copied session runs.
local core = require 'kvlab.core'
local complete = require 'kvlab.complete'
local hint = require 'kvlab.hint'
local history = require 'kvlab.history'
local pager = require 'kvlab.pager'
local preview = require 'kvlab.preview'
local progress = require 'kvlab.progress'
local reader = require 'kvlab.reader'
local sandbox = require 'kvlab.sandbox'
local terminal = require 'kvlab.terminal'
local base = core.base

local repl = {}

local CHUNK <const> = '=input'
local SLOW <const> = 1 -- seconds after which the time is told

-- --- the environment --------------------------------------------------------------------------------
local function guarded_coroutines()
  local own = setmetatable({}, { __index = coroutine })
  function own.create(f)
    local thread = coroutine.create(f)
    base.watch(thread)
    return thread
  end
  function own.wrap(f)
    local thread = own.create(f)
    local function pass(ok, ...)
      if not ok then error((...), 0) end
      return ...
    end
    return function(...) return pass(coroutine.resume(thread, ...)) end
  end
  return own
end

local print_over = progress.over(print)

-- lesson and answer are there from the first use of one of them, or when lessons were loaded before.
local function install_lessons(env) require('kvlab.lesson').install(env) end

-- environment(kv) -> the globals of a session.
function repl.environment(kv)
  local env
  env = setmetatable({}, { __index = function(_, name)
    if name == 'print' and progress.active() then return print_over end
    local value = _G[name] -- first: a field of kv never hides `table` or `type`
    if value == nil then value = rawget(kv, name) end
    if value == nil and (name == 'lesson' or name == 'answer') then
      install_lessons(env)
      value = rawget(env, name)
    end
    return value
  end })
  env._G, env.kv = env, kv
  env.pcall, env.xpcall = sandbox.guards() -- so that Ctrl-C gets out of loops that catch errors
  env.coroutine = guarded_coroutines()
  return env
end

-- --- evaluating -------------------------------------------------------------------------------------

-- compile(code, env) -> function and whether its value is to be shown (not with `;` at the end); or nil,
-- message, and whether more input could complete it.
local function compile(code, env)
  -- A `;` that ends a comment is none: something wrong after it would be no error.
  local silent = code:find(';%s*$') and not load('return ' .. code .. ' $', CHUNK, 't', env)
  local chunk, no_value = load('return ' .. code, CHUNK, 't', env)
  if chunk then return chunk, not silent end
  local message
  chunk, message = load(code, CHUNK, 't', env)
  if chunk then return chunk, true end
  return nil, message, message:find('<eof>$') or no_value:find('<eof>$')
end

-- An error as a person wants it: without the place, when it is the line that was typed, or the library, which raised it
-- on purpose.
local function readable(err)
  if type(err) ~= 'string' then
    local meta = debug.getmetatable(err)
    if meta and meta.__tostring then
      local ok, text = pcall(tostring, err)
      if ok then return text end
    end
    return ('error: a %s, not a message'):format(type(err))
  end
  local place, message = err:match('^[^\n]-(kvlab/[%w_/]+%.lua:%d+): (.*)$')
  if place then err = message:find('^attempt to ') and ('%s: %s'):format(place, message) or message end
  return (err:gsub('^input:1: ', ''):gsub('^input:(%d+): ', 'line %1: '))
end

local function say(text) io.stderr:write(terminal.fit(text), '\n') end

local Session = {}
Session.__index = Session

local function new_session(kv, on_terminal)
  return setmetatable({ kv = kv, env = repl.environment(kv), terminal = on_terminal, gone = {}, told = {} }, Session)
end

function Session:complain(err, code)
  progress.reset()
  io.stdout:flush()
  local message = readable(err)
  say(terminal.visible(message))
  if type(err) == 'string' then rawset(self.env, '_e', message) end
  local more = code and hint.after_error(message, code, self.env, self.kv, self.gone)
  if more then
    say('-- ' .. more)
  elseif self.terminal and message ~= 'interrupted' then
    local problem = require('kvlab.topics').problem(message)
    if problem and not self.told[problem.name] then say '-- help(_e) says more' end
    self.told[problem and problem.name or ''] = true
  end
end

-- Calls f so that Ctrl-C can stop it; false after an error, which has been reported.
function Session:guarded(code, f, ...)
  base.clear_interrupt()
  local ok, err = base.interruptible(f, ...)
  local interrupted = base.clear_interrupt()
  progress.reset()
  io.stdout:flush()
  if ok and not interrupted then return true, err end
  self:complain((interrupted or err == 'interrupted') and 'interrupted' or err, code)
  return false
end

-- Runs a compiled chunk and shows its values; false after an error, which has been reported.
function Session:evaluate(chunk, show, code)
  local began, missing = base.now(), nil
  local ok = self:guarded(code, function()
    local results = table.pack(chunk())
    if results.n > 0 then rawset(self.env, '_', results[1]) end
    if not show or results.n == 0 then return end
    for i = 1, results.n do results[i] = terminal.fit(preview.brief(results[i])) end
    progress.erase()
    io.stdout:write(table.concat(results, '\t'), '\n')
    missing = results.n == 1 and results[1] == 'nil'
  end)
  if not ok then return false end
  local near = hint.word(code, self.env) or missing and hint.after_nil(code, self.env, self.kv, self.gone)
  if near then say('-- ' .. near) end
  self:note_locals(code)
  local took = base.now() - began
  if self.terminal and took >= SLOW then io.stdout:write(('-- %.3g s\n'):format(took)) end
  return true
end

function Session:note_locals(code)
  for _, name in ipairs(hint.locals(code)) do
    if rawget(self.env, name) == nil then
      self.gone[name] = true
      if self.terminal then
        say(("-- '%s' is local to this line and gone with it; without `local` it stays"):format(name))
      end
    end
  end
end

-- Takes a line in: a word of a lesson, the beginning or the rest of an input, or an input; false when it failed.
function Session:take(line)
  local lesson = package.loaded['kvlab.lesson']
  if lesson and not self.pending then
    local ok, taken = self:guarded(nil, lesson.word, line, self.env)
    if not ok or taken then return ok end
  end
  if line:find('^%s*more%s*$') and not self.pending and rawget(self.env, 'more') == nil and pager.more() then
    return true
  end
  local code = self.pending and self.pending .. '\n' .. line or line
  self.pending = nil
  if not code:find('%S') then return true end
  local chunk, show, unfinished = compile(code, self.env)
  if chunk then return self:evaluate(chunk, show, code) end
  if unfinished then
    self.pending = code
    return true
  end
  self:complain(show, code)
  return false
end

-- What was pasted: one input when it can be, so that its locals last, else line by line.
function Session:paste(text)
  if not self.pending and compile(text, self.env) then return self:take(text) end
  local good = true
  for line in (text .. '\n'):gmatch('(.-)\n') do good = self:take(line) and good end
  return good
end

-- --- sessions ---------------------------------------------------------------------------------------

-- run(kv) -> exit code. On a terminal 0; for piped lines 1 when one of them failed.
function repl.run(kv)
  kv = kv or require 'kvlab'
  local session = new_session(kv, base.isatty(0))
  local remember, read = function() end, reader.plain(session.terminal)
  if session.terminal then
    base.catch_interrupts(false)
    progress.show_library(true)
    pager.at_prompt(true)
    local recent
    remember, recent = history.open()
    read = reader.editing(recent, function(line, word) return complete.names(line, word, session.env, kv) end) or read
    io.stdout:write(('kvlab %s. help() shows what there is, lesson() teaches, Ctrl-D ends.\n'):format(core.version))
  end
  local good = true
  if package.loaded['kvlab.lesson'] then good = session:guarded(nil, install_lessons, session.env) end
  while true do
    local line = read(session.pending and '    >> ' or 'kvlab> ')
    if line == nil then break end
    if line == false then
      session.pending = nil
    elseif line:find('\n') then
      for part in line:gmatch('[^\n]+') do remember(part) end
      good = session:paste(line) and good
    else
      remember(line)
      good = session:take(line) and good
    end
  end
  if session.pending then
    local _, message = compile(session.pending, session.env)
    session:complain(message)
    good = false
  end
  return (session.terminal or good) and 0 or 1
end

-- eval_string(code, kv) -> exit code: runs `code` as the prompt would.
function repl.eval_string(code, kv)
  local session = new_session(kv or require 'kvlab', false)
  local chunk, show = compile(code, session.env)
  if not chunk then
    session:complain(show)
    return 1
  end
  return session:evaluate(chunk, show, code) and 0 or 1
end

return repl
