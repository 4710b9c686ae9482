-- pager.lua: a text that is longer than the screen, a screenful at a time: the rest waits until `more` is typed. Only
-- at the prompt, on a terminal that says how many lines it has; elsewhere a text is written whole.
local terminal = require 'kvlab.terminal'

local pager = {}

local KEPT <const> = 2 -- lines of the screen for the note and the prompt

local on = false
local rest -- lines that wait, or nil

function pager.at_prompt(yes) on = yes end

local function write(lines)
  local screen = on and terminal.lines()
  local many = screen and #lines >= screen and screen - KEPT or #lines
  io.stdout:write(table.concat(lines, '\n', 1, many), '\n')
  rest = many < #lines and table.move(lines, many + 1, #lines, 1, {}) or nil
  if rest then io.stdout:write(('-- %d more lines; `more` shows them\n'):format(#rest)) end
end

-- put(text): writes the lines of a text, or as many as the screen has.
function pager.put(text)
  local lines = {}
  for line in (text .. '\n'):gmatch('(.-)\n') do lines[#lines + 1] = line end
  write(lines)
end

-- more() -> true when a text waited, of which it wrote the next lines.
function pager.more()
  if rest then write(rest) return true end
  return false
end

return pager
