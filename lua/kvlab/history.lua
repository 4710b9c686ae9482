-- history.lua: what was typed at the prompt, in ${XDG_STATE_HOME:-~/.local/state}/kvlab/history.
-- The file is only ever appended to, a line at a time, so that sessions side by side and a session that is
-- killed lose nothing.
local base = require('kvlab.core').base

local history = {}

local HISTORY_LINES <const> = 1000 -- that come back in the next session; the file keeps all

local function history_path()
  local state, home = os.getenv('XDG_STATE_HOME'), os.getenv('HOME')
  if state and state:sub(1, 1) == '/' then return state .. '/kvlab/history' end
  return home and home ~= '' and home .. '/.local/state/kvlab/history' or nil
end

-- open() -> a function that appends a line, the last lines of the sessions before. A line is in the
-- file before it is run. What cannot be written is said once, and the session goes on.
function history.open()
  local path = history_path()
  if not path then return function() end, {} end
  local noted = false
  local function note(why)
    if not noted then io.stderr:write('the history is not kept: ', tostring(why), '\n') end
    noted = true
  end
  for at in path:gmatch('()/') do
    if at > 1 then
      local ok, why = base.make_dir(path:sub(1, at - 1))
      if not ok then note(why) break end
    end
  end
  local lines = {}
  local old = io.open(path, 'rb')
  if old and old:read(0) then
    for line in old:lines() do lines[#lines + 1] = line end
  end
  if old then old:close() end
  local recent = table.move(lines, math.max(1, #lines - HISTORY_LINES + 1), #lines, 1, {})
  return function(line)
    if noted or not line:find('%S') then return end
    local file, why = io.open(path, 'ab')
    local ok = file and file:write(line, '\n')
    if file then
      local closed, problem = file:close()
      ok, why = ok and closed, problem
    end
    if not ok then note(why or path) end
  end, recent
end

return history
