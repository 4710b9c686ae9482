-- parse.lua: the text form of a layout.
--
--   layout := part [ '|' part ]                      | ends the encoder
--   part   := { item [','] }
--   item   := ( layer | '[' part ']' ) [ ('*' | 'x' | '×') count ]
--   layer  := kind [ '/' ratio ] [ '{' field '=' value { ',' field '=' value } '}' ]
--   value  := number | word | blocks 'x' block | "quoted" | 'quoted'
--
-- Kinds may be capitalised, so that the article's [Full, Reuse×5] is a layout too.
local layer = require 'kvlab.layer'
local layout = require 'kvlab.layout'

local parse = {}

local MAX_DEPTH = 200

local function fail(at, message, ...)
  error(('layout text, column %d: ' .. message):format(at, ...), 0)
end

local function skip(state) state.at = state.text:find('[^%s]', state.at) or #state.text + 1 end

-- Takes `pattern` (anchored by the caller) at the current place, or returns nil.
local function take(state, pattern)
  local first, last, capture = state.text:find('^' .. pattern, state.at)
  if not first then return nil end
  state.at = last + 1
  return capture or state.text:sub(first, last)
end

local function here(state)
  local rest = state.text:sub(state.at, state.at + 11)
  return rest == '' and 'the end' or ("'%s'"):format(rest)
end

local function number(text)
  return math.tointeger(tonumber(text)) or tonumber(text)
end

local NUMBER = '[+-]?%d+%.?%d*[eE]?[+-]?%d*'

local function value(state)
  local quoted = take(state, '"([^"]*)"') or take(state, "'([^']*)'")
  if quoted then return quoted end
  local blocks = take(state, '(%d+)%s*[xX*]%s*%d') or take(state, '(%d+)%s*×%s*%d')
  if blocks then
    state.at = state.at - 1
    return { blocks = number(blocks), block = number(take(state, '%d+')) }
  end
  local text = take(state, '[%w_+-][%w_.+-]*')
  if not text then fail(state.at, 'expected a value, got %s', here(state)) end
  if text == 'true' then return true end
  if text == 'false' then return false end
  if text:find('^' .. NUMBER .. '$') then return number(text) end
  return text
end

local function fields(state, into)
  local open = state.at
  take(state, '{')
  skip(state)
  while not take(state, '}') do
    if state.at > #state.text then fail(open, "this '{' is never closed") end
    local at = state.at
    local name = take(state, '[%a_][%w_]*')
    if not name then fail(at, 'expected a field such as window=64, got %s', here(state)) end
    skip(state)
    if not take(state, '=') then
      fail(state.at, "expected '=' after the field '%s', got %s", name, here(state))
    end
    skip(state)
    if into[name] ~= nil then fail(at, "the field '%s' is given twice", name) end
    into[name] = value(state)
    skip(state)
    if state.at <= #state.text and not take(state, ',') and state.text:sub(state.at, state.at) ~= '}' then
      fail(state.at, "expected ',' or '}' in the fields, got %s", here(state))
    end
    skip(state)
  end
  return into
end

local function one_layer(state)
  local at = state.at
  local name = take(state, '%a[%w_]*')
  if not name then fail(at, 'expected a layer such as swa or full/2, got %s', here(state)) end
  local kind = name:lower()
  -- "reuse x5" and "reusex5": an x that is followed by a count repeats.
  if not layer.KINDS[kind] then
    local stem = kind:match('^(%a+)x%d+$')
    if stem and layer.KINDS[stem] then
      kind = stem
      state.at = at + #stem
    end
  end
  local given = {}
  if take(state, '/') then
    local from = state.at
    local text = take(state, NUMBER)
    if not text then fail(from, 'expected a ratio after %s/, got %s', kind, here(state)) end
    given.ratio = number(text)
  end
  if state.text:sub(state.at, state.at) == '{' then fields(state, given) end
  local ok, result = pcall(layer.new, kind, given)
  if not ok then fail(at, '%s', result) end
  return result
end

local part

local function item(state, depth)
  local at = state.at
  local what
  if take(state, '%[') then
    if depth >= MAX_DEPTH then fail(at, 'brackets are nested more than %d deep', MAX_DEPTH) end
    what = layout.group(part(state, depth + 1))
    if not take(state, '%]') then
      if state.at > #state.text then fail(at, "this '[' is never closed") end
      fail(state.at, "expected ']', got %s", here(state))
    end
  else
    what = one_layer(state)
  end
  skip(state)
  if take(state, '%*') or take(state, '×') or take(state, '[xX]%f[%d%s]') then
    skip(state)
    local from = state.at
    local text = take(state, NUMBER)
    if not text then fail(from, 'expected how often to repeat, got %s', here(state)) end
    local n = math.tointeger(number(text))
    if not n or n < 1 then fail(from, 'repeat count %s: expected a whole number, 1 or more', text) end
    what = what * n
    skip(state)
  end
  return what
end

function part(state, depth)
  local items = {}
  skip(state)
  local start = state.at
  while state.at <= #state.text and not state.text:find('^[%]|]', state.at) do
    items[#items + 1] = item(state, depth)
    if take(state, ',') then skip(state) end
  end
  if #items == 0 then fail(start, 'expected a layer, got %s', here(state)) end
  return items
end

-- parse.layout(text) -> layout. Errors name the column.
function parse.layout(text)
  if type(text) ~= 'string' then error(('layout text: expected a text, got %s'):format(type(text)), 0) end
  if not text:find('%S') then error("layout text is empty; an example: 'swa*2 [full/2 reuse*5]*3'", 0) end
  local state = { text = text, at = 1 }
  local first, second = part(state, 0), nil
  if take(state, '|') then second = part(state, 0) end
  if state.at <= #text then
    if text:sub(state.at, state.at) == '|' then
      fail(state.at, "a second '|': a layout has one encoder and one decoder")
    end
    fail(state.at, "']' closes nothing")
  end
  return layout.of_parts(first, second)
end

return parse
