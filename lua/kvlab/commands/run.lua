-- kvlab run FILE [ARGS]: runs an experiment.
local cli = require 'kvlab.cli'
local progress = require 'kvlab.progress'

local command = {
  name = 'run',
  usage = 'run FILE.lua [ARGUMENTS]',
  summary = 'run an experiment file',
  text = [[Runs a Lua file with kvlab loaded; the arguments after it are the file's own (`...`). It is your own program
and may do anything Lua can. A path that is not found here is looked up in the kvlab folder.]],
  example = 'kvlab run experiments/generations/run.lua',
  options = {},
  passes_on = true,
}

local function readable(path)
  local file = io.open(path)
  if not file then return false end
  local ok = file:read(0) ~= nil or file:seek('end') == 0 -- a folder opens, but does not read
  file:close()
  return ok
end

function command.run(args)
  local path = args[1]
  if not path then cli.usage('run: expected a file: kvlab run experiments/generations/run.lua') end
  if not readable(path) and cli.root and readable(cli.root .. '/' .. path) then
    path = cli.root .. '/' .. path
  end
  if not readable(path) then cli.failed('run: cannot read %s', path) end
  local chunk, problem = loadfile(path, 't')
  if not chunk then cli.failed('%s', problem) end
  -- This process is the program's: a bar of kv.progress goes before its print and io.write.
  _G.print, io.write = progress.over(print), progress.over(io.write) -- luacheck: ignore 122
  local result = chunk(table.unpack(args, 2))
  if type(result) == 'table' then cli.failed('%s describes a sweep: kvlab sweep %s', path, path) end
  return result
end

return command
