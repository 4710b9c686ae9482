-- training_progress.lua: tells how a training goes, on stderr: one line that is rewritten where a line can be drawn
-- over, elsewhere a line now and then. Evaluations get a line of their own.
local base = require('kvlab.core').base
local bars = require 'kvlab.progress'
local format = require 'kvlab.format'
local terminal = require 'kvlab.terminal'

local progress = {}

local class = {}
local meta = { __index = class }

local PAUSE <const> = 0.1 -- seconds between two lines at a terminal
local PARTS <const> = 10  -- lines of a whole run elsewhere

-- progress.new(steps) -> for a run of so many steps.
function progress.new(steps)
  return setmetatable({ steps = steps, redraws = terminal.can_redraw(), began = base.now(), said = 0 }, meta)
end

local function write(self, text, stays)
  if self.redraws then io.stderr:write('\r\27[K', text, stays and '\n' or '')
  elseif stays then io.stderr:write(text, '\n') end
end

-- p:step(training, line): a step is done; `line` is what was logged of it, if anything was.
function class:step(training, line)
  local step, now = training.step, base.now()
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
    text = ('%s  %s tokens/s'):format(text, format.number(training.state.tokens / training.state.seconds, 0))
    if step < self.steps then text = ('%s  %s left'):format(text, bars.duration(left)) end
  end
  if line and line.val_loss then return write(self, text, true) end
  if self.redraws then
    if now - self.said < PAUSE then return end
    self.said = now
    return write(self, text, false)
  end
  if step * PARTS // self.steps > (step - 1) * PARTS // self.steps then write(self, text, true) end
end

-- p:close(): the line is done with.
function class:close()
  if self.redraws then io.stderr:write('\r\27[K') end
end

return progress
