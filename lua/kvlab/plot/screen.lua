-- plot/screen.lua: what pictures of text have in common: characters, widths, labels, and where values come from.
local ops = require 'kvlab.ops'
local tape = require 'kvlab.tape'
local terminal = require 'kvlab.terminal'

local screen = {}

-- UTF-8 when the locale can show it, ASCII otherwise; the option `ascii` decides when it is given.
function screen.ascii(option)
  if option ~= nil then return option and true or false end
  return not terminal.utf8()
end

screen.columns, screen.width = terminal.columns, terminal.width

-- A label as one line of valid UTF-8: it must not break a picture, nor the file that it is written to.
function screen.clean(value)
  local text = tostring(value):gsub('[%c\127]+', ' ')
  while true do
    local ok, at = utf8.len(text)
    if ok then return text end
    text = text:sub(1, at - 1) .. '?' .. text:sub(at + 1)
  end
end

-- cut(text, width) -> the text, with an end that says so when it is longer.
function screen.cut(text, width)
  if screen.width(text) <= width then return text end
  if width <= 3 then return text:sub(1, (utf8.offset(text, width + 1) or #text + 1) - 1) end
  return text:sub(1, utf8.offset(text, width - 1) - 1) .. '..'
end

function screen.pad(text, width, right)
  local gap = (' '):rep(width - screen.width(text))
  return right and gap .. text or text .. gap
end

-- wrap(parts, width, indent) -> lines: the parts with two spaces between them, as many in a line as fit.
function screen.wrap(parts, width, indent)
  local lines, line = {}, nil
  for _, part in ipairs(parts) do
    part = screen.cut(part, width - #indent)
    if line and screen.width(line) + 2 + screen.width(part) <= width then
      line = line .. '  ' .. part
    else
      if line then lines[#lines + 1] = line end
      line = indent .. part
    end
  end
  lines[#lines + 1] = line
  return lines
end

-- words(text, width) -> lines of whole words; none of a text without any.
function screen.words(text, width) return text:find('%S') and terminal.wrap(text, width) or {} end

-- list(value) -> a tensor, or the value of a Var, as nested lists; anything else as it is; and its rank.
function screen.list(value)
  if not ops.is_tensor(value) then return value end
  if tape.is(value) then value = value.value end
  return value:totable(), #value.shape
end

function screen.finite(x) return x == x and x ~= math.huge and x ~= -math.huge end

-- problem(where, text, ...) raises.
function screen.problem(where, text, ...) error(where .. ': ' .. text:format(...), 0) end

-- size(value, default, low, high, where): a number of characters.
function screen.size(value, default, low, high, where)
  if value == nil then return default end
  local n = type(value) == 'number' and math.tointeger(value)
  if not n or n < low or n > high then
    screen.problem(where, 'expected a whole number from %d to %d, got %s', low, high, tostring(value))
  end
  return n
end

return screen
