-- terminal.lua: what the terminal can show: how many columns and lines, which characters, whether a line can be drawn
-- over.
-- Colour is never used, so NO_COLOR asks for nothing that is not so already.
local base = require('kvlab.core').base

local terminal = {}

-- What stands for a character that an ASCII terminal does not have.
local ASCII = { ['×'] = 'x', ['·'] = '.', ['−'] = '-', ['–'] = '-', ['—'] = '-', ['…'] = '...', ['≤'] = '<=',
  ['≥'] = '>=', ['→'] = '->', ['←'] = '<-', ['█'] = '#', ['▒'] = '=', ['▚'] = '+', ['░'] = '.',
  ['‘'] = "'", ['’'] = "'", ['“'] = '"', ['”'] = '"' }

function terminal.utf8()
  local locale
  for _, name in ipairs { 'LC_ALL', 'LC_CTYPE', 'LANG' } do
    local value = os.getenv(name)
    if not locale and value and value ~= '' then locale = value end
  end
  return locale ~= nil and locale:lower():find('utf%-?8') ~= nil
end

-- columns() -> how wide a line may be, 20 to 1000: COLUMNS, what the terminal says, or 80. Readline keeps COLUMNS
-- as the terminal is.
function terminal.columns()
  local said = math.tointeger(tonumber(os.getenv('COLUMNS') or ''))
  return math.max(20, math.min(said and said > 0 and said or base.screen() or 80, 1000))
end

-- lines() -> how many lines the screen has, 5 to 1000, or nil where it is no terminal or does not say.
function terminal.lines()
  if not base.isatty(1) then return nil end
  local said = math.tointeger(tonumber(os.getenv('LINES') or ''))
  local lines = said and said > 0 and said or select(2, base.screen())
  return lines and math.max(5, math.min(lines, 1000))
end

-- can_redraw(): is standard error a terminal on which a line can be drawn over the last one?
function terminal.can_redraw()
  local kind = os.getenv('TERM') or ''
  return base.isatty(2) and kind ~= '' and kind ~= 'dumb'
end

-- visible(text) -> the text without characters that steer a terminal, or are none: \27, \255.
function terminal.visible(text)
  text = text:gsub('[%c\127]', function(c)
    if c ~= '\n' and c ~= '\t' then return ('\\%d'):format(c:byte()) end
  end)
  local parts, at = {}, 1
  while true do
    local length, bad = utf8.len(text, at)
    if length then break end
    parts[#parts + 1] = text:sub(at, bad - 1) .. ('\\%d'):format(text:byte(bad))
    at = bad + 1
  end
  return #parts == 0 and text or table.concat(parts) .. text:sub(at)
end

-- fit(text) -> the text in ASCII when it goes to a terminal that has nothing else.
function terminal.fit(text)
  if not text:find('[\128-\255]') or not base.isatty(1) or terminal.utf8() then return text end
  return (text:gsub(utf8.charpattern, function(c) return #c > 1 and (ASCII[c] or '?') or nil end))
end

-- width(text) -> its columns; cut(text, columns) -> a line that is no wider, with an end that says so.
function terminal.width(text) return utf8.len(text) or #text end

function terminal.cut(text, columns)
  if terminal.width(text) <= columns then return text end
  local keep = math.max(0, columns - 4)
  return text:sub(1, (utf8.offset(text, keep + 1) or keep + 1) - 1) .. ' ...'
end

-- wrap(text, columns, indent, hanging) -> lines of the words of a paragraph, each after the indent ('' when there is
-- none), those after the first after `hanging`, when it is given.
function terminal.wrap(text, columns, indent, hanging)
  indent = indent or ''
  local lines, line, empty = {}, indent, true
  for word in text:gmatch('%S+') do
    if not empty and terminal.width(line) + 1 + terminal.width(word) > columns then
      lines[#lines + 1], line, empty = line, hanging or indent, true
    end
    line, empty = empty and line .. word or line .. ' ' .. word, false
  end
  lines[#lines + 1] = line
  return lines
end

return terminal
