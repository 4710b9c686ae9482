-- The documentation of kv is complete and true: every public function has an entry, every entry a function,
-- parameters agree, examples give what they say, and docs/reference.md is what the entries make.
local lu = require 'luaunit'
local check = require 'check'
local declarations = require 'kvlab.declarations'
local kv = require 'kvlab'
local topics = require 'kvlab.topics'

-- Runs the examples of one text as a session of the prompt: they share an environment, and each is an expression or a
-- statement. note(...) takes what is wrong.
local function run_examples(module, where, examples, note)
  local env = setmetatable({ kv = module }, { __index = _G })
  for _, example in ipairs(examples) do
    local chunk, message = load('return ' .. example.code, '=example', 't', env)
    if not chunk then chunk, message = load(example.code, '=example', 't', env) end
    local ok, result = false, message
    if chunk then ok, result = pcall(chunk) end
    if not ok then
      note('%s: example `%s` failed: %s', where, example.code, tostring(result))
    elseif example.expected and tostring(result) ~= example.expected then
      note('%s: example `%s` gave %s, not %s', where, example.code, tostring(result), example.expected)
    end
  end
end

-- problems(kv, index) -> list of sentences; empty when the documentation is complete.
local function problems(module, index)
  local list, real = {}, {}
  local function note(...) list[#list + 1] = (...):format(select(2, ...)) end
  -- Methods are found as Class:name; an entry may also say Class.name, for functions without self.
  local function plain(name) return (name:gsub(':', '.')) end
  local documented = {}
  for _, entry in ipairs(index.entries) do documented[plain(entry.name)] = true end
  for name, value in pairs(declarations.reachable(module)) do
    real[plain(name)] = true
    if declarations.callable(value) and not documented[plain(name)] then
      note('%s has no entry in lua/kvlab/meta', name)
    end
  end
  for _, entry in ipairs(index.entries) do
    local where = ('%s:%d: %s'):format(entry.file, entry.line, entry.name)
    if not real[plain(entry.name)] then note('%s: no such function', where) end
    if #entry.doc == 0 then note('%s: no text', where) end
    local names = {}
    for i, param in ipairs(entry.params) do
      names[i] = param.name
      if param.type == '' then note('%s: @param %s has no type', where, param.name) end
    end
    local said, declared = table.concat(names, ', '), table.concat(entry.parameters, ', ')
    if said ~= declared then note('%s: @param says (%s), the declaration (%s)', where, said, declared) end
    run_examples(module, where, entry.examples, note)
  end
  table.sort(list)
  return list
end

TestDocs = {}

function TestDocs:test_everything_is_documented()
  lu.assertEquals(table.concat(problems(kv, declarations.index()), '\n'), '')
end

-- Terms, errors, records, presets, lessons and subcommands: each has a text and an example, and those run.
function TestDocs:test_topics_have_examples_that_run()
  local list, names = {}, {}
  local function note(...) list[#list + 1] = (...):format(select(2, ...)) end
  for _, topic in ipairs(topics.all()) do
    local where, page = ('%s %s'):format(topic.kind, topic.name), topic.page()
    if names[where] then note('%s is there twice', where) end
    names[where] = true
    if #page.lines == 0 then note('%s: no text', where) end
    if #page.examples == 0 and not page.shell then note('%s: no example', where) end
    if page.examples[1] and not page.examples[1].typed then run_examples(kv, where, page.examples, note) end
    if page.shell and not page.shell:find('^kvlab ' .. topic.name) then note('%s: its example is another', where) end
  end
  lu.assertEquals(table.concat(list, '\n'), '')
end

-- The first example of an error shows its message, and the message finds the text.
function TestDocs:test_errors_are_found_by_their_message()
  local count = 0
  for _, topic in ipairs(declarations.index().topics) do
    if topic.kind == 'problem' then
      count = count + 1
      local message = topic.examples[1].expected
      local found = message and topics.problem(message)
      lu.assertEquals(found and found.name, topic.name, message)
    end
  end
  lu.assertTrue(count >= 20, tostring(count))
end

function TestDocs:test_reference_is_up_to_date()
  local code, _, err = check.sh('lua5.4 scripts/gendoc.lua --check')
  lu.assertEquals({ code, err }, { 0, '' })
end

-- Blocks of Lua that require kvlab are programs, and run.
function TestDocs:test_programs_in_pages_run()
  local found = 0
  for _, page in ipairs { 'README.md', 'docs/attention.md', 'docs/pictures.md', 'docs/plots.md', 'docs/tensors.md' } do
    local file <close> = assert(io.open(check.root .. '/' .. page))
    for code in file:read('a'):gmatch('```lua\n(.-)```') do
      if code:find("local kv = require 'kvlab'", 1, true) then
        found = found + 1
        local env = setmetatable({ print = function() end }, { __index = _G })
        local program = assert(load(code, '=' .. page, 't', env))
        local ok, problem = pcall(program)
        lu.assertTrue(ok, problem)
      end
    end
  end
  lu.assertTrue(found >= 4, tostring(found))
end

function TestDocs:test_gendoc_refuses_other_options()
  local code, _, err = check.sh('lua5.4 scripts/gendoc.lua --chek')
  lu.assertEquals(code, 2)
  lu.assertStrContains(err, "'--chek'")
end

-- The check itself finds each kind of fault.
function TestDocs:test_faults_are_found()
  local module = { classes = {}, part = {} }
  function module.part.good(a, b) return a + b end
  function module.part.undocumented() end
  module.classes.Thing = { method = function() end, hidden = function() end, __len = function() end }
  module.kind = setmetatable({}, { __call = function() return 1 end })
  local entries, places = declarations.parse([[
---@meta
local part, Thing = {}, {}
---@within kv.part
--- Adds.
--- Example:
---   kv.part.good(1, 2)  --> 3
---   kv.part.good(1, 2)  --> 4
---   kv.part.bad(1, 2)
---@param a integer
---@param c integer
---@return integer sum
function part.good(a, b) end

--- Is not there.
function part.gone() end

function part.undocumented2() end
---@within Thing
--- Does it.
function Thing:method() end
]], 'meta/x.lua')
  local list = problems(module, { entries = entries, places = places })
  lu.assertEquals(list, {
    'Thing:hidden has no entry in lua/kvlab/meta',
    'kv.kind has no entry in lua/kvlab/meta',
    'kv.part.undocumented has no entry in lua/kvlab/meta',
    'meta/x.lua:12: kv.part.good: @param says (a, c), the declaration (a, b)',
    'meta/x.lua:12: kv.part.good: example `kv.part.bad(1, 2)` failed: '
      .. "example:1: attempt to call a nil value (field 'bad')",
    'meta/x.lua:12: kv.part.good: example `kv.part.good(1, 2)` gave 3, not 4',
    'meta/x.lua:15: kv.part.gone: no such function',
    'meta/x.lua:17: kv.part.undocumented2: no such function',
    'meta/x.lua:17: kv.part.undocumented2: no text',
  })
end

check.main()
