-- progress.lua: how far long work is: a line on the terminal that is drawn over and vanishes when the work ends.
--
--   local bar <close> = progress.start('filling the caches', 40)
--   bar:to(7.5)
--
-- Nothing is drawn in the first half second, more often than ten times a second, or where no line can be drawn over.
-- Work inside work is not shown: there is one line. The library's own bars appear only where a front end says so
-- (progress.show_library): a program that uses kvlab has its terminal to itself.
local base = require('kvlab.core').base
local terminal = require 'kvlab.terminal'

local progress = {}

local FIRST <const>, AGAIN <const> = 0.5, 0.1 -- seconds until a bar is drawn first, and again
local BAR <const> = 20                        -- columns of the bar itself

local library = false
local current -- the bar that is shown; work that starts while there is one is a part of its work

local class = {}
class.__index = class
local none = setmetatable({}, { __index = { to = function() end }, __close = function() end })

-- duration(s) -> '45 s', '2 min 05 s', '1 h 10 min'
function progress.duration(s)
  if s < 60 then return ('%.0f s'):format(s) end
  if s < 3600 then return ('%d min %02d s'):format(s // 60, s % 60 // 1) end
  return ('%d h %02d min'):format(s // 3600, s % 3600 // 60)
end

-- text(label, done, total, elapsed, columns) -> the line, no wider than that.
function progress.text(label, done, total, elapsed, columns)
  local share = total > 0 and math.max(0, math.min(1, done / total)) or 1
  local full = math.floor(share * BAR)
  local parts = { ('%3d %%'):format(math.floor(share * 100)), ('[%s%s]'):format(('#'):rep(full), ('-'):rep(BAR - full)),
    ('%d/%d'):format(math.floor(done), total), progress.duration(elapsed) }
  if share > 0 then parts[4] = ('%s, about %s left'):format(parts[4], progress.duration(elapsed / share - elapsed)) end
  local line = label
  for _, part in ipairs(parts) do
    local longer = line == '' and part or line .. '  ' .. part
    if terminal.width(longer) > columns then break end
    line = longer
  end
  return terminal.cut(line, columns)
end

local function erase(self)
  if self.drawn > 0 then io.stderr:write('\r', (' '):rep(self.drawn), '\r') end
  self.drawn = 0
end

local function draw(self, done, now)
  local line = terminal.fit(progress.text(self.label, done, self.total, now - self.began, terminal.columns() - 1))
  local wide = terminal.width(line)
  -- The cursor goes back to the left, so that whatever is printed next does not begin in the middle.
  io.stderr:write('\r', line, (' '):rep(self.drawn - wide), '\r')
  self.drawn, self.due = wide, now + AGAIN
end

-- bar:to(done): so much of the total is done.
function class:to(done)
  local now = base.now()
  if now >= self.due then draw(self, done, now) end
end

function class:__close()
  erase(self)
  if current == self then current = nil end
end

local function start(label, total)
  if current or not terminal.can_redraw() then return none end
  local now = base.now()
  current = setmetatable({ label = terminal.visible(label), total = total, began = now, due = now + FIRST, drawn = 0 },
    class)
  return current
end

-- start(label, total) -> a bar of the library, to be closed; it does nothing unless show_library was called.
function progress.start(label, total)
  return library and start(label, total) or none
end

function progress.show_library(on) library = on end

-- erase(): before something else is printed; the bar comes back with the next step.
function progress.erase()
  if current then erase(current) end
end

-- over(f) -> f that a bar makes room for: print and io.write, for who prints while work goes on.
function progress.over(f)
  return function(...)
    progress.erase()
    return f(...)
  end
end

-- active(): is there a bar, drawn or not?
function progress.active() return current ~= nil end

-- reset(): what was broken off in a way that closes nothing (a coroutine that is never resumed) is not shown any more.
function progress.reset()
  progress.erase()
  current = nil
end

local function whole(value, what)
  local n = type(value) == 'number' and math.tointeger(value)
  if n then return n end
  error(('progress: %s is %s, expected a whole number: for step in kv.progress(1, 300, \'training\') do'):format(what,
    type(value) == 'string' and ("'%s'"):format(value) or tostring(value)), 0)
end

-- loop(first, last [, label]): kv.progress, see meta/prompt.lua.
function progress.loop(first, last, label)
  first, last = whole(first, 'first'), whole(last, 'last')
  if label ~= nil and type(label) ~= 'string' then
    error(('progress: the label is a %s, expected text'):format(type(label)), 0)
  end
  local bar = start(label or '', last - first + 1)
  local at = first - 1
  return function()
    if at >= last then return nil end
    bar:to(at - first + 1)
    at = at + 1
    return at
  end, nil, nil, bar
end

return progress
