-- history.lua: what was typed at the prompt, in the file `history` of kvlab.state.
local state = require 'kvlab.state'

local history = {}

local MOST_LINES <const> = 1000 -- that come back in the next session
local MOST_BYTES <const> = 4096 -- of a line that is kept: more is data, not typing

-- open() -> a function that appends a line, the last lines of the sessions before. A line is in the
-- file before it is run. Blank lines, and one that is the same as the line before, are not kept.
function history.open()
  local append, lines = state.open('history', 'the history is not kept')
  local recent = {}
  for i = math.max(1, #lines - MOST_LINES + 1), #lines do
    -- Rubbish in the file must not reach the terminal.
    if #lines[i] <= MOST_BYTES and utf8.len(lines[i]) and not lines[i]:find('[\0-\8\10-\31\127]') then
      recent[#recent + 1] = lines[i]
    end
  end
  local last = recent[#recent]
  return function(line)
    if #line > MOST_BYTES or not line:find('%S') or line == last then return end
    last = line
    append(line)
  end, recent
end

return history
