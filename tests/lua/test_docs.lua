-- The documentation of kv is complete and true: every public function has an entry, every entry a function,
-- parameters agree, examples give what they say, and docs/reference.md is what the entries make.
local lu = require 'luaunit'
local check = require 'check'
local core = require 'kvlab.core'
local declarations = require 'kvlab.declarations'
local kv = require 'kvlab'
local cli = require 'kvlab.cli'
local lessons = require 'kvlab.lessons'
local topics = require 'kvlab.topics'

-- run_examples(examples, where, note, module): each gives what it says. Those of one entry share their globals, and
-- temporary files are in a folder that goes away.
local function run_examples(examples, where, note, module)
  local dir, names = os.tmpname(), 0
  os.remove(dir)
  os.execute('mkdir ' .. dir)
  local function tmpname()
    names = names + 1
    return ('%s/%d'):format(dir, names)
  end
  local env = setmetatable({ kv = module, os = setmetatable({ tmpname = tmpname }, { __index = os }) },
    { __index = _G })
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
  os.execute('rm -r ' .. dir)
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
    if #entry.examples == 0 then note('%s: no example', where) end
    run_examples(entry.examples, where, note, module)
  end
  table.sort(list)
  return list
end

TestDocs = {}

function TestDocs:test_everything_is_documented()
  lu.assertEquals(table.concat(problems(kv, declarations.index()), '\n'), '')
end

-- Terms and errors; the first example of an error is one whose message it explains.
function TestDocs:test_topics_have_examples_that_hold()
  local list, seen = {}, {}
  local function note(...) list[#list + 1] = (...):format(select(2, ...)) end
  for _, topic in ipairs(declarations.index().topics) do
    local where = ('%s:%d: %s'):format(topic.file, topic.line, topic.name)
    if #topic.doc == 0 then note('%s: no text', where) end
    if #topic.examples == 0 then note('%s: no example', where) end
    run_examples(topic.examples, where, note, kv)
    for _, name in ipairs(topic.names) do
      if seen[name:lower()] then note('%s: %s is explained twice', where, name) end
      seen[name:lower()] = true
    end
    if topic.kind == 'problem' then
      local found = topics.problem(topic.examples[1].expected or '')
      if not found or found.name ~= topic.name then
        note('%s: its own message is explained by %s', where, found and found.name or 'nothing')
      end
    end
  end
  lu.assertEquals(table.concat(list, '\n'), '')
  lu.assertTrue(#declarations.index().topics > 50)
end

-- Records and presets are explained from their data.
function TestDocs:test_pages_of_topics_have_examples_that_hold()
  local list, kinds = {}, {}
  local function note(...) list[#list + 1] = (...):format(select(2, ...)) end
  for _, topic in ipairs(topics.all()) do
    kinds[topic.kind] = (kinds[topic.kind] or 0) + 1
    local page = topic.page()
    local where = ('%s %s'):format(topic.kind, topic.name)
    if #page.examples == 0 and not page.shell then note('%s: no example', where) end
    if topic.kind == 'record' or topic.kind == 'preset' then run_examples(page.examples, where, note, kv) end
  end
  lu.assertEquals(table.concat(list, '\n'), '')
  lu.assertEquals(kinds.preset, #kv.presets)
  lu.assertEquals(kinds.record, #kv.records())
  lu.assertEquals(kinds.lesson, #lessons.all())
end

-- The example of each subcommand, in their order, in a folder with what they need: the project's experiments and golden
-- vectors, a training, a run to report on.
function TestDocs:test_examples_of_subcommands_run()
  local dir = os.tmpname()
  os.remove(dir)
  local root = core.system.realpath(check.root)
  local build = core.system.realpath(os.getenv('KVLAB_BUILD') or root .. '/build')
  os.execute(('mkdir -p %s/runs && cd %s && ln -s %s/experiments %s/tests .'):format(dir, dir, root, root))
  local run = kv.run.create { dir = ('%s/runs/records/%s'):format(dir, kv.config.id {}), config = {} }
  run:claim()
  run:finish { loss = 1 }
  local file <close> = assert(io.open(dir .. '/where.lua', 'w'))
  file:write([[return { layout = 'mha', task = { name = 'recall', vocab = 16, length = 12, pairs = 2 }, steps = 200, batch = 4,
    widths = { hidden_size = 8, num_attention_heads = 1, head_dim = 8 }, model = { ffn = 0 }, eval_size = 8 }]])
  file:close()
  for _, name in ipairs(cli.order) do
    local command = cli.load(name)
    lu.assertStrContains(cli.describe(command), 'Example: ' .. command.example)
    local kvlab = ('cd %s && KVLAB_BUILD=%s %s/scripts/kvlab'):format(dir, build, root)
    local code, _, err = check.sh((command.example:gsub('^kvlab', function() return kvlab end)))
    lu.assertEquals(code, 0, command.example .. '\n' .. err)
  end
  os.execute('rm -r ' .. dir)
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
    'meta/x.lua:15: kv.part.gone: no example',
    'meta/x.lua:15: kv.part.gone: no such function',
    'meta/x.lua:17: kv.part.undocumented2: no example',
    'meta/x.lua:17: kv.part.undocumented2: no such function',
    'meta/x.lua:17: kv.part.undocumented2: no text',
    'meta/x.lua:20: Thing:method: no example',
  })
end

check.main()
