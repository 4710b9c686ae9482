-- complete.lua: what TAB at the prompt offers. Nothing is called to find it, so nothing happens but looking.
--
--   names(line, word, env, kv) -> list, ending
--
-- line: what was typed, up to the cursor. word: the end of it that a name of the list takes the place of. ending: what
-- follows a name that is the only one, the quote that ends a string, or ''.
local base = require('kvlab.core').base
local layer = require 'kvlab.layer'

local complete = {}

local KEYWORDS <const> = { 'and', 'break', 'else', 'elseif', 'end', 'false', 'for', 'function', 'goto', 'if', 'local',
  'nil', 'not', 'repeat', 'return', 'then', 'true', 'until', 'while' }

-- Fields of objects that a function looks up, so that no table shows them.
local FIELDS = { Tensor = { 'shape', 'ndim', 'size', 'dtype' }, Layout = { 'name', 'widths', 'records', 'cut' },
  Record = { 'name', 'about', 'source', 'natural', 'fields', 'page' },
  Plan = { 'name', 'channels', 'bytes', 'data_bytes', 'scale_bytes', 'page_entries', 'page_bytes', 'page_padding' },
  Layer = { 'kind' } }
for _, field in ipairs(layer.FIELDS) do table.insert(FIELDS.Layer, field[1]) end

-- --- names and fields ---------------------------------------------------------------------------------

-- tables(value, kv) -> the tables in which a field of `value` is found without calling anything, of a class its public
-- methods; and the fields that are in none.
function complete.tables(value, kv)
  local classes = rawget(kv, 'classes') or {}
  local tables, fields, seen = {}, {}, {}
  while value ~= nil and not seen[value] do
    if type(value) == 'table' then tables[#tables + 1] = value end
    seen[value] = true
    local meta = debug.getmetatable(value)
    local name = meta and rawget(meta, '__name')
    name = type(name) == 'string' and name:match('^kvlab%.(.*)$')
    local class = name and classes[name]
    fields = name and FIELDS[name] or fields
    value = class or meta and rawget(meta, '__index')
    if type(value) ~= 'table' then break end
  end
  return tables, fields
end

local function field(value, name, kv)
  for _, t in ipairs((complete.tables(value, kv))) do
    if rawget(t, name) ~= nil then return rawget(t, name) end
  end
end

-- value(path, env, kv) -> what a path such as `kv.json` holds, as far as that can be seen without calling anything.
function complete.value(path, env, kv)
  local value
  for name in path:gmatch('[%w_]+') do
    if value == nil then
      value = rawget(env, name)
      if value == nil then value = rawget(_G, name) end
      if value == nil then value = field(kv, name, kv) end
    else
      value = field(value, name, kv)
    end
    if value == nil then return nil end
  end
  return value
end

-- A list of names without repetitions, and what adds to it.
local function collector()
  local found, names = {}, {}
  return names, function(name)
    if type(name) == 'string' and name:find('^[%a_][%w_]*$') and not found[name] then
      found[name] = true
      names[#names + 1] = name
    end
  end
end

-- fields(value, kv, methods) -> the names after value. or, with methods, value:
function complete.fields(value, kv, methods)
  local names, add = collector()
  local tables, more = complete.tables(value, kv)
  for _, t in ipairs(tables) do
    for name, item in next, t do
      local meta = type(name) == 'string' and name:find('^__')
      if not meta and (not methods or type(item) == 'function') then add(name) end
    end
  end
  for _, name in ipairs(methods and {} or more) do add(name) end
  return names
end

-- globals(env, kv) -> every name that stands for something at the prompt.
function complete.globals(env, kv)
  local names, add = collector()
  for _, t in ipairs { env, kv, _G } do
    for name in next, t do add(name) end
  end
  add 'lesson' add 'answer' -- made when they are first used
  return names
end

local function in_code(line, env, kv)
  local path, mark = line:match('([%a_][%w_.:]*)([.:])[%w_]*$')
  local joined = line:find('[^.]%.%.[%w_]*$') -- a .. b
  if path and not joined then
    local value = not path:find('[.:]$') and not path:find('[.:][.:]') and complete.value(path, env, kv)
    return value and complete.fields(value, kv, mark == ':') or {}
  end
  if not joined and line:find('[%.:%)%]\'"]%s*[.:][%w_]*$') then return {} end -- of a value that only a call would give
  local names = complete.globals(env, kv)
  return table.move(KEYWORDS, 1, #KEYWORDS, #names + 1, names)
end

-- --- inside a string ----------------------------------------------------------------------------------
local function modules(typed)
  local names = {}
  for name in next, package.loaded do names[#names + 1] = name end
  for name in next, package.preload do names[#names + 1] = name end
  local prefix = typed:match('^(.*%.)') or ''
  for template in package.path:gmatch('[^;]+') do
    local folder, tail = template:match('^(.-)%?(.*)$')
    if folder and tail == '.lua' then
      folder = folder .. prefix:gsub('%.', '/')
      for _, file in ipairs(base.list_dir(folder == '' and '.' or folder) or {}) do
        local name = file:match('^([%w_-]+)%.lua$')
        if not name and base.list_dir(folder .. file) then
          name = file:find('^[%w_-]+$') and file .. '.' -- a folder of modules
        end
        if name then names[#names + 1] = prefix .. name end
      end
    end
  end
  return names
end

-- Names of files; a folder ends with a slash.
local function files(typed)
  local folder = typed:match('^(.*/)') or ''
  local hidden = typed:find('^%.', #folder + 1)
  local names = {}
  for _, name in ipairs(base.list_dir(folder == '' and '.' or folder) or {}) do
    if hidden or not name:find('^%.') then
      local path = folder .. name
      names[#names + 1] = base.list_dir(path) and path .. '/' or path
    end
  end
  return names
end

-- The kinds of layer, after the rest of the text of a layout.
local function kinds(typed)
  local before, names = typed:match('^(.-)[%a]*$'), {}
  for i, name in ipairs(layer.kind_names) do names[i] = before .. name end
  return names
end

local function records() return require('kvlab.record').names() end
local function lesson_names()
  local ok, lessons = pcall(require, 'kvlab.lessons')
  return ok and type(lessons) == 'table' and lessons.names and lessons.names() or {}
end

-- What a string means after a function, and after a field of a table.
local AFTER_CALL = { require = modules, preset = function() return require('kvlab.presets').names end,
  record_named = records, layout = kinds, help = function() return require('kvlab.help').names() end,
  lesson = lesson_names }
local AFTER_FIELD = { number = function() return require('kvlab.number').names() end }
for _, name in ipairs { 'record', 'records', 'main', 'index', 'window', 'heads', 'latent', 'entry' } do
  AFTER_FIELD[name] = records
end

-- The quote that is open at the end of a line, what stands before it, and what is in the string so far.
local function open_string(line)
  local quote, from, at = nil, 0, 1
  while at <= #line do
    local c = line:sub(at, at)
    if quote and c == '\\' then
      at = at + 1
    elseif quote then
      if c == quote then quote = nil end
    elseif c == "'" or c == '"' then
      quote, from = c, at
    end
    at = at + 1
  end
  if quote then return quote, line:sub(1, from - 1), line:sub(from + 1) end
end

-- The candidates, and a pattern for those after which the string goes on.
local function in_string(before, typed)
  local call, key = before:match('([%a_][%w_]*)%s*%(?%s*$'), before:match('([%a_][%w_]*)%s*=%s*$')
  local source = call and AFTER_CALL[call] or key and AFTER_FIELD[key]
  if source then return source(typed), source == kinds and '' or '%.$' end
  return files(typed), '/$'
end

function complete.names(line, word, env, kv)
  local quote, before, typed = open_string(line)
  local candidates, goes_on
  if quote then candidates, goes_on = in_string(before, typed) else candidates = in_code(line, env, kv) end
  typed = typed or word
  local given = #typed - #word -- of a candidate, what stands before the word already
  local names, seen = {}, {}
  for _, name in ipairs(candidates) do
    if name:sub(1, #typed) == typed and not seen[name] then
      seen[name] = true
      names[#names + 1] = name:sub(given + 1)
    end
  end
  table.sort(names)
  local ends = quote and #names == 1 and not names[1]:find(goes_on)
  return names, ends and quote or ''
end

return complete
