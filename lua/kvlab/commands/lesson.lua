-- kvlab lesson [NAME]: lists the lessons, or teaches one at the prompt.
local base = require('kvlab.core').base
local cli = require 'kvlab.cli'

local command = {
  name = 'lesson',
  usage = 'lesson [NAME] [OPTIONS]',
  summary = 'lessons about KV caches, taught at the prompt',
  text = [[Without a name lists the lessons and how far each has come; a name or a number starts the prompt in that
lesson. There, typed alone, next, back, again, skip and quit move in it; answer(...) answers a question. Progress is
kept in ~/.local/state/kvlab/lessons, or under $XDG_STATE_HOME. docs/tutorial has the same lessons to read.]],
  example = 'kvlab lesson cache --all',
  options = { { 'all', nil, 'print the whole lesson without asking' } },
}

function command.run(args, options)
  if #args > 1 then cli.usage('lesson: expected one name, got %d', #args) end
  local lesson, lessons = require 'kvlab.lesson', require 'kvlab.lessons'
  local name = math.tointeger(tonumber(args[1] or '')) or args[1]
  if not name then
    if options.all then cli.usage('lesson: --all needs the name of a lesson') end
    lesson.list()
    return 0
  end
  cli.as_usage(lessons.find, name)
  local repl = require 'kvlab.repl'
  if options.all then
    local env = repl.environment(require 'kvlab')
    return lesson.all(name, env, function(text) io.stdout:write(text) end) and 0 or 1
  end
  if not base.isatty(0) then
    cli.usage('lesson: a lesson needs a terminal to be taught at; kvlab lesson %s --all prints it', name)
  end
  lesson.begin_with(name)
  return repl.run(require 'kvlab')
end

return command
