-- topics.lua: what kv.help explains besides the functions of kv: terms and errors (lua/kvlab/meta), records, presets,
-- lessons, what moves in them, subcommands.
--
-- A topic has a kind, a name, names (all of them), about (a line, or nil) and page() -> { title, lines, examples,
-- shell }. An example is {code, expected} and runs as it stands, but that of a lesson, which is typed at the prompt;
-- shell is the example of a subcommand.
local count = require 'kvlab.count'
local declarations = require 'kvlab.declarations'
local format = require 'kvlab.format'
local presets = require 'kvlab.presets'
local record = require 'kvlab.record'

local topics = {}

-- The kinds in the order in which a name is looked up; the words may stand before a name: help 'record f32'.
topics.kinds = { 'term', 'record', 'preset', 'lesson', 'prompt', 'kvlab' }

local ANY_WIDTH <const> = { channels = 128 } -- what a record of any width is shown at

-- --- one page of each kind ----------------------------------------------------------------------------
local function declared_page(topic)
  return { title = topic.kind == 'problem' and ("error: %s"):format(topic.name) or table.concat(topic.names, ', '),
    lines = topic.doc, examples = topic.examples }
end

-- record_page(rec): also for records that are not registered.
function topics.record_page(rec)
  local dims = rec.natural
  local known, plan = pcall(rec.plan, rec, dims)
  if not known then dims, plan = ANY_WIDTH, rec:plan(ANY_WIDTH) end
  local lines = { rec.about or 'A record of your own.' }
  if rec.source then lines[2] = 'Source: ' .. rec.source end
  lines[#lines + 1] = '  ' .. rec:formula(dims) .. (known and '' or (' (at %d channels)'):format(dims.channels))
  lines[#lines + 1] = ('  a page has %s entries, %s B'):format(format.number(plan.page_entries),
    format.number(plan.page_bytes))
  local page = { title = 'record ' .. rec.name, lines = lines, examples = {} }
  if pcall(record.named, rec.name) then
    page.examples[1] = { code = ("kv.record_named('%s'):plan%s.bytes"):format(rec.name,
      known and '()' or (' { channels = %d }'):format(dims.channels)), expected = tostring(plan.bytes) }
  end
  return page
end

local function preset_page(name)
  local L = presets.load(name)
  local slope = tostring(count.layout(L).store.bytes_per_token)
  return { title = ('preset %s: %s'):format(name, L.name or name),
    lines = { '  ' .. tostring(L), ('%d layers, with the widths and records of the released model.'):format(#L) },
    examples = { { code = ("kv.count(kv.preset '%s').store.bytes_per_token"):format(name), expected = slope } } }
end

local function lesson_page(lesson)
  return { title = ('lesson %s: %s'):format(lesson.name, lesson.title or lesson.name),
    lines = { ('%d steps.'):format(type(lesson.steps) == 'table' and #lesson.steps or 0) },
    examples = { { code = ("lesson '%s'"):format(lesson.name), typed = true } } }
end

-- What there is at the prompt for lessons.
local PROMPT = { 'lesson', 'answer', 'next', 'back', 'again', 'skip', 'quit' }

local function prompt_page()
  return { title = 'lesson(name), answer(x), and the words next, back, again, skip, quit', lines = {
    'lesson() lists the lessons; a name starts one, or goes on where it was left; a second argument is the step.', '',
    'While a lesson runs, these words move in it when typed alone:', '  next   the next step',
    '  back   the step before', '  again  this step once more', '  skip   the answer, then the next step',
    '  quit   leaves it; it goes on there later', '',
    'answer(x) answers a question: with a number, a word, or a list. answer() asks it again. Any other line is Lua,',
    'and what a lesson defines stays.' }, examples = { { code = "lesson 'csa'", typed = true } } }
end

local function command_page(name)
  local cli = require 'kvlab.cli'
  local command = cli.load(name)
  local lines = {}
  for line in cli.describe(command):gmatch('([^\n]*)\n?') do lines[#lines + 1] = line end
  while lines[#lines] == '' do table.remove(lines) end
  return { title = table.remove(lines, 1), lines = lines, examples = {}, shell = command.example }
end

-- --- all of them --------------------------------------------------------------------------------------
local function lessons()
  local ok, module = pcall(require, 'kvlab.lessons')
  return ok and type(module) == 'table' and type(module.all) == 'function' and module.all() or {}
end

-- all() -> the list of topics; records of the user's own come and go, so it is made anew.
function topics.all()
  local list = {}
  local function add(kind, name, names, page, about)
    list[#list + 1] = { kind = kind, name = name, names = names, page = page, about = about }
  end
  for _, topic in ipairs(declarations.index().topics) do
    add(topic.kind, topic.name, topic.names, function() return declared_page(topic) end)
  end
  for _, name in ipairs(record.names()) do
    add('record', name, { name }, function() return topics.record_page(record.named(name)) end)
  end
  for _, name in ipairs(presets.names) do add('preset', name, { name }, function() return preset_page(name) end) end
  for _, lesson in ipairs(lessons()) do
    add('lesson', lesson.name, { lesson.name }, function() return lesson_page(lesson) end, lesson.title)
  end
  add('prompt', PROMPT[1], PROMPT, prompt_page)
  local cli = require 'kvlab.cli'
  for _, name in ipairs(cli.order) do
    add('kvlab', name, { name }, function() return command_page(name) end, cli.load(name).summary)
  end
  return list
end

-- find(text) -> the topics of that name, in the order of kinds; 'record f32' asks for one kind only.
function topics.find(text)
  local asked, name = text:match('^(%l+) (.+)$')
  local found = {}
  for _, kind in ipairs(topics.kinds) do
    for _, topic in ipairs(topics.all()) do
      for _, own in ipairs(topic.kind == kind and topic.names or {}) do
        local same = own:lower() == text:lower() or asked == kind and own:lower() == name:lower()
        if same and found[#found] ~= topic then found[#found + 1] = topic end
      end
    end
  end
  return found
end

-- The message as a pattern: what stands for anything is `...`.
local function pattern_of(form)
  return (form:gsub('%.%.%.', '\0'):gsub('%p', '%%%0'):gsub('\0', '.-'))
end

-- problem(message) -> the topic that explains it, of several the one with most of the message's words; nil for none.
function topics.problem(message)
  local best, most = nil, 0
  for _, topic in ipairs(declarations.index().topics) do
    local same = #topic.name:gsub('%.%.%.', '')
    if topic.kind == 'problem' and same > most and message:find(pattern_of(topic.name)) then
      best, most = topic, same
    end
  end
  if not best then return nil end
  return { kind = 'problem', name = best.name, names = best.names, page = function() return declared_page(best) end }
end

return topics
