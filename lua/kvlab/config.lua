-- config.lua: what a run is made from, as plain data, and the id that follows from it.
--
-- A configuration is a table of settings: texts, numbers, booleans, and lists and tables of these. plain() brings one
-- into its only form: layouts become text (with widths and records when they carry some), 2.0 becomes 2, lists stay
-- lists; what cannot be written down - functions, NaN - is an error that says where. The id is a hash of that form
-- and of RESULTS, so that equal settings are the same run, and a change of anything is another one.
local core = require 'kvlab.core'
local json = require 'kvlab.json'
local layout = require 'kvlab.layout'
local opts = require 'kvlab.options'
local record = require 'kvlab.record'

local config = {}

local LAYER <const> = 'kvlab.Layer' -- what the protected metatable of a layer says

-- The version of all results: raised when a change of kvlab changes numbers that runs report. Runs of another one are
-- neither continued nor mixed with new ones.
config.RESULTS = 2

-- In defaults: a setting without a default.
config.required = setmetatable({}, { __name = 'config.required', __tostring = function() return 'required' end })

local function fail(where, text, ...) error(where .. ': ' .. text:format(...), 0) end

local plain

local function plain_layout(value, where)
  if not value.widths and not value.records then return tostring(value) end
  return { layout = tostring(value), widths = plain(value.widths, where), records = plain(value.records, where) }
end

-- A built-in record is its name; another one is all that it is made from.
local function plain_record(value, where)
  if record.builtin(value.name) then return value.name end
  return plain({ name = value.name, fields = value.fields, page = value.page, natural = value.natural }, where)
end

local function plain_number(value, where)
  if value ~= value or value == math.huge or value == -math.huge then
    fail(where, '%s is no setting; expected a finite number', tostring(value))
  end
  return math.tointeger(value) or value
end

local function plain_table(value, where, open)
  if value == json.null then return nil end
  if open[value] then fail(where, 'the table contains itself') end
  open[value] = true
  local out, count = {}, #value
  for key, item in pairs(value) do
    if type(key) ~= 'string' and not (math.type(key) == 'integer' and key >= 1 and key <= count) then
      fail(where, 'the key %s is neither a text nor a place in a list', tostring(key))
    end
    if type(key) == 'string' and count > 0 then fail(where, "a list of %d also has the key '%s'", count, key) end
    out[key] = plain(item, where .. (type(key) == 'string' and '.%s' or '[%s]'):format(key), open)
  end
  open[value] = nil
  return out
end

function plain(value, where, open)
  local kind = type(value)
  if kind == 'nil' or kind == 'string' or kind == 'boolean' then return value end
  if kind == 'number' then return plain_number(value, where) end
  if layout.is(value) then return plain_layout(value, where) end
  if getmetatable(value) == LAYER then return tostring(value) end
  if record.is(value) then return plain_record(value, where) end
  if kind == 'table' then return plain_table(value, where, open or {}) end
  fail(where, 'a %s is no setting; expected text, a number, true or false, a layout, or a table of these', kind)
end

-- config.plain(values [, where]) -> the same as plain data.
function config.plain(values, where)
  if type(values) ~= 'table' then fail(where or 'config', 'expected a table, not a %s', type(values)) end
  return plain(values, where or 'config')
end

-- config.resolve(values, defaults [, where]) -> plain settings with every default filled in. The keys of `defaults` are
-- all that there are; a default that is a table with keys is filled in likewise, unless it is empty.
function config.resolve(values, defaults, where)
  where = where or 'config'
  local known = {}
  for key in pairs(defaults) do known[#known + 1] = key end
  table.sort(known)
  opts.check(values, known, where, 'setting')
  local out = {}
  for _, key in ipairs(known) do
    local default, value = defaults[key], values[key]
    local inner = ('%s.%s'):format(where, key)
    local is_group = type(default) == 'table' and default ~= config.required and not layout.is(default)
      and not record.is(default) and #default == 0 and next(default) ~= nil
    if is_group and (value == nil or type(value) == 'table') and not layout.is(value) then
      out[key] = config.resolve(value or {}, default, inner)
    else
      if value == nil then value = default end
      if value == config.required then fail(where, "the setting '%s' is missing", key) end
      out[key] = plain(value, inner)
    end
  end
  return out
end

-- config.canonical(values) -> its text: JSON with sorted keys.
function config.canonical(values) return json.encode(config.plain(values)) end

-- config.id(values) -> 16 hexadecimal digits, the beginning of a SHA-256.
function config.id(values)
  return core.system.sha256(('kvlab results %d\n%s'):format(config.RESULTS, config.canonical(values))):sub(1, 16)
end

-- config.layout(value) -> the layout that a setting stands for: text, or what plain() made of one with widths.
function config.layout(value)
  if layout.is(value) then return value end
  if type(value) == 'table' and value.layout then
    return layout.new(value.layout):labelled { widths = value.widths, records = value.records }
  end
  return layout.new(value)
end

-- config.record(value) -> the record that a setting stands for: a name, or the table that plain() made of an own one.
function config.record(value)
  if type(value) == 'table' and not record.is(value) then return record.unnamed(value) end
  return record.of(value)
end

-- config.records(value) -> the same for records as a setting: one for everything, a word, or { main =, index =,
-- window = }.
function config.records(value)
  if type(value) ~= 'table' or record.is(value) then return value end
  if value.fields then return config.record(value) end
  local out = {}
  for role, one in pairs(value) do out[role] = config.record(one) end
  return out
end

-- config.set(values, path, value): sets 'optimiser.lr' inside nested tables.
function config.set(values, path, value)
  local at = values
  local parts = {}
  for part in path:gmatch('[^.]+') do parts[#parts + 1] = part end
  for i = 1, #parts - 1 do
    local inner = at[parts[i]]
    if inner == nil then inner = {} end
    if type(inner) ~= 'table' or layout.is(inner) then
      fail('--set ' .. path, "'%s' is no table of settings", parts[i])
    end
    local copy = {}
    for key, item in pairs(inner) do copy[key] = item end
    at[parts[i]] = copy
    at = copy
  end
  at[parts[#parts]] = value
end

-- config.value(values, 'optimiser.lr') -> the setting of that name, also inside tables.
function config.value(values, path)
  if values[path] ~= nil then return values[path] end
  local at = values
  for part in path:gmatch('[^.]+') do
    if type(at) ~= 'table' then return nil end
    at = at[part]
  end
  return at
end

-- config.leaves(values) -> the settings as { ['optimiser.lr'] = 0.01, ... }. Lists, layouts and records stay whole.
function config.leaves(values)
  local out = {}
  local function add(inner, prefix)
    for key, value in pairs(inner) do
      if type(value) == 'table' and #value == 0 and next(value) ~= nil and not value.layout and not value.fields then
        add(value, prefix .. key .. '.')
      else
        out[prefix .. key] = value
      end
    end
  end
  add(values, '')
  return out
end

-- config.assignment('key=value') -> key, value. Numbers, true, false and JSON are read as such, all else is text.
function config.assignment(text)
  local key, word = text:match('^([%w_.-]+)=(.*)$')
  if not key then error(("--set %s: expected KEY=VALUE, such as lr=0.01"):format(text), 0) end
  local ok, value = pcall(json.decode, word)
  if ok and value ~= json.null then return key, value end
  if tonumber(word) then return key, tonumber(word) end
  return key, word
end

-- config.shown(value) -> a setting as a text.
function config.shown(value)
  if type(value) == 'table' then value = value.layout or json.encode(value) end
  return math.type(value) == 'float' and ('%.6g'):format(value) or tostring(value)
end

-- config.label(values, keys) -> 'record=bf16 width=64', in the order of the keys.
function config.label(values, keys)
  local parts = {}
  for _, key in ipairs(keys) do
    local text = config.shown(config.value(values, key))
    parts[#parts + 1] = ('%s=%s'):format(key, text:find('%s') and ('[%s]'):format(text) or text)
  end
  return table.concat(parts, ' ')
end

return config
