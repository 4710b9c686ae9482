-- hint.lua: what the prompt says besides: the name that was probably meant, that a local is gone, and how to go on
-- after a word that means nothing alone.
local complete = require 'kvlab.complete'
local suggest = require 'kvlab.suggest'

local hint = {}

-- Functions that are typed without their brackets.
local CALLED = { help = 'help() shows what there is', lesson = "lesson() lists them, lesson 'NAME' starts one",
  answer = 'answer(x) answers the question of a lesson' }

local function meant(name, names) return suggest.nearest(name, names) end

-- The methods and fields of every class, for an object that cannot be found without calling something.
local function of_classes(kv, methods)
  local names = {}
  for _, class in pairs(rawget(kv, 'classes') or {}) do
    table.move(complete.fields(class, kv, methods), 1, 1000, #names + 1, names)
  end
  return names
end

-- The names that may follow the object before `.name` or `:name` in the code.
local function siblings(code, name, env, kv, methods)
  local path = code:match('([%a_][%w_.]*)%s*[.:]%s*' .. name .. '%f[^%w_]')
  local value = path and complete.value(path, env, kv)
  if value ~= nil then return complete.fields(value, kv, methods), path end
  return of_classes(kv, methods)
end

-- after_error(message, code, env, kv, gone) -> a hint on what Lua says of a nil value, or of words without quotes, or
-- nil. gone: names that were local to an earlier line.
function hint.after_error(message, code, env, kv, gone)
  if message:find('^syntax error') then
    local called, word = code:match('^%s*(%l+)%s+([%w_.%-]+)%s*$')
    if not CALLED[called] then return nil end
    return ('did you mean ' .. (tonumber(word) and '%s(%s)?' or "%s '%s'?")):format(called, word)
  end
  local kind, name = message:match("a nil value %((%a+) '([%w_]+)'%)")
  if kind == 'global' then
    if gone[name] then
      return ("'%s' was local to the line that made it: write %s = ... without local"):format(name, name)
    end
    local near = meant(name, complete.globals(env, kv))
    return near and ("did you mean '%s'?"):format(near)
  elseif kind == 'method' or kind == 'field' then
    local names, path = siblings(code, name, env, kv, kind == 'method')
    local near = meant(name, names)
    if near == name then return nil end -- of another object
    return near and ("did you mean '%s%s%s'?"):format(path or '', kind == 'method' and ':' or path and '.' or '', near)
  end
end

-- after_nil(code, env, kv) -> a hint on an input that is one name or path, and nil: the name that was meant, or nil.
function hint.after_nil(code, env, kv, gone)
  local path, name = code:match('^%s*([%a_][%w_.]*)%.([%a_][%w_]*)%s*$')
  if not path then
    name = code:match('^%s*([%a_][%w_]*)%s*$')
    if not name or rawget(env, name) ~= nil then return nil end
    if gone[name] then return hint.after_error(("a nil value (global '%s')"):format(name), code, env, kv, gone) end
    local near = meant(name, complete.globals(env, kv))
    return near and near ~= name and ("there is no '%s'; did you mean '%s'?"):format(name, near) or nil
  end
  local value = complete.value(path, env, kv)
  if value == nil then return nil end
  local near = meant(name, complete.fields(value, kv))
  return near and near ~= name and ("there is no '%s'; did you mean '%s.%s'?"):format(name, path, near) or nil
end

-- word(code, env) -> a hint on an input that is a word of lessons where none runs, a function without its brackets, or
-- a word of other prompts; or nil.
function hint.word(code, env)
  local word = code:match('^%s*(%l+)%s*$')
  local lesson = word and require 'kvlab.lesson'
  if not word or rawget(env, word) ~= nil and not lesson.name_of(rawget(env, word)) then return nil end
  if CALLED[word] then return CALLED[word] end
  local says = lesson.is_word(word) and 'no lesson runs: ' .. lesson.resume(env) or nil
  if word ~= 'quit' and word ~= 'exit' then return says end
  return (says and says .. '; ' or '') .. 'Ctrl-D ends the session'
end

-- locals(code) -> the names of a `local` statement with which an input begins and after which none of them is used:
-- they are gone when it ends. An empty list otherwise.
function hint.locals(code)
  local name = code:match('^%s*local%s+function%s+([%a_][%w_]*)')
  if name then
    local rest = code:gsub('^%s*local%s+function%s+[%a_][%w_]*', 'return function', 1)
    return load(rest) and { name } or {}
  end
  local list, rest = code:match('^%s*local%s+([%a_][%w_%s,<>]*)(.*)$')
  if not list then return {} end
  local names = {}
  for word in list:gsub('<[^>]*>', ''):gmatch('[%a_][%w_]*') do names[#names + 1] = word end
  for _, word in ipairs(names) do
    -- Used in its own value (local n = n + 1), or after it: that is what a local is for.
    if rest:find('%f[%w_]' .. word .. '%f[^%w_]') then return {} end
  end
  return names
end

return hint
