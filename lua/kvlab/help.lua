-- help.lua: what kv.help prints, from the declarations in lua/kvlab/meta/*.lua.
--
-- A meta file is never executed, only read line by line. `---@within PLACE` says where its functions are: a
-- module table (kv.json) or a class (Record, for methods). Each function is an entry: a block of `---` lines
-- (text, then "Example:" lines `expression  --> value`), `---@param`, `---@return` and the empty declaration;
-- a value is declared by `---@type TYPE` and `kv.name = ...`.
-- Text before `---@within` describes the place. The same entries make docs/reference.md (scripts/gendoc.lua),
-- and tests/lua/test_docs.lua compares them with what is really there and runs the examples.
local core = require 'kvlab.core'
local suggest = require 'kvlab.suggest'

local help = {}

local WIDTH <const> = 79

-- --- reading the meta files -------------------------------------------------------------------------

-- The first word of `text` that is not inside brackets, and the rest: "table<a, b> the b of a".
local function split_type(text)
  local depth = 0
  for i = 1, #text do
    local char = text:sub(i, i)
    if char:find('[(<{%[]') then depth = depth + 1
    elseif char:find('[)>}%]]') then depth = depth - 1
    elseif char == ' ' and depth == 0 then return text:sub(1, i - 1), text:sub(i):match('^%s*(.*)$') end
  end
  return text, ''
end

local function new_block() return { doc = {}, params = {}, returns = {}, examples = {} } end

local function add_doc(block, line)
  if line:find('^Examples?:%s*$') then
    block.in_example = true
  elseif block.in_example and line:find('^%s+%S') then
    local code, expected = line:match('^%s*(.-)%s*%-%->%s*(.-)%s*$')
    block.examples[#block.examples + 1] = { code = code or line:match('^%s*(.-)%s*$'), expected = expected }
  else
    block.in_example = false
    block.doc[#block.doc + 1] = line
  end
end

local function trim(lines)
  while lines[1] == '' do table.remove(lines, 1) end
  while lines[#lines] == '' do table.remove(lines) end
  return lines
end

-- parse(text, file) -> entries in the order of the file, {place = description lines}. An entry has name (in
-- full: kv.json.encode, Record:plan), short, place, parameters (declared names), doc (lines), params and
-- returns (documented), examples ({code, expected}), file and line; type for a value.
function help.parse(text, file)
  local entries, places, place, block, number = {}, {}, nil, new_block(), 0
  for line in (text .. '\n'):gmatch('(.-)\r?\n') do
    number = number + 1
    local tag, rest = line:match('^%-%-%-@(%w+)%s*(.-)%s*$')
    local doc = line:match('^%-%-%- ?(.-)%s*$')
    local sign, short, parameters = line:match('^function%s+[%w_.]-([.:])([%w_]+)%s*%((.-)%)%s*end%s*$')
    if block.type and not short then
      sign, short, parameters = '.', line:match('^[%w_.]-%.([%w_]+)%s*=%s*%.%.%.%s*$'), ''
    end
    if tag == 'within' then
      place = rest
      if #block.doc > 0 then places[place] = trim(block.doc) end
      places[place] = places[place] or {}
      block = new_block()
    elseif tag == 'param' then
      local name, tail = rest:match('^(%S+)%s*(.*)$')
      local kind, about = split_type(tail or '')
      block.params[#block.params + 1] = { name = (name or ''):gsub('%?$', ''), type = kind, text = about,
        optional = name ~= nil and name:sub(-1) == '?' }
    elseif tag == 'return' then
      local kind, about = split_type(rest)
      block.returns[#block.returns + 1] = { type = kind, text = about }
    elseif tag == 'type' then
      block.type = rest
    elseif not tag and doc then
      add_doc(block, doc)
    elseif short then
      if not place then error(('%s:%d: a declaration before ---@within'):format(file, number), 0) end
      block.name, block.short, block.place = place .. sign .. short, short, place
      block.parameters, block.file, block.line = {}, file, number
      for name in parameters:gmatch('[^%s,]+') do block.parameters[#block.parameters + 1] = name end
      trim(block.doc)
      entries[#entries + 1], block = block, new_block()
    elseif not tag then
      block = new_block()
    end
  end
  return entries, places
end

-- meta_dir() -> where the declarations are: beside this file, in the build tree as well as installed.
function help.meta_dir()
  local source = debug.getinfo(1, 'S').source:match('^@(.*)help%.lua$')
  source = source or assert(package.searchpath('kvlab.help', package.path)):match('^(.*)help%.lua$')
  return source .. 'meta'
end

local index -- {entries, places, by_name}, read once

-- index() -> every entry and place of the installed parts, sorted by file name.
function help.index()
  if index then return index end
  local files, all = {}, { entries = {}, places = {}, by_name = {} }
  local dir = help.meta_dir()
  for _, name in ipairs(core.base.list_dir(dir) or {}) do
    if name:find('^[%w_]+%.lua$') then files[#files + 1] = name end
  end
  table.sort(files)
  for _, name in ipairs(files) do
    local file <close> = assert(io.open(dir .. '/' .. name, 'rb'))
    local entries, places = help.parse(file:read('a'), 'meta/' .. name)
    for place, doc in pairs(places) do
      if not all.places[place] or #doc > 0 then all.places[place] = doc end
    end
    for _, entry in ipairs(entries) do
      if all.by_name[entry.name] then
        error(('%s:%d: %s is also in %s'):format(entry.file, entry.line, entry.name,
          all.by_name[entry.name].file), 0)
      end
      all.by_name[entry.name] = entry
      all.entries[#all.entries + 1] = entry
    end
  end
  index = all
  return index
end

-- places() -> the names of places, kv first, then modules, then classes.
function help.place_names()
  local names = {}
  for name in pairs(help.index().places) do names[#names + 1] = name end
  local function rank(name) return name == 'kv' and 0 or name:find('^kv%.') and 1 or 2 end
  table.sort(names, function(a, b)
    if rank(a) ~= rank(b) then return rank(a) < rank(b) end
    return a < b
  end)
  return names
end

-- --- what there really is ---------------------------------------------------------------------------

-- callable(value) -> is it a function, or a table or userdata that can be called?
function help.callable(value)
  local meta = type(value) ~= 'function' and debug.getmetatable(value)
  return type(value) == 'function' or (meta and rawget(meta, '__call') ~= nil) or false
end

-- reachable(kv) -> {name = value}: every function, module and object a user can reach. Plain tables in kv are
-- modules, a table that can be called is a function (and, with functions inside, a module too), kv.classes
-- holds the method table of each class. Names that begin with `_` are private.
function help.reachable(kv)
  local names, seen = {}, {}
  for _, methods in pairs(kv.classes or {}) do seen[methods] = true end -- come below, under their class
  local function walk(module, place)
    if seen[module] then return end
    seen[module] = true
    names[place] = module
    for key, value in next, module do
      if type(key) == 'string' and not key:find('^_') and value ~= kv.classes then
        local object = type(value) == 'table' and debug.getmetatable(value)
        if object or help.callable(value) then names[place .. '.' .. key] = value end
        if type(value) == 'table' and (help.callable(value) or not object) then walk(value, place .. '.' .. key) end
      end
    end
  end
  walk(kv, 'kv')
  for class, methods in pairs(kv.classes or {}) do
    for name, method in pairs(methods) do
      if type(name) == 'string' and not name:find('^_') and help.callable(method) then
        names[class .. ':' .. name] = method
      end
    end
  end
  return names
end

-- lookup(thing) -> an entry, or a place name, or nil: for a function, a module table, an object (by the
-- __name of its metatable) or a name, in full or without what is in front.
function help.lookup(thing)
  local all = help.index()
  if type(thing) == 'string' then
    for _, name in ipairs { thing, 'kv.' .. thing, (thing:gsub('%.([^.]*)$', ':%1')) } do
      if all.by_name[name] then return all.by_name[name] end
      if all.places[name] then return name end
    end
    local only
    for _, entry in ipairs(all.entries) do
      if entry.short == thing then
        if only then return nil end
        only = entry
      end
    end
    return only
  end
  local found
  for name, value in pairs(help.reachable(require 'kvlab')) do
    local documented = all.by_name[name] or all.places[name] and name
    if rawequal(value, thing) and documented then
      -- One value under two names: the shorter, so that the answer does not depend on the order of pairs.
      local text = type(documented) == 'table' and documented.name or documented
      local best = type(found) == 'table' and found.name or found
      if not found or type(documented) == 'table' and type(found) == 'string'
        or #text < #best or (#text == #best and text < best) then found = documented end
    end
  end
  if found then return found end
  local meta = (type(thing) == 'table' or type(thing) == 'userdata') and debug.getmetatable(thing)
  local class = meta and type(rawget(meta, '__name')) == 'string' and meta.__name:gsub('^kvlab%.', '')
  return class and all.places[class] and class or nil
end

-- --- text for people --------------------------------------------------------------------------------

function help.signature(entry)
  if entry.type then return ('%s: %s'):format(entry.name, entry.type) end
  local results = {}
  for i, result in ipairs(entry.returns) do results[i] = result.type end
  return ('%s(%s)%s'):format(entry.name, table.concat(entry.parameters, ', '),
    #results > 0 and ' -> ' .. table.concat(results, ', ') or '')
end

local function first_sentence(doc)
  local text = table.concat(doc, ' ')
  return text:match('^(.-[.:])%s') or text
end

local function cut(line)
  if utf8.len(line) <= WIDTH then return line end
  return line:sub(1, utf8.offset(line, WIDTH - 3) - 1) .. ' ...'
end

local function entry_text(entry)
  local lines = { help.signature(entry) }
  for _, line in ipairs(entry.doc) do lines[#lines + 1] = line == '' and '' or '  ' .. line end
  for _, param in ipairs(entry.params) do
    lines[#lines + 1] = ('  %-10s %s%s  %s'):format(param.name, param.type, param.optional and '?' or '',
      param.text):gsub('%s+$', '')
  end
  for _, result in ipairs(entry.returns) do
    if result.text ~= '' then
      lines[#lines + 1] = ('  %-10s %s  %s'):format('returns', result.type, result.text)
    end
  end
  for i, example in ipairs(entry.examples) do
    if i == 1 then lines[#lines + 1] = '' end
    lines[#lines + 1] = '  ' .. example.code .. (example.expected and '  --> ' .. example.expected or '')
  end
  return lines
end

local function place_text(place)
  local lines = { place }
  for _, line in ipairs(help.index().places[place]) do
    lines[#lines + 1] = line == '' and '' or '  ' .. line
  end
  for _, entry in ipairs(help.index().entries) do
    if entry.place == place then
      local call = entry.type and entry.short
        or ('%s(%s)'):format(entry.short, table.concat(entry.parameters, ', '))
      lines[#lines + 1] = cut(('  %-26s %s'):format(call, first_sentence(entry.doc)))
    end
  end
  return lines
end

local function map_text()
  local lines = { ('kvlab %s: what a KV cache stores and reads, to the byte'):format(core.version) }
  for _, place in ipairs(help.place_names()) do
    local names = {}
    for _, entry in ipairs(help.index().entries) do
      if entry.place == place then names[#names + 1] = entry.short end
    end
    lines[#lines + 1] = cut(('  %-12s %s'):format(place, table.concat(names, ' ')))
  end
  lines[#lines + 1] = 'help(x) explains a function, a module, an object or a name:'
  lines[#lines + 1] = "  help(kv.json)   help(kv.json.encode)   help 'encode'"
  return lines
end

-- text(...) -> what kv.help(...) prints; without an argument the map of the toolkit.
function help.text(...)
  local thing = ...
  local lines
  if select('#', ...) == 0 or thing == nil or rawequal(thing, require 'kvlab') then
    lines = map_text()
  else
    local found = help.lookup(thing)
    if type(found) == 'table' then lines = entry_text(found)
    elseif found then lines = place_text(found)
    elseif type(thing) ~= 'string' then
      lines = { ('There is no help for this %s; help() shows what there is.'):format(type(thing)) }
    else
      local names = {}
      for _, entry in ipairs(help.index().entries) do
        names[#names + 1], names[#names + 2] = entry.short, entry.name
      end
      for _, place in ipairs(help.place_names()) do
        names[#names + 1], names[#names + 2] = place, place:gsub('^kv%.', '')
      end
      local several = {}
      for _, entry in ipairs(help.index().entries) do
        if entry.short == thing then several[#several + 1] = entry.name end
      end
      lines = { #several > 1 and ("'%s' can be %s"):format(thing, suggest.list(several))
        or ("Nothing is called '%s'%s"):format(thing, suggest.phrase(thing, names)) }
    end
  end
  return table.concat(lines, '\n')
end

-- help(...): prints it. `help()` and `help(nil)` are the same, a nil field explains nothing.
function help.print(...)
  io.stdout:write(help.text(...), '\n')
end

return help
