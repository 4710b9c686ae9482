-- training_progress.lua: tells how a training goes, on stderr: at a terminal one line that is rewritten, elsewhere a
-- line now and then. Evaluations get a line of their own.
local core = require 'kvlab.core'

local progress = {}

local class = {}
local meta = { __index = class }

local PAUSE <const> = 0.1 -- seconds between two lines at a terminal
local PARTS <const> = 10  -- lines of a whole run elsewhere

-- progress.duration(75) -> '1:15'
function progress.duration(seconds)
  local s = math.floor(seconds + 0.5)
  if s < 3600 then return ('%d:%02d'):format(s // 60, s % 60) end
  return ('%d:%02d:%02d'):format(s // 3600, s // 60 % 60, s % 60)
end

local function thousands(n)
  local text = ('%d'):format(math.floor(n + 0.5)):reverse():gsub('(%d%d%d)', '%1,'):reverse()
  return (text:gsub('^,', ''))
end

-- progress.new(steps) -> for a run of so many steps.
function progress.new(steps)
  return setmetatable({ steps = steps, terminal = core.base.isatty(2), began = core.base.now(), said = 0 }, meta)
end

local function write(self, text, stays)
  if self.terminal then io.stderr:write('\r\27[K', text, stays and '\n' or '')
  elseif stays then io.stderr:write(text, '\n') end
end

-- p:step(training, line): a step is done; `line` is what was logged of it, if anything was.
function class:step(training, line)
  local step, now = training.step, core.base.now()
  if not self.first then self.first, self.began = step, now end
  local done = step - self.first
  local text = ('step %d/%d'):format(step, self.steps)
  local loss = line and line.loss or training.state.loss
  if loss then text = ('%s  loss %.4f'):format(text, loss) end
  if line and line.val_loss then
    text = ('%s  val_loss %.4f  accuracy %.4f'):format(text, line.val_loss, line.accuracy)
  end
  if done > 0 then
    local left = (now - self.began) / done * (self.steps - step)
    text = ('%s  %s tokens/s'):format(text, thousands(training.state.tokens / training.state.seconds))
    if step < self.steps then text = ('%s  %s left'):format(text, progress.duration(left)) end
  end
  if line and line.val_loss then return write(self, text, true) end
  if self.terminal then
    if now - self.said < PAUSE then return end
    self.said = now
    return write(self, text, false)
  end
  if step * PARTS // self.steps > (step - 1) * PARTS // self.steps then write(self, text, true) end
end

-- p:close(): the line is done with.
function class:close()
  if self.terminal then io.stderr:write('\r\27[K') end
end

return progress
