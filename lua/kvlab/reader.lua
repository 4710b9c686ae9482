-- reader.lua: reads the lines of the prompt. A reader is a function(prompt) -> line, nil at the end of the input, or
-- false when the line was given up by Ctrl-C.
--
-- Where the readline library is there (core.readline), it edits the line one key at a time: between keys this
-- file waits itself, because a readline that waits would not give a line up on Ctrl-C.
local core = require 'kvlab.core'
local base = core.base

local reader = {}

-- plain(terminal): lines as they come; on a terminal after a prompt.
function reader.plain(terminal)
  return function(prompt)
    if terminal then
      local event
      repeat
        io.stdout:write(prompt)
        io.stdout:flush()
        event = base.wait_input()
      until event ~= 'resumed'
      if event == 'interrupted' then
        io.stdout:write('\n')
        return false
      end
    end
    local line = io.read('l')
    if terminal and base.clear_interrupt() then return false end
    if terminal and not line then io.stdout:write('\n') end
    return line
  end
end

-- editing(recent, complete): with the lines of earlier sessions, and TAB; nil without the readline library.
-- A paste of several lines comes as one text with newlines.
function reader.editing(recent, complete)
  local editor = core.readline
  if not editor.open(complete) then return nil end
  local last
  local function add_history(line)
    if line:find('%S') and line ~= last then editor.add_history(line) end
    last = line
  end
  for _, line in ipairs(recent) do add_history(line) end
  return function(prompt)
    io.stdout:flush()
    editor.begin(prompt)
    while true do
      local event, line = base.wait_input(), nil
      if event == 'ready' then
        line = editor.key()
      elseif event == 'resumed' then
        editor.renew()
      else
        editor.cancel()
        io.stdout:write('\n')
        return false
      end
      if line then
        add_history(line)
        return line
      elseif line == false then
        io.stdout:write('\n')
        return nil
      end
    end
  end
end

return reader
