-- state.lua: what sessions leave for later ones, each a file of lines in ${XDG_STATE_HOME:-~/.local/state}/kvlab.
-- Such a file is only ever appended to, a line in one write, so that sessions side by side and a session that is
-- killed lose nothing. One that has grown gets the ending .old, in place of an earlier one, and a new one begins.
local core = require 'kvlab.core'

local base, system = core.base, core.system
local state = {}

local MOST_BYTES <const> = 256 << 10 -- of a file, before it is put aside

local function path_of(name)
  local folder, home = os.getenv('XDG_STATE_HOME'), os.getenv('HOME')
  if not folder or folder:sub(1, 1) ~= '/' then folder = home and home ~= '' and home .. '/.local/state' end
  return folder and ('%s/kvlab/%s'):format(folder, name)
end

local function is_file(path)
  local about = system.stat(path)
  return about and about.kind == 'file' and about
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
  local about = system.stat(path)
  if about and about.kind == 'file' and about.bytes > MOST_BYTES then system.rename(path, path .. '.old') end
  local lines = {}
  for _, part in ipairs { path .. '.old', path } do
    local file = is_file(part) and io.open(part, 'rb')
    if file then
      for line in file:lines() do lines[#lines + 1] = line end
      file:close()
    end
  end
  return function(line)
    if noted then return end
    local ok, why = system.append(path, line .. '\n')
    if not ok then note(why) end
  end, lines
end

return state
