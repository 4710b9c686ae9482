-- layer.lua: one layer of a layout, as an immutable value.
--
-- A layer answers three independent questions (docs/layouts.md):
--   cache    which global KV does it read?     own | share (an earlier owner's) | none
--   select   which entries of it?              all | topk | share (an earlier selection) | none
--   window   which recent raw positions?       n tokens, the current one included | none
-- Every named kind (csa, reuse, ...) is a filled-in form of these, and any field may be changed:
-- `kv.csa { window = 64 }`. Fields that are not given stay open and are filled from the widths.
--
-- Equal layers are the same Lua value (they are interned by their canonical text), so comparing two
-- layers, or finding the distinct ones among a million, costs nothing.
local suggest = require 'kvlab.suggest'

local layer = {}

-- The kinds. `full` is a field, not a dense layer: it owns entries and selects among them.
local KINDS = {
  mha = { cache = 'own', form = 'heads', num_key_value_heads = 'all', select = 'all', window = false },
  mqa = { cache = 'own', form = 'heads', num_key_value_heads = 1, select = 'all', window = false },
  gqa = { cache = 'own', form = 'heads', select = 'all', window = false },
  mla = { cache = 'own', form = 'latent', select = 'all', window = false },
  dsa = { cache = 'own', form = 'latent', select = 'topk', keys = 'input', window = false },
  swa = { cache = 'none', form = 'entry', select = 'none', window = true },
  hca = { cache = 'own', form = 'entry', ratio = 128, bias = true, select = 'all', window = true },
  csa = { cache = 'own', form = 'entry', ratio = 4, overlap = true, bias = true, select = 'topk',
          keys = 'compressor', window = true },
  full = { cache = 'own', form = 'entry', select = 'topk', keys = 'entry', window = true },
  reindex = { cache = 'share', select = 'topk', window = 'owner' },
  reuse = { cache = 'share', select = 'share', window = 'owner' },
  layer = { cache = 'none', form = 'entry', select = 'none', window = false },
}
layer.KINDS = KINDS
layer.kind_names = {}
for name in pairs(KINDS) do table.insert(layer.kind_names, name) end
table.sort(layer.kind_names)

-- The fields. `check` returns the value to store, or nil and what would be right. Rows are in the order
-- in which a layer prints them. `needs` says for which layers the field means something.
local function one_of(...)
  local words = { ... }
  local set = {}
  for _, word in ipairs(words) do set[word] = true end
  return function(value)
    if set[value] then return value end
    local hint = type(value) == 'string' and suggest.phrase(value, words) or ''
    return nil, 'one of ' .. table.concat(words, ', ') .. hint
  end
end

local function count(least)
  return function(value)
    local n = math.type(value) and math.tointeger(value)
    if n and n >= least and n <= 2 ^ 40 then return n end
    return nil, ('a whole number, %d or more'):format(least)
  end
end

local function flag(value)
  if type(value) == 'boolean' then return value end
  return nil, 'true or false'
end

local function word(value)
  if type(value) == 'string' and value:find('^[%w_][%w_.%-]*$') then return value end
  return nil, 'a name of letters, digits, _, . and -'
end

local function window(value)
  if value == 'none' or value == false then return false end
  if value == true or value == 'owner' then return value end
  local n = math.type(value) and math.tointeger(value)
  if n and n >= 1 and n <= 2 ^ 40 then return n end
  return nil, 'a whole number of tokens, 1 or more, or none'
end

local function pool(value)
  if value == false or value == 'none' then return false end
  if type(value) == 'table' then
    for key in pairs(value) do
      if key ~= 'blocks' and key ~= 'block' then
        return nil, ("{ blocks = , block = } only, not '%s'"):format(tostring(key))
      end
    end
    local blocks, block = count(1)(value.blocks), count(1)(value.block)
    if blocks and block then return { blocks = blocks, block = block } end
  end
  return nil, 'blocks x entries of a block, like 2048x8, or none'
end

local function kv_heads(value)
  if value == 'all' then return value end
  return count(1)(value)
end

local function owns(l) return l.cache == 'own' end
local function indexes(l) return l.select == 'topk' end

local FIELDS = {
  { 'name', word, needs = owns, why = 'only a layer that owns a cache can be named for sharing' },
  { 'cache', one_of('own', 'share', 'none') },
  { 'of', word, needs = function(l) return l.cache == 'share' end,
    why = 'only a layer that shares a cache names its owner' },
  { 'form', one_of('heads', 'latent', 'entry') },
  { 'ratio', count(1), needs = owns,
    why = 'only a layer that owns a cache has a ratio; a sharing layer follows its owner' },
  { 'overlap', flag, needs = owns, why = 'only a layer that owns a cache compresses' },
  { 'bias', flag, needs = owns, why = 'only a layer that owns a cache compresses' },
  { 'source', one_of('input', 'encoder'), needs = owns, why = 'only an owner projects a cache' },
  { 'select', one_of('all', 'topk', 'share', 'none') },
  { 'topk', count(1), needs = indexes, why = "only select = topk picks k entries" },
  { 'keys', one_of('input', 'compressor', 'entry'), needs = function(l) return owns(l) and indexes(l) end,
    why = 'only an owner that selects its top-k builds index keys' },
  { 'pool', pool, needs = indexes, why = 'only select = topk builds or searches a candidate pool' },
  { 'window', window },
  { 'record', word, needs = owns, why = 'only an owner stores entries' },
  { 'index_record', word, needs = function(l) return owns(l) and indexes(l) end,
    why = 'only an owner that selects its top-k stores index keys' },
  { 'window_record', word, needs = function(l) return l.window end, why = 'the layer has no window' },
}
-- Widths that one layer may have for itself; the rest of the widths hold for the whole model.
for _, name in ipairs { 'num_attention_heads', 'num_key_value_heads', 'head_dim', 'v_head_dim',
  'qk_nope_head_dim', 'qk_rope_head_dim', 'q_lora_rank', 'kv_lora_rank', 'index_n_heads',
  'index_head_dim', 'o_groups', 'o_lora_rank' } do
  FIELDS[#FIELDS + 1] = { name, name == 'num_key_value_heads' and kv_heads or count(1), width = true }
end

local BY_NAME = {}
layer.field_names = {}
for i, field in ipairs(FIELDS) do
  BY_NAME[field[1]] = field
  layer.field_names[i] = field[1]
end
layer.FIELDS = FIELDS

-- Defaults that hold for a kind whose row above does not say otherwise.
local function default(kind, name)
  local value = KINDS[kind][name]
  if value ~= nil then return value end
  if name == 'ratio' then return 1 end
  if name == 'overlap' or name == 'bias' then return false end
  return nil
end

local class = {}   -- methods
local meta = { __name = 'kvlab.Layer', __metatable = 'kvlab.Layer' }
local state = setmetatable({}, { __mode = 'k' }) -- layer -> { kind, fields, text, id }
local interned = setmetatable({}, { __mode = 'v' }) -- canonical text -> layer
local next_id = 0

local function is_layer(value) return state[value] ~= nil end
layer.is = is_layer

local function show(name, value)
  if name == 'pool' and value then return ('%dx%d'):format(value.blocks, value.block) end
  if value == false and (name == 'window' or name == 'pool') then return 'none' end
  return tostring(value)
end

-- The canonical text: the kind, its /ratio when it is not the kind's own, then what differs in {}.
-- A full layer always shows its ratio, because its name does not tell.
local function text_of(kind, fields)
  local parts, ratio = {}, ''
  for _, field in ipairs(FIELDS) do
    local name = field[1]
    local value = fields[name]
    if value ~= nil and (value ~= default(kind, name) or name == 'ratio' and kind == 'full') then
      if name == 'ratio' then ratio = '/' .. value
      else parts[#parts + 1] = name .. '=' .. show(name, value) end
    end
  end
  local braces = #parts > 0 and '{' .. table.concat(parts, ',') .. '}' or ''
  return kind .. ratio .. braces
end

local function fail(kind, message, ...)
  error(('%s: ' .. message):format(kind, ...), 0)
end

-- make(kind, changes, base) -> layer: the kind's form, then the fields of `base` (a layer that is being
-- changed), then `changes`.
local function make(kind, changes, base)
  local fields = {}
  for name, value in pairs(KINDS[kind]) do fields[name] = value end
  for name, value in pairs(base or {}) do fields[name] = value end
  for name, value in pairs(changes) do
    local field = BY_NAME[name]
    if not field then
      fail(kind, "unknown field '%s'%s", tostring(name), suggest.phrase(tostring(name), layer.field_names))
    end
    local checked, right = field[2](value)
    if checked == nil then
      fail(kind, '%s = %s: expected %s', name, type(value) == 'table' and '{...}' or tostring(value), right)
    end
    fields[name] = checked
  end
  -- What the axes make meaningless is dropped when it was inherited, and an error when it was asked for.
  for _, field in ipairs(FIELDS) do
    local name = field[1]
    if field.needs and fields[name] ~= nil and not field.needs(fields) then
      if changes[name] ~= nil then fail(kind, '%s does not apply: %s', name, field.why) end
      fields[name] = nil
    end
  end
  if fields.cache == 'own' then
    fields.ratio = fields.ratio or 1
    if fields.overlap == nil then fields.overlap = false end
    if fields.bias == nil then fields.bias = false end
    if fields.select == 'topk' and not fields.keys then
      fields.keys = fields.form == 'entry' and 'entry' or 'input'
    end
    if not fields.form then fields.form = 'entry' end
    if fields.pool == false then fields.pool = nil end
    if fields.keys == 'entry' and fields.form == 'heads' then
      fail(kind, "keys = entry projects the index key from one shared entry, but per-head rows have none; "
        .. 'use keys = input')
    end
    if fields.keys == 'input' and fields.ratio > 1 then
      fail(kind, 'keys = input gives a key for every token, but an entry covers %d; '
        .. 'use keys = compressor or keys = entry', fields.ratio)
    end
    if fields.overlap and (fields.ratio == 1 or fields.form ~= 'entry') then
      if changes.overlap and fields.ratio == 1 then fail(kind, 'overlap needs a ratio of 2 or more, not 1') end
      if changes.overlap then fail(kind, 'overlap needs K = V entries (form = entry), not %s', fields.form) end
      fields.overlap = false
    end
  elseif fields.cache == 'none' then
    if fields.select ~= 'none' then
      fail(kind, 'select = %s, but the layer has no cache to select from; use cache = own or share',
        fields.select)
    end
    if not fields.window then fail(kind, 'neither a cache nor a window: the layer would read nothing') end
  end
  if fields.cache ~= 'none' and fields.select == 'none' then
    fail(kind, 'select = none, but cache = %s; use select = all, topk or share', fields.cache)
  end
  if fields.cache ~= 'own' and fields.pool then
    if changes.pool then
      fail(kind, 'pool = %s does not apply: an owner builds the pool, and a layer that searches its keys stays inside; '
        .. 'only pool = none can be said here', show('pool', fields.pool))
    end
    fields.pool = nil
  end
  if fields.window == 'owner' and fields.cache ~= 'share' then fields.window = true end

  local text = text_of(kind, fields)
  local self = interned[text]
  if self then return self end
  self = setmetatable({}, meta)
  next_id = next_id + 1
  state[self] = { kind = kind, fields = fields, text = text, id = next_id }
  interned[text] = self
  return self
end

-- Every distinct layer has a small integer of its own; counting groups a layout's layers by it.
function layer.id(self) return state[self].id end

-- layer.get(self, name) -> the field, or nil when it is open or no field of a layer at all.
function layer.get(self, name) return state[self].fields[name] end

function meta.__index(self, name)
  if class[name] then return class[name] end
  local own = state[self]
  if name == 'kind' then return own.kind end
  local value = own.fields[name]
  if name == 'pool' and value then return { blocks = value.blocks, block = value.block } end
  if value == nil and not BY_NAME[name] then
    error(("a layer has no field '%s'%s"):format(tostring(name),
      suggest.phrase(tostring(name), layer.field_names)), 2)
  end
  return value
end

function meta.__newindex(_, name)
  error(("a layer cannot be changed; make a changed copy: some_layer { %s = ... }"):format(tostring(name)), 2)
end

function meta.__tostring(self) return state[self].text end

-- A layer called with a table gives a changed copy: csa { window = 64 }.
function meta.__call(self, changes)
  local own = state[self]
  if type(changes) ~= 'table' then fail(own.kind, 'expected a table of fields, got %s', type(changes)) end
  return make(own.kind, changes, own.fields)
end

-- layer.new(kind, fields) -> layer. Raises for an unknown kind or field, with the nearest name.
function layer.new(kind, fields)
  if not KINDS[kind] then
    error(("unknown layer kind '%s'%s"):format(tostring(kind), suggest.phrase(kind, layer.kind_names)), 0)
  end
  return make(kind, fields)
end

-- The plain layer of each kind: layer.kinds.csa and so on. `layer` alone is a blank form, not a layer.
layer.kinds = {}
for name in pairs(KINDS) do
  if name ~= 'layer' then layer.kinds[name] = make(name, {}) end
end

layer.class, layer.meta = class, meta
return layer
