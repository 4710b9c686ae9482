-- state.lua: what sessions leave for later ones, each a file of lines in ${XDG_STATE_HOME:-~/.local/state}/kvlab.
-- Such a file is only ever appended to, a line at a time, so that sessions side by side and a session that is killed
-- lose nothing.
local base = require('kvlab.core').base

local state = {}

local function path_of(name)
  local folder, home = os.getenv('XDG_STATE_HOME'), os.getenv('HOME')
  if not folder or folder:sub(1, 1) ~= '/' then folder = home and home ~= '' and home .. '/.local/state' end
  return folder and ('%s/kvlab/%s'):format(folder, name)
end

-- open(name, complaint) -> a function that appends a line, and the lines that are there. What cannot be written is
-- said once, after the complaint, and the session goes on.
function state.open(name, complaint)
  local path = path_of(name)
  if not path then return function() end, {} end
  local noted = false
  local function note(why)
    if not noted then io.stderr:write(complaint, ': ', tostring(why), '\n') end
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
  return function(line)
    if noted then return end
    local file, why = io.open(path, 'ab')
    local ok = file and file:write(line, '\n')
    if file then
      local closed, problem = file:close()
      ok, why = ok and closed, problem
    end
    if not ok then note(why or path) end
  end, lines
end

return state
