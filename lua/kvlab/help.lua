-- help.lua: what kv.help prints, from the declarations in lua/kvlab/meta (kvlab.declarations) and from kvlab.topics.
local core = require 'kvlab.core'
local declarations = require 'kvlab.declarations'
local layer = require 'kvlab.layer'
local pager = require 'kvlab.pager'
local record = require 'kvlab.record'
local suggest = require 'kvlab.suggest'
local terminal = require 'kvlab.terminal'
local topics = require 'kvlab.topics'

local help = {}

local WIDTH <const> = 79   -- columns of prose
local LIST <const> = 119   -- columns of a list
local MAP <const> = 200    -- columns of the map
local MOST <const> = 5     -- lines of one of its rows, where not all fit
local MENTIONS <const> = 6 -- places that mention a word which names nothing

-- The map: which files of lua/kvlab/meta are in which area; the others are in the last one.
local AREAS = { { 'layouts', 'layout' }, { 'counting', 'count', 'measure' }, { 'records', 'record', 'number' },
  { 'caches', 'pool' }, { 'tensors', 'tensor', 'ops' }, { 'attention', 'kernels' }, { 'models', 'model' },
  { 'training', 'training', 'tasks' }, { 'runs', 'run' }, { 'pictures', 'plot', 'draw', 'trace' },
  { 'general', 'general', 'prompt', 'safetensors' } }

-- Words whose page lists what has a page of its own: topics of a kind, or classes.
local LISTS = { glossary = 'term', errors = 'problem', shell = 'kvlab', lessons = 'lesson', objects = 'class' }

-- --- finding ------------------------------------------------------------------------------------------

-- lookup(thing) -> an entry, or a place name, or nil: for a function, a module table, an object (by the
-- __name of its metatable) or a name, in full or without what is in front.
function help.lookup(thing)
  local all = declarations.index()
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
  for name, value in pairs(declarations.reachable(require 'kvlab')) do
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

-- The name of one of Lua's own functions or modules.
local function own_of_lua(thing)
  if rawequal(thing, _G) then return '_G' end
  for _, name in ipairs { 'string', 'table', 'math', 'io', 'os', 'utf8', 'coroutine', 'debug', 'package' } do
    local module = _G[name]
    if rawequal(module, thing) then return name end
    for key, value in next, module or {} do
      if rawequal(value, thing) then return name .. '.' .. tostring(key) end
    end
  end
  for key, value in next, _G do
    if rawequal(value, thing) then return key end
  end
end

local function area_of(entry)
  local file = entry.file:match('([^/]+)%.lua$')
  for _, area in ipairs(AREAS) do
    for i = 2, #area do
      if area[i] == file then return area[1] end
    end
  end
  return AREAS[#AREAS][1]
end

-- names() -> every name that help explains, for suggestions and TAB.
function help.names()
  local names, seen = {}, {}
  local function add(name)
    if name and not seen[name] then
      seen[name] = true
      names[#names + 1] = name
    end
  end
  for _, entry in ipairs(declarations.index().entries) do add(entry.short) add(entry.name) end
  for _, place in ipairs(declarations.place_names()) do add(place) add((place:gsub('^kv%.', ''))) end
  for _, area in ipairs(AREAS) do add(area[1]) end
  for name in pairs(LISTS) do add(name) end
  for _, topic in ipairs(topics.all()) do
    for _, name in ipairs(topic.kind == 'problem' and {} or topic.names) do add(name) end
  end
  return names
end

-- --- pages --------------------------------------------------------------------------------------------
local function first_sentence(doc)
  local text = table.concat(doc, ' ')
  return text:match('^(.-%.)%s') or text
end

local function width() return math.min(terminal.columns() - 1, WIDTH) end
local function cut(line) return terminal.cut(line, math.min(terminal.columns() - 1, LIST)) end

-- Adds a line of two columns, 'name   what it is': what is too long goes on under the second.
local function add_row(lines, line)
  local first, rest = line:match('^(%s*.-%s%s+)(%S.*)$')
  if not first or #first + 2 > width() // 2 then
    first, rest = line:match('^(%s*)(.*)$')
  end
  local hanging = (' '):rep(first:find('%S') and #first + 2 or #first + 4)
  table.move(terminal.wrap(rest, width(), '  ' .. first, hanging), 1, 100, #lines + 1, lines)
end

-- Adds the lines of a text, indented by two and filled to the width of the terminal. Indented lines are rows of a
-- table, and one that is indented much more goes on with the row before; a blank line, or a word with a colon such
-- as `Errors:`, or `Options` begins a paragraph.
local function add_doc(lines, doc)
  local paragraph, row = {}, nil
  local function flush()
    if #paragraph > 0 then
      table.move(terminal.wrap(table.concat(paragraph, ' '), width(), '  '), 1, 1000, #lines + 1, lines)
    end
    if row then add_row(lines, row) end
    paragraph, row = {}, nil
  end
  for _, line in ipairs(doc) do
    local indent = #line:match('^%s*')
    if row and indent > #row:match('^%s*') + 4 then
      row = row .. ' ' .. line:sub(indent + 1)
    else
      if row or line == '' or indent > 0 or line:find('^%u%l+: ') or line:find('^Options') then flush() end
      if line == '' then lines[#lines + 1] = ''
      elseif indent > 0 then row = line
      else paragraph[#paragraph + 1] = line end
    end
  end
  flush()
  return lines
end

local function add_examples(lines, examples)
  for i, example in ipairs(examples) do
    if i == 1 then lines[#lines + 1] = '' end
    lines[#lines + 1] = '  ' .. example.code .. (example.expected and '  --> ' .. example.expected or '')
  end
  return lines
end

local function said(text) return text ~= '' and ': ' .. text or '' end

local function entry_text(entry)
  local lines = add_doc({ declarations.signature(entry) }, entry.doc)
  for _, param in ipairs(entry.params) do
    add_row(lines, ('%-10s %s%s%s'):format(param.name, param.type, param.optional and '?' or '', said(param.text)))
  end
  for _, result in ipairs(entry.returns) do
    if result.text ~= '' then add_row(lines, ('%-10s %s%s'):format('returns', result.type, said(result.text))) end
  end
  return add_examples(lines, entry.examples)
end

-- The entries in the order of the files of their areas.
local function in_order()
  local rank, at = {}, 0
  for _, area in ipairs(AREAS) do
    for i = 2, #area do
      at = at + 1
      rank[area[i]] = at
    end
  end
  local list = {}
  for i, entry in ipairs(declarations.index().entries) do
    list[i] = { entry, rank[entry.file:match('([^/]+)%.lua$')] or at + 1, i }
  end
  table.sort(list, function(a, b) return a[2] < b[2] or a[2] == b[2] and a[3] < b[3] end)
  for i, item in ipairs(list) do list[i] = item[1] end
  return list
end

-- A line for each entry that fits, under its short name or under name_of(entry).
local function add_list(lines, fits, name_of)
  for _, entry in ipairs(in_order()) do
    if fits(entry) then
      local name = name_of and name_of(entry) or entry.short
      local call = entry.type and name or ('%s(%s)'):format(name, table.concat(entry.parameters, ', '))
      lines[#lines + 1] = cut(('  %-26s  %s'):format(call, first_sentence(entry.doc)))
    end
  end
  return lines
end

local function place_text(place)
  local lines = add_doc({ place }, declarations.index().places[place])
  return add_list(lines, function(entry) return entry.place == place end)
end

local function topic_text(topic)
  local page = topic.page()
  return add_examples(add_doc({ page.title }, page.lines), page.examples)
end

local function list_text(word)
  local rows, longest = {}, 0
  local function add(name, doc)
    rows[#rows + 1] = { name, first_sentence(doc) }
    longest = math.max(longest, math.min(26, terminal.width(name)))
  end
  if LISTS[word] == 'class' then
    for _, place in ipairs(declarations.place_names()) do
      if not place:find('^kv') then add(place, declarations.index().places[place]) end
    end
  else
    for _, topic in ipairs(topics.all()) do
      if topic.kind == LISTS[word] then add(topic.name, topic.about and { topic.about } or topic.page().lines) end
    end
  end
  local lines = { word }
  for _, row in ipairs(rows) do
    lines[#lines + 1] = cut(('  %s%s  %s'):format(row[1], (' '):rep(longest - terminal.width(row[1])), row[2]))
  end
  return lines
end

-- The page of a name, and what else has that name: lines, or nil.
local function named(name)
  local found = help.lookup(name)
  local others = topics.find(name)
  local lines
  if found then lines = type(found) == 'table' and entry_text(found) or place_text(found)
  elseif #others > 0 then lines = topic_text(table.remove(others, 1)) end
  local also = {}
  for i, topic in ipairs(others) do also[i] = ("help '%s %s'"):format(topic.kind, topic.name) end
  if lines and #also > 0 then lines[#lines + 1] = cut('Also: ' .. table.concat(also, ', ')) end
  if lines then return lines end
  if LISTS[name] then return list_text(name) end
  for _, area in ipairs(AREAS) do
    if area[1] == name then
      return add_list({ name }, function(entry) return area_of(entry) == name and not entry.place:find('^%u') end,
        function(entry) return (entry.name:gsub('^kv%.', '')) end)
    end
  end
end

-- --- the map ------------------------------------------------------------------------------------------
-- A row of the map: its name and as many of the words as `most` lines take, the last of which says how many are left.
local function row_of(name, words, separator, columns, most)
  for n = #words, 0, -1 do
    local text = table.concat(words, separator, 1, n)
    if n < #words then text = ('%s ... %d more'):format(text, #words - n) end
    local lines = terminal.wrap(text, columns, ('  %-10s '):format(name), (' '):rep(13))
    if #lines <= most or n == 0 then return lines end
  end
end

-- The rows of the map: { name, words, what stands between them }.
local function map_rows()
  local of_area, seen, classes, of_kind = {}, {}, {}, {}
  for _, entry in ipairs(in_order()) do
    local area = area_of(entry)
    local name = entry.place == 'kv' and entry.short or entry.place:match('^kv%.(.*)$')
    of_area[area] = of_area[area] or {}
    if name and not seen[name] then
      seen[name] = true
      table.insert(of_area[area], name)
    end
  end
  for _, place in ipairs(declarations.place_names()) do
    if not place:find('^kv') then classes[#classes + 1] = place end
  end
  for _, topic in ipairs(topics.all()) do
    of_kind[topic.kind] = of_kind[topic.kind] or {}
    table.insert(of_kind[topic.kind], topic.name)
  end
  local rows = {}
  for _, area in ipairs(AREAS) do
    if of_area[area[1]] then rows[#rows + 1] = { area[1], of_area[area[1]], ' ' } end
  end
  table.move({ { 'objects', classes, ' ' }, { 'presets', of_kind.preset or {}, ' ' },
    { 'glossary', of_kind.term or {}, ', ' }, { 'shell', of_kind.kvlab or {}, ' ' },
    { 'lessons', of_kind.lesson or {}, ' ' } }, 1, 5, #rows + 1, rows)
  return rows
end

-- On a terminal one screen with the prompt below it: where there are too few lines for all words, long rows say how
-- many they leave out. A narrow terminal, and a file, get all of them.
local function map_text()
  local head = terminal.wrap(('kvlab %s: what a KV cache stores and reads, to the byte'):format(core.version), width())
  local foot = { '' }
  for _, text in ipairs {
    "help(x) explains a function, an object, a layer; help 'NAME' whatever has that name, also on the left: "
      .. "help(kv.count), help 'Tensor:topk', help 'tensors'.",
    "help 'the message of an error', or help(_e) after one, says what to do.",
    '_ is the last value, x; shows nothing; TAB completes, Ctrl-C stops, Ctrl-D ends' } do
    table.move(terminal.wrap(text, width(), '', '  '), 1, 9, #foot + 1, foot)
  end
  local columns = math.min(terminal.columns(), MAP) - 1
  local screen = columns >= WIDTH and terminal.lines()
  local room = screen and screen - 1 - #head - #foot or math.huge
  local rows = map_rows()
  local function filled(most)
    local lines = {}
    for _, row in ipairs(rows) do
      local of_row = row_of(row[1], row[2], row[3], columns, most)
      table.move(of_row, 1, #of_row, #lines + 1, lines)
    end
    return lines
  end
  local most, lines = MOST, filled(math.huge)
  while #lines > room and most > 0 do lines, most = filled(most), most - 1 end
  table.move(lines, 1, #lines, #head + 1, head)
  return table.move(foot, 1, #foot, #head + 1, head)
end

-- --- what help says -----------------------------------------------------------------------------------

-- What is known of a message: its explanation, or the function that raised it; lines, or nil.
local function message_text(message)
  local topic = topics.problem(message)
  if topic then return topic_text(topic) end
  local name = message:match('^([%a_][%w_.]*):%s')
  local entry = name and help.lookup(name)
  if type(entry) ~= 'table' then return nil end
  local lines = entry_text(entry)
  table.insert(lines, 1, ("This message comes from %s:"):format(entry.name))
  return lines
end

local function mentions(word)
  local found, lower = {}, word:lower()
  for _, entry in ipairs(declarations.index().entries) do
    if table.concat(entry.doc, ' '):lower():find(lower, 1, true) then found[#found + 1] = entry.name end
  end
  local more = #found - MENTIONS
  return #found > 0 and ('It is mentioned under %s%s.'):format(table.concat(found, ', ', 1, math.min(#found, MENTIONS)),
    more > 0 and (' and %d more'):format(more) or '')
end

local function unknown(name)
  local several = {}
  for _, entry in ipairs(declarations.index().entries) do
    if entry.short == name then several[#several + 1] = entry.name end
  end
  if #several > 1 then return { ("'%s' can be %s"):format(name, suggest.list(several)) } end
  if #name > 40 or select(2, name:gsub('%s+', '')) > 2 then
    return { 'Nothing more is known about this text. A message of kvlab names the argument, shows the value that was',
      "given and says what would be right; help 'NAME' explains the function that was called." }
  end
  local near = suggest.phrase(name, help.names())
  return { ("Nothing is called '%s'%s"):format(terminal.visible(name), near),
    near == '' and #name >= 3 and mentions(name) or nil }
end

-- The page of a value that is no string: lines.
local function of_value(thing)
  if record.is(thing) then return topic_text { page = function() return topics.record_page(thing) end } end
  local found = help.lookup(thing)
  if layer.is(thing) and type(found) ~= 'table' then
    local lines = entry_text(help.lookup('kv.' .. thing.kind))
    table.insert(lines, 1, ('%s, of the kind'):format(tostring(thing)))
    return lines
  end
  if found then return type(found) == 'table' and entry_text(found) or place_text(found) end
  local name = require('kvlab.lesson').name_of(thing)
  if name then return topic_text(topics.find('prompt ' .. name)[1]) end
  name = own_of_lua(thing)
  if name then return { ("%s is Lua's own: see the Lua 5.4 reference manual, section 6."):format(name) } end
  return { ('There is no help for this %s; help() shows what there is.'):format(type(thing)) }
end

-- text(...) -> what kv.help(...) prints; without an argument the map of the toolkit.
function help.text(...)
  local thing = ...
  local lines
  if select('#', ...) == 0 or thing == nil or rawequal(thing, require 'kvlab') then lines = map_text()
  elseif type(thing) == 'string' then lines = named(thing) or message_text(thing) or unknown(thing)
  else lines = of_value(thing) end
  return table.concat(lines, '\n')
end

-- help(...): prints it. `help()` and `help(nil)` are the same, a nil field explains nothing.
function help.print(...) pager.put(terminal.fit(help.text(...))) end

return help
