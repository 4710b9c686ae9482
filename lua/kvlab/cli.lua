-- cli.lua: the command line. Parses options, runs a subcommand, turns errors into one line and an exit status:
-- 0 fine, 1 the job failed, 2 bad usage. A subcommand is a file in commands/ that returns
--   { name, summary, usage, text, example, options = { { name, argument or nil, help }, ... },
--     run = function(args, options) }
-- An option may have short = 'j' (-j N, -jN) and many = true (may be given again: its value is a list).
local suggest = require 'kvlab.suggest'

local cli = {}

cli.order = { 'kv', 'layout', 'records', 'run', 'check', 'measure', 'bench', 'train', 'eval', 'sample', 'sweep',
  'report', 'lesson', 'help' }

local GLOBAL = { { 'json', nil, 'print JSON' }, { 'debug', nil, 'show the stack trace of an error' },
  { 'help', nil, 'show this help' } }

-- Errors that a command raises on purpose carry their exit status; anything else is status 1.
local failure = { __tostring = function(self) return self.message end }

-- cli.usage(message, ...) raises bad usage (2); cli.failed(message, ...) a job that failed (1).
function cli.usage(message, ...)
  error(setmetatable({ status = 2, message = message:format(...) }, failure), 0)
end
function cli.failed(message, ...)
  error(setmetatable({ status = 1, message = message:format(...) }, failure), 0)
end

-- cli.as_usage(f, ...) -> f(...); what f raises counts as bad usage.
function cli.as_usage(f, ...)
  local results = table.pack(pcall(f, ...))
  if results[1] then return table.unpack(results, 2, results.n) end
  if getmetatable(results[2]) == failure then error(results[2], 0) end
  cli.usage('%s', tostring(results[2]))
end

function cli.note(message, ...) io.stderr:write('kvlab: note: ', message:format(...), '\n') end

-- A whole number of an option, at least `least`.
function cli.whole(text, option, least)
  local n = text:find('^%-?%d+$') and math.tointeger(tonumber(text))
  if not n or n < least then
    cli.usage('%s %s: expected a whole number from %d to 2^63 - 1', option, text, least)
  end
  return n
end

-- A positive number of an option.
function cli.positive(text, option)
  local x = tonumber(text)
  if not x or x ~= x or x <= 0 or x == math.huge then cli.usage('%s %s: expected a number above 0', option, text) end
  return x
end

function cli.load(name)
  for _, known in ipairs(cli.order) do
    if known == name then return require('kvlab.commands.' .. name) end
  end
  cli.usage("unknown subcommand '%s'%s; subcommands: %s", name, suggest.phrase(name, cli.order),
    table.concat(cli.order, ', '))
end

-- Splits words into positional arguments and options by the command's table.
local function parse(command, words)
  local args, options = {}, {}
  local known, names = {}, {}
  for _, list in ipairs { command.options, GLOBAL } do
    for _, option in ipairs(list) do
      if not known[option[1]] then
        known[option[1]] = option
        names[#names + 1] = '--' .. option[1]
        if option.short then known['-' .. option.short] = option end
      end
    end
  end
  local i, only_args = 1, false
  while i <= #words do
    local word = words[i]
    local name, value = word:match('^%-%-([%w-]+)=(.*)$')
    name = name or word:match('^%-%-([%w-]+)$')
    if word == '-h' then name = 'help' end
    local letter, glued = word:match('^%-(%a)(.*)$')
    if letter and known['-' .. letter] then
      name, value = known['-' .. letter][1], glued ~= '' and glued or nil
    end
    if only_args or not word:find('^%-') or word == '-' then
      args[#args + 1] = word
      if command.passes_on then only_args = true end
    elseif word == '--' then
      only_args = true
    else
      local option = name and known[name]
      if not option then
        cli.usage("%s: unknown option '%s'%s; see kvlab help %s", command.name, word, suggest.phrase(word, names),
          command.name)
      end
      if options[name] and not option.many then cli.usage('%s: --%s is given twice', command.name, name) end
      if option[2] then
        if value == nil then
          i = i + 1
          value = words[i]
          if value == nil then cli.usage('%s: --%s needs a value: --%s %s', command.name, name, name, option[2]) end
        end
        if option.many then
          options[name] = options[name] or {}
          table.insert(options[name], value)
        else
          options[name] = value
        end
      else
        if value ~= nil then cli.usage('%s: --%s takes no value', command.name, name) end
        options[name] = true
      end
    end
    i = i + 1
  end
  return args, options
end

-- The help text of one command.
function cli.describe(command)
  local lines = { ('kvlab %s'):format(command.usage), '', command.text, '' }
  if command.example then table.move({ 'Example: ' .. command.example, '' }, 1, 2, #lines + 1, lines) end
  local rows = {}
  for _, list in ipairs { command.options, GLOBAL } do
    for _, option in ipairs(list) do
      if option[1] ~= 'json' or list ~= GLOBAL or command.json then
        rows[#rows + 1] = { ('  --%s%s'):format(option[1], option[2] and ' ' .. option[2] or ''), option[3] }
      end
    end
  end
  for _, line in ipairs(require('kvlab.format').table(rows, { 'l', 'l' })) do lines[#lines + 1] = line end
  return table.concat(lines, '\n')
end

-- cli.main(words, root) -> exit status. root: the folder of the build tree, or nil when installed.
function cli.main(words, root)
  cli.root = root
  local core = require('kvlab.core')
  core.base.catch_interrupts()
  core.base.blas_single_thread() -- this process is ours: the core threads its own loops
  local debugging = false
  for _, word in ipairs(words) do debugging = debugging or word == '--debug' end
  local function job()
    while words[1] == '--debug' do words = table.move(words, 2, #words, 1, {}) end
    local name = words[1]
    if name == nil then return require('kvlab.repl').run(require 'kvlab') end
    if name == '--version' then print(require('kvlab')._VERSION) return end
    if name == '--help' or name == '-h' then name = 'help' end
    if name == '-e' then
      if not words[2] then cli.usage('-e needs code: kvlab -e CODE') end
      return require('kvlab.repl').eval_string(words[2])
    end
    local command = cli.load(name)
    local args, options = parse(command, table.move(words, 2, #words, 1, {}))
    if options.help then print(cli.describe(command)) return end
    return command.run(args, options)
  end
  local function explain(problem)
    if debugging then return { problem, debug.traceback('', 2) } end
    return { problem }
  end
  local ok, result = xpcall(job, explain)
  if ok then return result or 0 end
  local problem, trace = result[1], result[2]
  local status = 1
  if getmetatable(problem) == failure then status = problem.status end
  io.stdout:flush()
  io.stderr:write('kvlab: ', tostring(problem), '\n')
  if trace then io.stderr:write(trace, '\n') end
  return status
end

return cli
