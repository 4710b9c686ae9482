-- corpus.lua: text files as ids, with exactly the characters (or bytes) that occur in them.
--
-- Ids follow the order of code points (bytes). `codes` is the text as a string of fixed-width units, so that
-- a piece of it can be a table key: n-grams are compared exactly, without hashing.
local core = require 'kvlab.core'
local draw = require 'kvlab.tasks.draw'
local options = require 'kvlab.options'

local corpus = {}

local CHUNK = 4096 -- bytes of text that are a Lua table at a time

local function read(name, where)
  local file, message = io.open(name, 'rb')
  local text
  if file then
    text, message = file:read('a')
    file:close()
  end
  if not text then error(('%s: cannot read %s'):format(where, message or name), 0) end
  if text == '' then error(('%s: %s is empty'):format(where, name), 0) end
  return text
end

-- pieces(text, by_byte): an iterator over lists of code points or bytes.
local function pieces(text, by_byte)
  local at = 1
  return function()
    if at > #text then return nil end
    local first, last = at, math.min(at + CHUNK - 1, #text)
    if by_byte then
      at = last + 1
      return { text:byte(first, last) }
    end
    -- do not cut a character: go on to just before the next one that begins
    while last < #text and text:byte(last + 1) & 0xc0 == 0x80 do last = last + 1 end
    at = last + 1
    return { utf8.codepoint(text, first, last) }
  end
end

-- digest(text): 16 hex digits, so that a run knows when its text has changed. Not for security.
local function digest(text)
  local hash, whole = draw.mix(#text), #text // 8 * 8
  for at = 1, whole, 8 do hash = draw.mix(hash ~ string.unpack('<i8', text, at)) end
  if whole < #text then
    hash = draw.mix(hash ~ string.unpack('<i8', text:sub(whole + 1) .. ('\0'):rep(8 - #text + whole)))
  end
  return ('%016x'):format(hash)
end

local function check_utf8(text, names, texts, where)
  local _, bad = utf8.len(text)
  if not bad then return end
  for i, one in ipairs(texts) do
    local ok, place = utf8.len(one)
    if not ok then
      error(("%s: %s is not UTF-8 at byte %d; unit = 'byte' takes any file"):format(where, names[i], place), 0)
    end
  end
end

-- load(files, unit, where) -> { ids = int32 {N}, codes, width, size = N, vocab, digest, encode, decode }
function corpus.load(files, unit, where)
  if type(files) == 'string' then files = { files } end
  if type(files) ~= 'table' or #files == 0 then
    error(("%s: files is %s, expected the name of a text file or a list of names")
      :format(where, type(files) == 'table' and 'an empty list' or tostring(files)), 0)
  end
  local texts = {}
  for i, name in ipairs(files) do
    if type(name) ~= 'string' then
      error(('%s: files[%d] is a %s, expected a file name'):format(where, i, type(name)), 0)
    end
    texts[i] = read(name, where)
  end
  local text = table.concat(texts)
  local by_byte = unit == 'byte'
  if not by_byte then check_utf8(text, files, texts, where) end
  local as_bytes = by_byte or not text:find('[\x80-\xff]')

  local seen, points, id_of = {}, {}, {}
  for piece in pieces(text, as_bytes) do
    for _, point in ipairs(piece) do seen[point] = true end
  end
  for point in pairs(seen) do points[#points + 1] = point end
  table.sort(points)
  for i, point in ipairs(points) do id_of[point] = i - 1 end

  local parts, codes = {}, {}
  for piece in pieces(text, as_bytes) do
    if not as_bytes then codes[#codes + 1] = ('<' .. ('I3'):rep(#piece)):pack(table.unpack(piece)) end
    for i, point in ipairs(piece) do piece[i] = id_of[point] end
    parts[#parts + 1] = core.tensor.tensor(piece, 'int32')
  end
  local ids = core.tensor.cat(parts, 1)
  local result = { ids = ids, size = #ids, vocab = #points, digest = digest(text), files = table.move(files, 1, #files,
    1, {}), codes = as_bytes and text or table.concat(codes), width = as_bytes and 1 or 3 }

  -- encode(text) -> a list of ids
  function result.encode(prompt)
    if type(prompt) ~= 'string' then error(('encode: expected a string, not a %s'):format(type(prompt)), 0) end
    if not by_byte and not utf8.len(prompt) then error('encode: the text is not UTF-8', 0) end
    local list = {}
    for piece in pieces(prompt, by_byte) do
      for _, point in ipairs(piece) do
        if not id_of[point] then
          local shown = by_byte and ('byte %d'):format(point) or ("'%s'"):format(utf8.char(point))
          error(('encode: %s does not occur in the training text'):format(shown), 0)
        end
        list[#list + 1] = id_of[point]
      end
    end
    return list
  end

  -- decode(list of ids or int32 {n}) -> text
  function result.decode(list)
    if core.tensor.is_tensor(list) then list = list:totable() end
    local characters = {}
    for i, id in ipairs(list) do
      local point = points[options.whole(id, 0, 'decode: an id') + 1]
      if not point then error(('decode: id %d, but ids are 0 to %d'):format(id, #points - 1), 0) end
      characters[i] = by_byte and string.char(point) or utf8.char(point)
    end
    return table.concat(characters)
  end
  return result
end

return corpus
