-- declarations.lua: what is written in lua/kvlab/meta/*.lua, and what of it there really is.
--
-- A meta file is never executed, only read line by line. `---@within PLACE` says where its functions are: a
-- module table (kv.json) or a class (Record, for methods). Each function is an entry: a block of `---` lines
-- (text, then "Example:" lines `expression  --> value`), `---@param`, `---@return` and the empty declaration;
-- a value is declared by `---@type TYPE` and `kv.name = ...`.
-- Text before `---@within` describes the place. A block that ends with `---@term NAME, OTHER NAME` explains a term, one
-- that ends with `---@problem MESSAGE` an error whose message has that text, with `...` for what varies.
--
-- Three readers: kv.help (help.lua), docs/reference.md (scripts/gendoc.lua), and tests/lua/test_docs.lua, which
-- compares all with what is really there and runs the examples.
local core = require 'kvlab.core'

local declarations = {}

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
-- returns (documented), examples ({code, expected}), file and line; type for a value. Third, the topics: a list of
-- {kind = 'term' or 'problem', name, names = all of its names, doc, examples, file, line}.
function declarations.parse(text, file)
  local entries, places, topics, place, block, number = {}, {}, {}, nil, new_block(), 0
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
    elseif tag == 'term' or tag == 'problem' then
      block.kind, block.names, block.file, block.line = tag, {}, file, number
      for name in rest:gmatch(tag == 'term' and '[^,]+' or '.+') do
        block.names[#block.names + 1] = name:match('^%s*(.-)%s*$')
      end
      block.name = block.names[1]
      trim(block.doc)
      topics[#topics + 1], block = block, new_block()
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
  return entries, places, topics
end

-- meta_dir() -> where the declarations are: beside this file, in the build tree as well as installed.
function declarations.meta_dir()
  local source = debug.getinfo(1, 'S').source:match('^@(.*)declarations%.lua$')
  source = source or assert(package.searchpath('kvlab.declarations', package.path)):match('^(.*)declarations%.lua$')
  return source .. 'meta'
end

-- read(dir) -> {entries, places, by_name, topics} of every file there, sorted by file name.
function declarations.read(dir)
  local files, all = {}, { entries = {}, places = {}, by_name = {}, topics = {} }
  for _, name in ipairs(core.base.list_dir(dir) or {}) do
    if name:find('^[%w_]+%.lua$') then files[#files + 1] = name end
  end
  table.sort(files)
  for _, name in ipairs(files) do
    local file <close> = assert(io.open(dir .. '/' .. name, 'rb'))
    local entries, places, topics = declarations.parse(file:read('a'), 'meta/' .. name)
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
    table.move(topics, 1, #topics, #all.topics + 1, all.topics)
  end
  return all
end

local index

-- index() -> what is installed, read once.
function declarations.index()
  index = index or declarations.read(declarations.meta_dir())
  return index
end

-- places() -> the names of places, kv first, then modules, then classes.
function declarations.place_names()
  local names = {}
  for name in pairs(declarations.index().places) do names[#names + 1] = name end
  local function rank(name) return name == 'kv' and 0 or name:find('^kv%.') and 1 or 2 end
  table.sort(names, function(a, b)
    if rank(a) ~= rank(b) then return rank(a) < rank(b) end
    return a < b
  end)
  return names
end

-- --- what there really is ---------------------------------------------------------------------------

-- callable(value) -> is it a function, or a table or userdata that can be called?
function declarations.callable(value)
  local meta = type(value) ~= 'function' and debug.getmetatable(value)
  return type(value) == 'function' or (meta and rawget(meta, '__call') ~= nil) or false
end

-- reachable(kv) -> {name = value}: every function, module and object a user can reach. Plain tables in kv are
-- modules, a table that can be called is a function (and, with functions inside, a module too), kv.classes
-- holds the method table of each class. Names that begin with `_` are private.
function declarations.reachable(kv)
  local names, seen = {}, {}
  for _, methods in pairs(kv.classes or {}) do seen[methods] = true end -- come below, under their class
  local function walk(module, place)
    if seen[module] then return end
    seen[module] = true
    names[place] = module
    for key, value in next, module do
      if type(key) == 'string' and not key:find('^_') and value ~= kv.classes then
        local object = type(value) == 'table' and debug.getmetatable(value)
        if object or declarations.callable(value) then names[place .. '.' .. key] = value end
        if type(value) == 'table' and (declarations.callable(value) or not object) then
          walk(value, place .. '.' .. key)
        end
      end
    end
  end
  walk(kv, 'kv')
  for class, methods in pairs(kv.classes or {}) do
    for name, method in pairs(methods) do
      if type(name) == 'string' and not name:find('^_') and declarations.callable(method) then
        names[class .. ':' .. name] = method
      end
    end
  end
  return names
end

-- signature(entry) -> "kv.json.encode(value, options) -> string", or "kv.swa: Layer".
function declarations.signature(entry)
  if entry.type then return ('%s: %s'):format(entry.name, entry.type) end
  local results = {}
  for i, result in ipairs(entry.returns) do results[i] = result.type end
  return ('%s(%s)%s'):format(entry.name, table.concat(entry.parameters, ', '),
    #results > 0 and ' -> ' .. table.concat(results, ', ') or '')
end

return declarations
