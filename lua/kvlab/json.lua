-- json.lua: JSON text (RFC 8259) from Lua values and back.
--
-- Made for figures that must be exact: a Lua integer is written digit by digit and read back as an integer; a
-- value of another kind writes itself through `__tojson` (its text is taken as it is, so a count beyond 2^63
-- stays exact); a float is written with the fewest digits that read back to the same bits, and always looks
-- like a float (2.0, not 2). The output is a function of the value: keys are sorted unless json.object gives
-- their order. NaN and infinity do not exist in JSON and become null.
--
-- Reading is strict: what the RFC does not allow is an error that says line and column.
local opts = require 'kvlab.options'

local json = {}

local MAX_DEPTH <const> = 512 -- of arrays and objects inside each other, both ways

-- json.null stands for null; like every table it counts as true.
json.null = setmetatable({}, {
  __name = 'json.null',
  __tostring = function() return 'null' end,
  __tojson = function() return 'null' end,
  __newindex = function() error('json.null has no fields', 2) end,
})

local Array = { __name = 'json.array' }
local Object = { __name = 'json.object' }

-- json.array(t) -> a copy of the list t that is written as an array even when it is empty.
function json.array(t)
  if type(t) ~= 'table' then error('json.array: expected a table, got ' .. type(t), 2) end
  return setmetatable(table.move(t, 1, #t, 1, {}), Array)
end

-- json.object{ {'key', value}, ... } -> an object that is written in this order. A pair without a value is
-- left out, so that an optional field needs no special case; json.null writes null.
function json.object(pairs_in_order)
  if type(pairs_in_order) ~= 'table' then
    error('json.object: expected a list of pairs, got ' .. type(pairs_in_order), 2)
  end
  local object, seen = {}, {}
  for index, pair in ipairs(pairs_in_order) do
    local key = type(pair) == 'table' and pair[1]
    if type(key) ~= 'string' then
      error(("json.object: entry %d is not a pair {'key', value}"):format(index), 2)
    end
    if seen[key] then error(("json.object: the key '%s' is there twice"):format(key), 2) end
    seen[key] = true
    if pair[2] ~= nil then object[#object + 1] = { key, pair[2] } end
  end
  return setmetatable(object, Object)
end

-- --- writing ----------------------------------------------------------------------------------------

local escapes = { ['"'] = '\\"', ['\\'] = '\\\\', ['\b'] = '\\b', ['\f'] = '\\f', ['\n'] = '\\n',
  ['\r'] = '\\r', ['\t'] = '\\t' }
local unescapes = { ['"'] = '"', ['\\'] = '\\', ['/'] = '/', b = '\b', f = '\f', n = '\n', r = '\r',
  t = '\t' }

local function escape(char)
  return escapes[char] or ('\\u%04x'):format(char:byte())
end

local function fail(state, message)
  local path = #state.path > 0 and ' at ' .. table.concat(state.path, '.') or ''
  error('json.encode: ' .. message .. path, 0)
end

local function encode_string(state, text)
  local _, bad = utf8.len(text)
  if bad then fail(state, ('the string %q is not UTF-8 (byte %d)'):format(text:sub(1, 40), bad)) end
  return '"' .. text:gsub('[\0-\31"\\]', escape) .. '"'
end

local function encode_float(x)
  if x ~= x or x == math.huge or x == -math.huge then return 'null' end
  -- Any 15 digits survive a double, so %.15g drops what is not needed; below the normal range fewer do.
  local text
  for digits = math.abs(x) < 0x1p-1022 and 1 or 15, 17 do
    text = ('%.' .. digits .. 'g'):format(x)
    if tonumber(text) == x then break end
  end
  return text:find('[.e]') and text or text .. '.0'
end

local encode_value

-- The keys of a plain table: the count of its list part, or its sorted string keys.
local function shape(state, t)
  local count, keys = #t, {}
  for key in pairs(t) do
    if type(key) == 'string' then
      keys[#keys + 1] = key
    elseif math.type(key) ~= 'integer' or key < 1 or key > count then
      fail(state, ('a table has the key %s; keys are strings, or 1 to #t without holes')
        :format(tostring(key)))
    end
  end
  if count > 0 and #keys > 0 then
    fail(state, ("a table is both a list of %d and has the key '%s'"):format(count, keys[1]))
  end
  table.sort(keys)
  return count, keys
end

-- Writes `count` members between two brackets; member(i) writes the i-th.
local function encode_members(state, open, close, count, member)
  local out, depth = state.out, state.depth + 1
  if count == 0 then
    out[#out + 1] = open .. close
    return
  end
  if depth > MAX_DEPTH then fail(state, ('more than %d levels'):format(MAX_DEPTH)) end
  state.depth = depth
  local feed = state.indent and '\n' .. (' '):rep(state.indent * depth) or ''
  out[#out + 1] = open
  for i = 1, count do
    out[#out + 1] = (i > 1 and ',' or '') .. feed
    member(i)
  end
  state.depth = depth - 1
  out[#out + 1] = (state.indent and '\n' .. (' '):rep(state.indent * (depth - 1)) or '') .. close
end

local function encode_table(state, t)
  if state.open[t] then fail(state, 'a table contains itself') end
  state.open[t] = true
  local path = state.path
  local meta = getmetatable(t)
  local function member(key, value)
    path[#path + 1] = tostring(key)
    encode_value(state, value)
    path[#path] = nil
  end
  local function named(key, value)
    state.out[#state.out + 1] = encode_string(state, key) .. (state.indent and ': ' or ':')
    member(key, value)
  end
  if meta == Object then
    encode_members(state, '{', '}', #t, function(i) named(t[i][1], t[i][2]) end)
  else
    local count, keys = shape(state, t)
    if meta == Array and #keys > 0 then fail(state, ("an array has the key '%s'"):format(keys[1])) end
    if meta == Array or count > 0 then
      encode_members(state, '[', ']', count, function(i) member(i, t[i]) end)
    else
      encode_members(state, '{', '}', #keys, function(i) named(keys[i], t[keys[i]]) end)
    end
  end
  state.open[t] = nil
end

function encode_value(state, value)
  local out, kind = state.out, type(value)
  local meta = (kind == 'table' or kind == 'userdata') and getmetatable(value)
  local tojson = type(meta) == 'table' and meta.__tojson
  if tojson then
    local text = tojson(value)
    if type(text) ~= 'string' then fail(state, '__tojson returned ' .. type(text) .. ', not JSON text') end
    out[#out + 1] = text
  elseif kind == 'table' then
    encode_table(state, value)
  elseif kind == 'string' then
    out[#out + 1] = encode_string(state, value)
  elseif math.type(value) == 'float' then
    out[#out + 1] = encode_float(value)
  elseif kind == 'number' or kind == 'boolean' then
    out[#out + 1] = tostring(value)
  else
    fail(state, ('cannot write a %s'):format(kind))
  end
end

-- json.encode(value, {indent = n}) -> text. Without indent everything is on one line.
function json.encode(value, options)
  opts.check(options, { 'indent' }, 'json.encode', 'option')
  local indent = options and options.indent
  if indent ~= nil and (math.type(indent) ~= 'integer' or indent < 0 or indent > 16) then
    error(('json.encode: indent = %s; expected an integer from 0 to 16'):format(tostring(indent)), 2)
  end
  local state = { out = {}, path = {}, open = {}, depth = 0, indent = indent }
  encode_value(state, value)
  return table.concat(state.out)
end

-- --- reading ----------------------------------------------------------------------------------------

-- Raises an error that names line and column (in characters) of byte `pos`.
local function reject(text, pos, message)
  local before = text:sub(1, pos - 1)
  local _, lines = before:gsub('\n', '')
  local line = before:match('[^\n]*$')
  error(('json.decode: line %d, column %d: %s'):format(lines + 1, (utf8.len(line) or #line) + 1, message), 0)
end

local function found(text, pos)
  if pos > #text then return 'the end of the text' end
  local word = text:match('^[%w_.+-]+', pos) or text:match('^' .. utf8.charpattern, pos)
  return "'" .. word:sub(1, 40):gsub('%c', '?') .. "'"
end

local function skip(text, pos)
  return text:find('[^ \t\r\n]', pos) or #text + 1
end

-- The escape of four hexadecimal digits whose backslash is at `pos`: the code and the position after it.
local function decode_hex(text, pos)
  local hex = text:match('^\\u(%x%x%x%x)', pos)
  if not hex then reject(text, pos, '\\u needs four hexadecimal digits') end
  return tonumber(hex, 16), pos + 6
end

local function decode_string(text, start)
  local pos, parts = start + 1, nil
  while true do
    local stop = text:find('[\0-\31"\\]', pos)
    if not stop then reject(text, start, 'this string has no end') end
    local char = text:sub(stop, stop)
    local piece = text:sub(pos, stop - 1)
    if char == '"' then
      if not parts then return piece, stop + 1 end
      parts[#parts + 1] = piece
      return table.concat(parts), stop + 1
    elseif char ~= '\\' then
      reject(text, stop, ('control character %d in a string; write \\u%04x'):format(char:byte(), char:byte()))
    end
    parts = parts or {}
    parts[#parts + 1] = piece
    local letter = text:sub(stop + 1, stop + 1)
    if letter == 'u' then
      local code
      code, pos = decode_hex(text, stop)
      if code >= 0xDC00 and code <= 0xDFFF then reject(text, stop, 'half of a surrogate pair') end
      if code >= 0xD800 and code <= 0xDBFF then
        if text:sub(pos, pos + 1) ~= '\\u' then reject(text, stop, 'half of a surrogate pair') end
        local low
        low, pos = decode_hex(text, pos)
        if low < 0xDC00 or low > 0xDFFF then reject(text, stop, 'half of a surrogate pair') end
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
      end
      parts[#parts + 1] = utf8.char(code)
    else
      local plain = unescapes[letter]
      if not plain then
        reject(text, stop, ("unknown escape '\\%s'"):format(letter:gsub('[%c\128-\255]', '?')))
      end
      parts[#parts + 1] = plain
      pos = stop + 2
    end
  end
end

local function decode_number(text, pos)
  local stop = select(2, text:find('^-?%d+', pos))
  if not stop then reject(text, pos, 'expected a value, found ' .. found(text, pos)) end
  if text:find('^-?0%d', pos) then reject(text, pos, 'a number begins with 0') end
  local whole = true
  local dot = select(2, text:find('^%.%d+', stop + 1))
  local exponent = select(2, text:find('^[eE][+-]?%d+', (dot or stop) + 1))
  if dot or exponent then stop, whole = exponent or dot, false end
  if text:find('^[%w_.+-]', stop + 1) then reject(text, pos, 'bad number ' .. found(text, pos)) end
  local digits = text:sub(pos, stop)
  local value = tonumber(digits)
  if value == math.huge or value == -math.huge then
    reject(text, pos, 'number out of range: ' .. digits:sub(1, 40))
  end
  -- tonumber turns an integer beyond 64 bits into a float; the nearest one is what most readers give too.
  return whole and value or value + 0.0, stop + 1
end

local decode_value

local function decode_array(text, pos, depth)
  local array, count = {}, 0
  pos = skip(text, pos + 1)
  if text:sub(pos, pos) == ']' then return setmetatable(array, Array), pos + 1 end
  while true do
    count = count + 1
    array[count], pos = decode_value(text, pos, depth)
    pos = skip(text, pos)
    local char = text:sub(pos, pos)
    if char == ']' then return setmetatable(array, Array), pos + 1 end
    if char ~= ',' then reject(text, pos, "expected ',' or ']', found " .. found(text, pos)) end
    pos = skip(text, pos + 1)
  end
end

local function decode_object(text, pos, depth)
  local object = {}
  pos = skip(text, pos + 1)
  if text:sub(pos, pos) == '}' then return object, pos + 1 end
  while true do
    if text:sub(pos, pos) ~= '"' then
      reject(text, pos, 'expected a key in quotes, found ' .. found(text, pos))
    end
    local key, after = decode_string(text, pos)
    if object[key] ~= nil then reject(text, pos, ("the key '%s' is there twice"):format(key)) end
    pos = skip(text, after)
    if text:sub(pos, pos) ~= ':' then reject(text, pos, "expected ':', found " .. found(text, pos)) end
    object[key], pos = decode_value(text, skip(text, pos + 1), depth)
    pos = skip(text, pos)
    local char = text:sub(pos, pos)
    if char == '}' then return object, pos + 1 end
    if char ~= ',' then reject(text, pos, "expected ',' or '}', found " .. found(text, pos)) end
    pos = skip(text, pos + 1)
  end
end

local words = { ['true'] = true, ['false'] = false, ['null'] = json.null }

function decode_value(text, pos, depth)
  local char = text:sub(pos, pos)
  if char == '"' then return decode_string(text, pos) end
  if char == '{' or char == '[' then
    if depth == MAX_DEPTH then reject(text, pos, ('more than %d levels'):format(MAX_DEPTH)) end
    return (char == '{' and decode_object or decode_array)(text, pos, depth + 1)
  end
  local word = text:match('^[%a_][%w_]*', pos)
  if word then
    if words[word] == nil then reject(text, pos, ("expected a value, found '%s'"):format(word)) end
    return words[word], pos + #word
  end
  return decode_number(text, pos)
end

-- json.decode(text) -> value; raises an error with line and column. Objects become plain tables, arrays
-- become json.array tables (so that an empty one is written as [] again), null becomes json.null.
function json.decode(text)
  if type(text) ~= 'string' then error('json.decode: expected a string, got ' .. type(text), 2) end
  local _, bad = utf8.len(text)
  if bad then reject(text, bad, 'invalid UTF-8') end
  local value, pos = decode_value(text, skip(text, 1), 0)
  pos = skip(text, pos)
  if pos <= #text then reject(text, pos, 'expected the end, found ' .. found(text, pos)) end
  return value
end

return json
