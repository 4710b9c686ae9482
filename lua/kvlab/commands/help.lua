-- kvlab help [SUBCOMMAND]
local cli = require 'kvlab.cli'
local format = require 'kvlab.format'

local command = {
  name = 'help',
  usage = 'help [SUBCOMMAND | widths]',
  summary = 'what there is, and how to use it',
  text = 'Lists the subcommands, explains one of them, or lists the widths that a model has.',
  example = 'kvlab help widths',
  options = {},
}

function command.run(args)
  if #args > 1 then cli.usage('help: expected one subcommand, got %d', #args) end
  if args[1] == 'widths' then
    local rows = {}
    for _, field in ipairs(require('kvlab.widths').FIELDS) do rows[#rows + 1] = { '  ' .. field[1], field[3] } end
    print('Widths, as in the config.json of released models (--widths NAME=VALUE,...):')
    print(table.concat(format.table(rows, { 'l', 'l' }), '\n'))
    return
  end
  if args[1] then
    print(cli.describe(cli.load(args[1])))
    return
  end
  local rows = {}
  for _, name in ipairs(cli.order) do
    local other = cli.load(name)
    rows[#rows + 1] = { '  kvlab ' .. other.usage:gsub('%s%[.*', ''), other.summary }
  end
  print('kvlab: write a layer layout, know what its KV cache stores and reads.\n')
  print(table.concat(format.table(rows, { 'l', 'l' }), '\n'))
  print([[
  kvlab                  a prompt with kvlab loaded
  kvlab -e CODE          run one piece of Lua with kvlab loaded

kvlab help SUBCOMMAND explains one. A layout on the command line is quoted: kvlab kv 'swa*2 [full/2 reuse*5]*3'
Exit status: 0 fine, 1 the job failed, 2 bad usage.]])
end

return command
