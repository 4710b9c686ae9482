-- record.lua: kv.record, kv.records, kv.record_named: how one cache entry lies in bytes, as a value.
-- Documentation in meta/record.lua and docs/records.md.
--
-- A record is a template: its widths may be words ('rest', 'rotary', 'key', 'value'). plan() puts numbers in
-- their place and has the core compile the result; a plan is kept for as long as somebody uses it.
-- Records are immutable. The names of all records of this process are in `registry`.
local core = require 'kvlab.core'
local options = require 'kvlab.options'
local number = require 'kvlab.number'
local suggest = require 'kvlab.suggest'

local FIELD_KEYS = { 'channels', 'number', 'scale', 'block', 'place', 'ties', 'order', 'nibbles', 'pad',
  'scale_pad' }
local SCALE_KEYS = { 'number', 'group', 'rule', 'floor', 'ties', 'quotient' }
local RECORD_KEYS = { 'name', 'about', 'source', 'natural', 'fields', 'page' }
local DIMS = { 'channels', 'rotary', 'key', 'value' }
local WORDS = { 'rest', 'rotary', 'key', 'value' }
local CHOICES = {
  place = { 'split', 'before', 'after' },
  ties = { 'even', 'down', 'away', 'up' },
  order = { 'adjacent', 'halves' },
  nibbles = { 'low', 'high' },
  rule = { 'raw', 'pow2_up', 'ocp_floor', 'nearest', 'signed', 'range' },
  quotient = { 'divide', 'reciprocal' },
}

local registry = {} -- name -> Record
local builtin = {}  -- name -> true
local private = setmetatable({}, { __mode = 'k' }) -- Record -> { spec, plans }

local Record = {}

-- --- checking -------------------------------------------------------------------------------------

local function fail(where, text, ...)
  error(where .. text:format(...), 0)
end

local function choice(t, key, default, where)
  if t[key] == nil then return default end
  return options.word(t[key], CHOICES[key], where .. ': ' .. key)
end

local function check_floor(floor, where)
  if floor == nil then return nil end
  options.check(floor, { 'amax', 'scale' }, where .. ': floor')
  local out = {}
  for key, value in pairs(floor) do
    if type(value) ~= 'number' or not (value >= 0 and value < math.huge) then
      fail(where, ': floor %s is %s, expected a finite number that is not negative', key, tostring(value))
    end
    out[key] = value
  end
  return out
end

local function check_scale(scale, where)
  if scale == nil then return nil end
  options.check(scale, SCALE_KEYS, where .. ': scale')
  local out = { number = options.word(scale.number, number.names(), where .. ': scale number') }
  out.rule = choice(scale, 'rule', out.number == 'ue8m0' and 'pow2_up' or 'nearest', where)
  out.ties = choice(scale, 'ties', 'even', where)
  out.quotient = choice(scale, 'quotient', 'divide', where)
  out.group = scale.group and options.whole(scale.group, 1, where .. ': group')
  out.floor = check_floor(scale.floor, where)
  return out
end

-- The field with every default filled in; group and block stay nil where they mean "all of it".
local function check_field(field, where)
  options.check(field, FIELD_KEYS, where)
  local out = { number = options.word(field.number, number.names(), where .. ': number') }
  if type(field.channels) == 'string' then
    out.channels = options.word(field.channels, WORDS, where .. ': channels')
  else
    out.channels = options.whole(field.channels, 1, where .. ': channels')
  end
  for _, key in ipairs { 'place', 'ties', 'order', 'nibbles' } do
    out[key] = choice(field, key, CHOICES[key][1], where)
  end
  out.ties = choice(field, 'ties', 'even', where)
  out.block = field.block and options.whole(field.block, 1, where .. ': block')
  out.pad = options.whole(field.pad or 0, 0, where .. ': pad')
  out.scale_pad = options.whole(field.scale_pad or 0, 0, where .. ': scale_pad')
  out.scale = check_scale(field.scale, where)
  return out
end

local function check_dims(dims, where)
  options.check(dims, DIMS, where)
  local out = {}
  for key, value in pairs(dims) do
    out[key] = options.whole(value, key == 'rotary' and 0 or 1, ('%s: %s'):format(where, key))
  end
  return out
end

local function check_spec(t)
  options.check(t, RECORD_KEYS, 'kv.record')
  if type(t.name) ~= 'string' or not t.name:find('^%w[%w%._%-]*$') then
    fail('kv.record', ': name is %s, expected a word such as \'mine\' (letters, digits, - _ .)',
      type(t.name) == 'string' and ("'%s'"):format(t.name) or tostring(t.name))
  end
  local where = ("record '%s'"):format(t.name)
  local spec = { name = t.name, fields = {} }
  for _, key in ipairs { 'about', 'source' } do
    if t[key] ~= nil and type(t[key]) ~= 'string' then fail(where, ': %s must be a string', key) end
    spec[key] = t[key]
  end
  if type(t.fields) ~= 'table' or #t.fields == 0 then
    fail(where, ': fields must be a list of tables, such as { { channels = 40, number = \'e5m2\' } }')
  end
  local rests = 0
  for index, field in ipairs(t.fields) do
    local checked = check_field(field, ('%s, field %d'):format(where, index))
    spec.fields[index] = checked
    rests = rests + (checked.channels == 'rest' and 1 or 0)
  end
  if rests > 1 then fail(where, ": %d fields have channels = 'rest', only one may", rests) end
  local page = t.page or {}
  options.check(page, { 'entries', 'align' }, where .. ': page')
  spec.page = {
    entries = options.whole(page.entries or 64, 1, where .. ', page: entries'),
    align = options.whole(page.align or 1, 1, where .. ', page: align'),
  }
  if t.natural ~= nil then spec.natural = check_dims(t.natural, where .. ': natural') end
  return spec
end

-- --- widths ---------------------------------------------------------------------------------------

-- The fields with numbers for channels. A word that stands for 0 channels (no rotary part) drops its field.
local function resolve(spec, dims)
  local where = ("record '%s'"):format(spec.name)
  dims = check_dims(dims or spec.natural or {}, where .. ': plan')
  local sum, rest = 0, nil
  for _, field in ipairs(spec.fields) do
    local word = field.channels
    if word == 'rest' then
      rest = true
    elseif type(word) == 'string' then
      if not dims[word] then fail(where, ': plan needs %s, the number of its %s channels', word, word) end
      sum = sum + dims[word]
    else
      sum = sum + word
    end
  end
  if rest and not dims.channels then fail(where, ': plan needs channels, the width of the entry') end
  if dims.channels and (dims.channels < sum or not rest and dims.channels ~= sum) then
    fail(where, ': %s %d channels, plan was asked for %d', rest and 'its other fields take' or 'it holds',
      sum, dims.channels)
  end
  local fields = {}
  for _, field in ipairs(spec.fields) do
    local count = field.channels
    if count == 'rest' then count = dims.channels - sum end
    count = math.tointeger(dims[count] or count)
    if count > 0 then
      local resolved = {}
      for key, value in pairs(field) do resolved[key] = value end
      resolved.channels = count
      fields[#fields + 1] = resolved
    end
  end
  if #fields == 0 then fail(where, ': no channels are left') end
  return fields, dims
end

local function dims_key(dims)
  return ('%s,%s,%s,%s'):format(dims.channels, dims.rotary, dims.key, dims.value)
end

-- --- the object -----------------------------------------------------------------------------------

local function copy(value)
  if type(value) ~= 'table' then return value end
  local out = {}
  for key, inner in pairs(value) do out[key] = copy(inner) end
  return out
end

local function internals(record, method)
  local hidden = private[record]
  if not hidden then error(('%s: call it with a colon, record:%s(...)'):format(method, method), 3) end
  return hidden
end

-- Numbers and strings are read as they are, tables as copies, so that nobody changes a record in place.
local function index(record, key)
  if Record[key] then return Record[key] end
  local spec = private[record].spec
  for _, name in ipairs(RECORD_KEYS) do
    if name == key then return copy(spec[key]) end
  end
  error(("record '%s' has no field '%s'%s"):format(spec.name, tostring(key),
    options.suggest(key, RECORD_KEYS)), 2)
end

local meta = {
  __name = 'kvlab.Record',
  __metatable = false,
  __index = index,
  __newindex = function(record)
    error(("record '%s' cannot be changed; record:with{...} returns a changed copy"):format(record.name), 2)
  end,
  __tostring = function(record)
    local spec = private[record].spec
    local ok, line = pcall(Record.formula, record)
    if ok then return ('kvlab.Record %s: %s'):format(spec.name, line) end
    return ('kvlab.Record %s: %s'):format(spec.name, spec.about or 'any width')
  end,
}

local function make(t)
  local spec = check_spec(t)
  local record = setmetatable({}, meta)
  private[record] = { spec = spec, plans = setmetatable({}, { __mode = 'v' }) }
  -- Complain now about what can be known now.
  local fixed = true
  for _, field in ipairs(spec.fields) do fixed = fixed and type(field.channels) == 'number' end
  if fixed or spec.natural then record:plan() end
  return record
end

local function register(record)
  local name = record.name
  if builtin[name] then
    error(("record '%s' is built in; choose another name, or take a copy with record:with{ name = ... }")
      :format(name), 0)
  end
  registry[name] = record
  return record
end

function Record.plan(record, dims)
  local hidden = internals(record, 'plan')
  local fields, widths = resolve(hidden.spec, dims)
  local key = dims_key(widths)
  local plan = hidden.plans[key]
  if not plan then
    local page = hidden.spec.page
    local ok, result = pcall(core.record.compile, fields, page.entries, page.align, hidden.spec.name)
    if not ok then error(("record '%s', %s"):format(hidden.spec.name, result), 0) end
    plan = result
    hidden.plans[key] = plan
  end
  return plan
end

function Record.with(record, changes)
  local spec = copy(internals(record, 'with').spec)
  local where = ("record '%s': with"):format(spec.name)
  options.check(changes, { 'name', 'about', 'source', 'natural', 'fields', 'page', 'floor', 'ties' }, where)
  local changed = {}
  for key, value in pairs(changes) do
    changed[#changed + 1] = key
    if key == 'page' then
      options.check(value, { 'entries', 'align' }, where .. ': page')
      for name, amount in pairs(value) do spec.page[name] = amount end
    elseif key == 'floor' or key == 'ties' then
      for _, field in ipairs(spec.fields) do
        if field.scale then
          local target = key == 'floor' and field.scale or field
          target[key] = copy(value)
        end
      end
    else
      spec[key] = copy(value)
    end
  end
  table.sort(changed)
  if not changes.name then spec.name = spec.name .. '-with-' .. table.concat(changed, '-') end
  local made = make(spec)
  return changes.name and register(made) or made
end

-- --- the formula ----------------------------------------------------------------------------------

function Record.terms(record, dims)
  local hidden = internals(record, 'terms')
  local fields = resolve(hidden.spec, dims)
  local terms = {}
  local function add(label, count, name, per)
    local bytes_each = name and number.info(name).bytes or 1
    bytes_each = math.tointeger(bytes_each) or bytes_each
    terms[#terms + 1] = { label = label, count = count, bytes_each = bytes_each, number = name, per = per,
      bytes = math.tointeger(count * bytes_each) }
  end
  record:plan(dims) -- checks that everything divides
  for _, field in ipairs(fields) do
    add('values', field.channels, field.number)
    local scale = field.scale
    if scale then
      local group = scale.group or field.block or field.channels
      local count = field.channels // group
      add('scale', count, scale.number, group)
      if scale.rule == 'range' then add('minimum', count, scale.number, group) end
    end
    if field.pad + field.scale_pad > 0 then add('padding', field.pad + field.scale_pad) end
  end
  return terms
end

function Record.formula(record, dims)
  local long, short, total = {}, {}, 0
  for _, term in ipairs(record:terms(dims)) do
    local text
    if term.label == 'padding' then
      text = ('padding %d B'):format(term.bytes)
    else
      text = ('%d x %s B (%s'):format(term.count, term.bytes_each, number.info(term.number).label)
      if term.label ~= 'values' then text = ('%s %s, one per %d'):format(term.label, text, term.per) end
      text = text .. ')'
    end
    long[#long + 1], short[#short + 1] = text, tostring(term.bytes)
    total = total + term.bytes
  end
  local line = table.concat(long, ' + ')
  if #short > 1 then line = line .. ' = ' .. table.concat(short, ' + ') end
  return ('%s = %d B'):format(line, total)
end

-- --- the module -----------------------------------------------------------------------------------

local record = {}

function record.new(t)
  return register(make(t))
end

-- A record that no name finds later: for records that a program makes for itself.
function record.unnamed(t)
  return make(t)
end

function record.names()
  local names = {}
  for name in pairs(registry) do names[#names + 1] = name end
  table.sort(names)
  return names
end

function record.named(name)
  if registry[name] then return registry[name] end
  error(("no record named '%s'%s; kv.records() lists them"):format(tostring(name),
    suggest.phrase(tostring(name), record.names())), 0)
end

record.class = Record

function record.is(value)
  return private[value] ~= nil
end

function record.builtin(name) return builtin[name] == true end

-- record.of(value) -> the record itself, or the one of that name.
function record.of(value)
  return record.is(value) and value or record.named(value)
end

for _, spec in ipairs(require 'kvlab.records') do
  record.new(spec)
end
for name in pairs(registry) do builtin[name] = true end

return record
