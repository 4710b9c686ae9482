-- repl.lua: the prompt of `kvlab`, and `kvlab -e CODE`.
--
-- A line is tried as an expression, whose value is shown, then as a statement; an unfinished one goes on.
-- Globals of the session live in an environment of their own, which also finds the standard globals and the
-- fields of kv: `swa` is kv.swa. Ctrl-C stops what runs, or clears the line; Ctrl-D ends the session.
--
-- Where the readline library is there (core.readline), it edits the line one key at a time: between keys this
-- file waits itself, because a readline that waits would not give a line up on Ctrl-C.
local core = require 'kvlab.core'
local history = require 'kvlab.history'
local preview = require 'kvlab.preview'
local sandbox = require 'kvlab.sandbox'
local base = core.base

local repl = {}

local CHUNK <const> = '=input'

-- --- evaluating -------------------------------------------------------------------------------------

-- environment(kv) -> the globals of a session.
function repl.environment(kv)
  local env = setmetatable({}, { __index = function(_, name)
    local value = _G[name] -- first: a field of kv never hides `table` or `type`
    if value == nil then value = rawget(kv, name) end
    return value
  end })
  env._G, env.kv = env, kv
  env.pcall, env.xpcall = sandbox.guards() -- so that Ctrl-C gets out of loops that catch errors
  env.coroutine = setmetatable({}, { __index = coroutine })
  function env.coroutine.create(f)
    local thread = coroutine.create(f)
    base.watch(thread)
    return thread
  end
  function env.coroutine.wrap(f)
    local thread = env.coroutine.create(f)
    local function pass(ok, ...)
      if not ok then error((...), 0) end
      return ...
    end
    return function(...) return pass(coroutine.resume(thread, ...)) end
  end
  return env
end

-- compile(code, env) -> function and whether its value is to be shown (not with `;` at the end); or nil,
-- message, and whether more input could complete it.
local function compile(code, env)
  local silent = code:match('^(.-)%s*;%s*$')
  local chunk, no_value = load('return ' .. (silent or code), CHUNK, 't', env)
  if chunk then return chunk, not silent end
  local message
  chunk, message = load(code, CHUNK, 't', env)
  if chunk then return chunk, true end
  return nil, message, message:find('<eof>$') or no_value:find('<eof>$')
end

local function readable(err)
  if type(err) ~= 'string' then
    local meta = debug.getmetatable(err)
    if meta and meta.__tostring then
      local ok, text = pcall(tostring, err)
      if ok then return text end
    end
    return ('error: a %s, not a message'):format(type(err))
  end
  return (err:gsub('^input:1: ', ''):gsub('^input:(%d+): ', 'line %1: '))
end

local function complain(err)
  io.stdout:flush()
  io.stderr:write(readable(err), '\n')
end

-- Runs a compiled chunk and shows its values; false after an error, which has been reported.
local function evaluate(chunk, show, env)
  base.clear_interrupt()
  local ok, err = base.interruptible(function()
    local results = table.pack(chunk())
    if results.n > 0 then rawset(env, '_', results[1]) end
    if not show or results.n == 0 then return end
    for i = 1, results.n do results[i] = preview(results[i]) end
    io.stdout:write(table.concat(results, '\t'), '\n')
  end)
  local interrupted = base.clear_interrupt()
  io.stdout:flush()
  if ok and not interrupted then return true end
  complain((interrupted or err == 'interrupted') and 'interrupted' or err)
  return false
end

-- --- completion -------------------------------------------------------------------------------------

-- The tables in which a field of `value` is found without calling anything; of a class its public methods.
local function field_tables(value, kv)
  local classes = rawget(kv, 'classes') or {}
  local tables, seen = {}, {}
  while value ~= nil and not seen[value] do
    if type(value) == 'table' then tables[#tables + 1] = value end
    seen[value] = true
    local meta = debug.getmetatable(value)
    local name = meta and rawget(meta, '__name')
    local class = type(name) == 'string' and classes[name:match('^kvlab%.(.*)$')]
    value = class or meta and rawget(meta, '__index')
    if type(value) ~= 'table' then break end
  end
  return tables
end

local function field(value, name, kv)
  for _, t in ipairs(field_tables(value, kv)) do
    if rawget(t, name) ~= nil then return rawget(t, name) end
  end
end

-- complete(word, env, kv) -> the names that can stand for `word`, which ends at the cursor: "kv.js", "r:pl".
function repl.complete(word, env, kv)
  local before, path, mark, start = word:match('^(.-)([%a_][%w_.:]*)([.:])([%w_]*)$')
  if not path then
    before, start = word:match('^(.-)([%a_]?[%w_]*)$')
    path, mark = '', ''
  end
  local tables
  if path == '' then
    tables = { env, kv, _G }
  else
    local value
    for name in path:gmatch('[%w_]+') do
      if value == nil then
        value = rawget(env, name)
        if value == nil then value = rawget(_G, name) end
        if value == nil then value = field(kv, name, kv) end
      else
        value = field(value, name, kv)
      end
      if value == nil then return {} end
    end
    tables = field_tables(value, kv)
  end
  local found, names = {}, {}
  for _, t in ipairs(tables) do
    for name, value in next, t do
      local fits = type(name) == 'string' and name:find('^[%a_][%w_]*$') and name:sub(1, #start) == start
      if fits and not name:find('^__') and (mark ~= ':' or type(value) == 'function') and not found[name] then
        found[name] = true
        names[#names + 1] = before .. path .. mark .. name
      end
    end
  end
  table.sort(names)
  return names
end

-- --- reading lines ----------------------------------------------------------------------------------
-- A reader is a function(prompt) -> line, nil at the end of the input, or false when the line was given up.

local function plain_reader(terminal)
  return function(prompt)
    if terminal then
      local event
      repeat
        io.stdout:write(prompt)
        io.stdout:flush()
        event = base.wait_input()
      until event ~= 'resumed'
      if event == 'interrupted' then
        io.stdout:write('\n')
        return false
      end
    end
    local line = io.read('l')
    if terminal and base.clear_interrupt() then return false end
    if terminal and not line then io.stdout:write('\n') end
    return line
  end
end

local function editing_reader(recent)
  local editor = core.readline
  for _, line in ipairs(recent) do editor.add_history(line) end
  return function(prompt)
    io.stdout:flush()
    editor.begin(prompt)
    while true do
      local event, line = base.wait_input(), nil
      if event == 'ready' then
        line = editor.key()
      elseif event == 'resumed' then
        editor.renew()
      else
        editor.cancel()
        io.stdout:write('\n')
        return false
      end
      if line then
        if line:find('%S') then editor.add_history(line) end
        return line
      elseif line == false then
        io.stdout:write('\n')
        return nil
      end
    end
  end
end

-- --- sessions ---------------------------------------------------------------------------------------

-- run(kv) -> exit code. On a terminal 0; for piped lines 1 when one of them failed.
function repl.run(kv)
  kv = kv or require 'kvlab'
  local env = repl.environment(kv)
  local terminal = base.isatty(0)
  local remember, read = function() end, plain_reader(terminal)
  if terminal then
    base.catch_interrupts(false)
    local recent
    remember, recent = history.open()
    if core.readline.open(function(word) return repl.complete(word, env, kv) end) then
      read = editing_reader(recent)
    end
    io.stdout:write(('kvlab %s. help() shows what there is, Ctrl-D ends.\n'):format(core.version))
  end
  local good = true
  local pending -- the lines of an unfinished input
  while true do
    local line = read(pending and '    >> ' or 'kvlab> ')
    if line == nil then break end
    if line == false then
      pending = nil
    else
      remember(line)
      local code = pending and pending .. '\n' .. line or line
      pending = nil
      if code:find('%S') then
        local chunk, show, unfinished = compile(code, env)
        if chunk then
          good = evaluate(chunk, show, env) and good
        elseif unfinished then
          pending = code
        else
          complain(show)
          good = false
        end
      end
    end
  end
  if pending then
    local _, message = compile(pending, env)
    complain(message)
    good = false
  end
  return (terminal or good) and 0 or 1
end

-- eval_string(code, kv) -> exit code: runs `code` as the prompt would.
function repl.eval_string(code, kv)
  local env = repl.environment(kv or require 'kvlab')
  local chunk, show = compile(code, env)
  if not chunk then
    complain(show)
    return 1
  end
  return evaluate(chunk, show, env) and 0 or 1
end

return repl
