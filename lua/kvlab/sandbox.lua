-- sandbox.lua: runs layout files from strangers.
--
-- Such a file is a Lua program, so it gets a world of its own: copies of the harmless functions, and the
-- facade of kvlab that the caller hands in. Nothing in that world reaches files, processes, bytecode, the
-- debugger or the random numbers of the host, and nothing it writes to is shared with the host:
--   * plain tables of the facade are copied for each file; its objects (tables and userdata with a metatable)
--     are passed as they are, so these must be immutable by themselves, as kvlab's values are;
--   * metatables of others are neither shown nor replaced, and raw access stops at their tables. The file's
--     own metatables may not have __gc: a finalizer runs later, where nothing can interrupt it;
--   * the heap may grow by a fixed amount only, and a file cannot catch the error that says so, nor Ctrl-C.
local base = require('kvlab.core').base
local opts = require 'kvlab.options'
local suggest = require 'kvlab.suggest'

local sandbox = {}

local MAX_FILE <const> = 16 << 20
local MAX_MEMORY <const> = 1 << 30
local OUT_OF_MEMORY <const> = 'not enough memory' -- what Lua says; with_memory_limit passes it on
local CHUNK <const> = '=(layout)'                  -- short, so that Lua never cuts the line number off

-- guards() -> pcall, xpcall that do not catch Ctrl-C or the end of memory: a loop around pcall must end too.
function sandbox.guards()
  local stopped -- a handler or a <close> variable may hide the first error, so it is kept
  local function check(ok, ...)
    if not ok then
      if base.interrupted() then stopped = 'interrupted'
      elseif (...) == OUT_OF_MEMORY then stopped = OUT_OF_MEMORY end
      if stopped then error(stopped, 0) end
    end
    return ok, ...
  end
  return function(f, ...) return check(pcall(f, ...)) end,
    function(f, handler, ...) return check(xpcall(f, handler, ...)) end
end

-- What a stranger says must not move the cursor of the terminal.
local function printable(text)
  return (text:gsub('[\0-\8\11-\31\127]', '?'))
end

local function print_to_stderr(...)
  local words = table.pack(...)
  for i = 1, words.n do words[i] = tostring(words[i]) end
  io.stderr:write(printable(table.concat(words, '\t')), '\n')
end

local function copy(t, copies)
  if type(t) ~= 'table' or debug.getmetatable(t) then return t end
  if not copies[t] then
    copies[t] = {}
    for key, value in next, t do copies[t][key] = copy(value, copies) end
  end
  return copies[t]
end

local function without(t, ...)
  local result = copy(t, {})
  for _, name in ipairs { ... } do result[name] = nil end
  return result
end

-- The functions that look through a metatable or past it, for one environment. own: the metatables that the
-- file has set, or may see.
local function table_access(own)
  local function check(t, what)
    local meta = type(t) == 'table' and debug.getmetatable(t)
    if meta and not own[meta] then
      error(what .. ': this table belongs to kvlab and can only be read by its fields', 3)
    end
    return t
  end

  return {
    rawget = function(t, key) return rawget(check(t, 'rawget'), key) end,
    rawset = function(t, key, value) return rawset(check(t, 'rawset'), key, value) end,
    rawlen = function(t) return rawlen(check(t, 'rawlen')) end,
    next = function(t, key) return next(check(t, 'next'), key) end,
    pairs = function(t)
      local meta = type(t) == 'table' and debug.getmetatable(t)
      if not (meta and rawget(meta, '__pairs')) then check(t, 'pairs') end
      return pairs(t)
    end,
    getmetatable = function(t)
      local meta = type(t) == 'table' and debug.getmetatable(t)
      if meta and own[meta] then return getmetatable(t) end
      return nil
    end,
    setmetatable = function(t, meta)
      check(t, 'setmetatable')
      check(meta, 'setmetatable')
      if type(meta) == 'table' then
        if rawget(meta, '__gc') ~= nil then error('setmetatable: a layout file may not use __gc', 2) end
        setmetatable(t, meta)
        own[meta] = true
        return t
      end
      return setmetatable(t, meta)
    end,
  }
end

-- environment(facade) -> the globals of a layout file: safe functions, and every field of the facade that
-- does not hide one of them. `require 'kvlab'` gives the facade.
function sandbox.environment(facade)
  local kv = copy(facade, {})
  local own = setmetatable({}, { __mode = 'k' })
  local env = table_access(own)
  for _, name in ipairs { 'assert', 'error', 'ipairs', 'rawequal', 'select', 'tonumber', 'tostring', 'type',
    '_VERSION' } do
    env[name] = _G[name]
  end
  env.pcall, env.xpcall = sandbox.guards()
  env.print = print_to_stderr
  env.string = without(string, 'dump')
  env.table = copy(table, {})
  env.math = without(math, 'random', 'randomseed') -- the host's numbers must not depend on a layout
  env.utf8 = copy(utf8, {})
  env._G = env
  env.kv = kv
  function env.require(name)
    if name == 'kvlab' then return kv end
    error(("require '%s': a layout file can only require 'kvlab'"):format(printable(tostring(name))), 2)
  end
  for name, value in pairs(kv) do
    if env[name] == nil then env[name] = value end
  end
  -- A misspelt kind must not vanish: kv.layout { swa, ful } would be a shorter layout. A global that resembles
  -- nothing of kvlab's, or that Lua has and a layout file has not, is nil as ever.
  local function strict(t, meta)
    own[meta] = true
    setmetatable(t, meta)
  end
  strict(kv, { __index = suggest.strict(kv, 'kvlab has no') })
  strict(env, { __index = function(_, name)
    local near = _G[name] == nil and suggest.phrase(name, kv) or ''
    if near ~= '' then error(("there is no '%s'%s"):format(name, near), 2) end
  end })
  return env
end

-- load(name, text, env) -> function, or nil and a message "layout file 'x.lua', line 3: ...".
function sandbox.load(name, text, env)
  local title = ("layout file '%s'"):format(printable(name))
  if text:sub(1, 1) == '\27' then return nil, title .. ' is compiled Lua; only source text is accepted' end
  text = text:gsub('^\xef\xbb\xbf', ''):gsub('^#[^\n]*', '')
  local chunk, message = load(text, CHUNK, 't', env)
  if chunk then return chunk end
  if message == OUT_OF_MEMORY then error(message, 0) end -- nothing is wrong with the text
  return nil, sandbox.describe(title, message)
end

-- describe(title, message, line) -> the message with the line where it belongs and no other trace of Lua.
function sandbox.describe(title, message, line)
  local at, rest = message:match('^%(layout%):(%d+): (.*)$')
  if at then line, message = at, rest end
  message = printable(message:gsub('%(layout%):(%d+):', 'line %1:'):gsub('%s*\n%s*', ' '))
  return ('%s%s: %s'):format(title, line and ', line ' .. line or '', message)
end

local function megabytes(bytes)
  if bytes >= 1 << 30 and bytes % (1 << 30) == 0 then return ('%d GiB'):format(bytes >> 30) end
  return ('%.4g MiB'):format(bytes / (1 << 20))
end

-- The line of the file that was running when an error was raised, also from inside kvlab.
local function locate(err)
  local text = type(err) == 'string' and err or ('the error is a %s, not a message'):format(type(err))
  local level = 2
  while true do
    local info = debug.getinfo(level, 'Sl')
    if not info then return { text = text } end
    if info.source == CHUNK and info.currentline > 0 then return { text = text, line = info.currentline } end
    level = level + 1
  end
end

-- run_text(name, text, facade, options) -> what the file returns. Raises one readable message, or
-- "interrupted" after Ctrl-C. options.memory: bytes the Lua heap may grow by. A plain table in the result may
-- have metamethods of the stranger's: look at nothing but values that kvlab made (a layout checks itself).
function sandbox.run_text(name, text, facade, options)
  opts.check(options, { 'memory' }, 'sandbox.run', 'option')
  local title = ("layout file '%s'"):format(printable(name))
  local memory = options and options.memory or math.min(MAX_MEMORY, base.memory_limit() // 2)
  local function body()
    local chunk, message = sandbox.load(name, text, sandbox.environment(facade))
    if not chunk then return false, message end
    return xpcall(chunk, locate)
  end
  local function finish(alive, ok, ...)
    if alive and ok then return ... end
    local problem = ok -- out of memory before the file began
    if alive then problem = ... end
    if base.interrupted() then error('interrupted', 0) end
    if problem == OUT_OF_MEMORY or type(problem) == 'table' and problem.text == OUT_OF_MEMORY then
      error(('%s needs more than %s of memory'):format(title, megabytes(memory)), 0)
    end
    if type(problem) == 'table' then problem = sandbox.describe(title, problem.text, problem.line) end
    error(problem, 0)
  end
  return finish(base.with_memory_limit(memory, body))
end

-- run(path, facade, options): the same for a file.
function sandbox.run(path, facade, options)
  local title = ("layout file '%s'"):format(printable(tostring(path)))
  local file, why = io.open(path, 'rb')
  if not file then error(('%s: %s'):format(title, why:gsub('^.*: ', '')), 0) end
  local text, problem = file:read(MAX_FILE + 1)
  file:close()
  if not text and problem then error(('%s: %s'):format(title, problem), 0) end
  text = text or ''
  if #text > MAX_FILE then error(('%s is larger than %d MiB'):format(title, MAX_FILE >> 20), 0) end
  return sandbox.run_text(path, text, facade, options)
end

return sandbox
