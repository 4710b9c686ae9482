-- pty.lua: sessions of the prompt on a pseudo-terminal that `script` (util-linux, in every Debian) provides. A session is
-- driven by waiting for what it prints, never by time alone.
local core = require 'kvlab.core'

local pty = {}

pty.LAUNCHER = [[os.exit(require('kvlab.repl').run(require 'kvlab'))]]
pty.has_readline = core.readline.open(function() end)

function pty.quote(text) return "'" .. text:gsub("'", [['\'']]) .. "'" end

function pty.slurp(path)
  local file <close> = io.open(path, 'rb')
  return file and file:read('a') or ''
end

function pty.directory()
  local name = os.tmpname()
  os.remove(name)
  os.execute('mkdir ' .. pty.quote(name))
  return name
end

local quote, slurp = pty.quote, pty.slurp

local Terminal = {}
Terminal.__index = Terminal

-- start(options): a session. readline = false hides the readline library; state: where history is; term, columns, rows:
-- the terminal; env: more variables, as the shell takes them; prepare: Lua that runs before the prompt.
function pty.start(options)
  local self = setmetatable({ dir = pty.directory(), seen = 0 }, Terminal)
  local launcher, fifo = self.dir .. '/launch.lua', self.dir .. '/keys'
  self.log = self.dir .. '/log'
  self.state = options.state or self.dir .. '/state'
  local file <close> = assert(io.open(launcher, 'w'))
  if options.readline == false then
    file:write("require('kvlab.core').readline.open = function() return false end\n")
  end
  file:write(options.prepare or '', '\n', pty.LAUNCHER)
  file:close()
  os.execute('mkfifo ' .. quote(fifo))
  -- The sanitizer's run-time belongs to lua5.4 alone, and readline keeps memory to its end.
  local preload = os.getenv('LD_PRELOAD') or ''
  -- A plain sh dies of the Ctrl-C that its child survives, unless it has a trap of its own.
  local command = ('trap : INT; %s %s lua5.4 %s; echo exit=$?'):format(
    options.columns and ('stty cols %d rows %d;'):format(options.columns, options.rows or 0) or '',
    preload ~= '' and 'LD_PRELOAD=' .. quote(preload) .. ' ASAN_OPTIONS=detect_leaks=0' or '',
    quote(launcher))
  self.process = io.popen(('unset LD_PRELOAD; TERM=%s INPUTRC=/dev/null HOME=%s XDG_STATE_HOME=%s %s '
    .. 'timeout 60 script -qfc %s %s < %s > /dev/null 2>&1'):format(options.term or 'dumb', quote(self.dir),
    quote(self.state), options.env or '', quote(command), quote(self.log), quote(fifo)))
  self.keys = assert(io.open(fifo, 'w'))
  self.keys:setvbuf('no')
  return self
end

-- wait(text) -> seconds until it is shown, after what was waited for before.
function Terminal:wait(text)
  local began = core.base.now()
  while core.base.now() - began < 20 do
    local log = slurp(self.log)
    if #log > 1000000 then error('the session prints without end: ' .. log:sub(-200), 2) end
    local from, to = log:find(text, self.seen + 1, true)
    if from then
      self.last, self.seen = log:sub(self.seen + 1, to), to
      return core.base.now() - began
    end
    core.system.sleep(0.01)
  end
  error(('waited for %q, the terminal shows:\n%s'):format(text, slurp(self.log):sub(self.seen + 1)), 2)
end

-- Types `keys`, then waits for each text in turn; the seconds until the first is there.
function Terminal:type(keys, ...)
  self.keys:write(keys)
  local took
  for _, text in ipairs { ... } do
    local seconds = self:wait(text)
    took = took or seconds
  end
  return took
end

function Terminal:finish()
  self.keys:close()
  self.process:close()
  local log = slurp(self.log)
  os.execute('rm -r ' .. quote(self.dir))
  return log
end

return pty
