-- history.lua: what was typed at the prompt, in the file `history` of kvlab.state.
local state = require 'kvlab.state'

local history = {}

local HISTORY_LINES <const> = 1000 -- that come back in the next session; the file keeps all

-- open() -> a function that appends a line, the last lines of the sessions before. A line is in the
-- file before it is run.
function history.open()
  local append, lines = state.open('history', 'the history is not kept')
  local recent = table.move(lines, math.max(1, #lines - HISTORY_LINES + 1), #lines, 1, {})
  return function(line)
    if line:find('%S') then append(line) end
  end, recent
end

return history
