-- layout.lua: a layout is a list of layers, optionally cut into an encoder and a decoder. An immutable value.
--
-- Making one resolves and checks who shares what, so an existing layout is a valid one:
--   owner[i]     the layer whose global cache layer i reads (itself, an earlier one, or 0 for none)
--   selector[i]  the layer that chose which entries layer i reads (itself, an earlier one, or 0)
-- `share` takes the nearest earlier owner (or the named one) and the latest selection over the same entry
-- grid, that is, over entries of the same ratio. A layer that reads all its entries selects all of them.
--
-- name, widths and records are labels for counting and running; they travel with the value but are not
-- part of its identity: two layouts are equal when their layers and their cut are.
local layer = require 'kvlab.layer'
local opts = require 'kvlab.options'
local suggest = require 'kvlab.suggest'

local layout = {}

local MAX_LAYERS = 1 << 22
local MAX_DEPTH = 500 -- of groups inside each other
local MAX_PERIOD = 64 -- the longest repeated group that printing looks for

local class = {}
local meta = { __name = 'kvlab.Layout', __metatable = 'kvlab.Layout' }
local state = setmetatable({}, { __mode = 'k' }) -- layout -> { layers, cut, owner, selector, ... }

function layout.is(value) return state[value] ~= nil end

-- layout.of(value, where) -> the layout that an argument of the function `where` stands for: a layout, its text, or a
-- layer.
function layout.of(value, where)
  if type(value) == 'string' or layer.is(value) then return layout.new(value) end
  if state[value] then return value end
  error(('%s: expected a layout, its text or a layer, got %s'):format(where, type(value)), 0)
end

-- --- groups: what a constructor is given before it is flattened --------------------------------------
local group_meta = { __name = 'kvlab.Group', __metatable = 'kvlab.Group' }
local groups = setmetatable({}, { __mode = 'k' }) -- group -> { items, times }

local function times(n)
  local whole = math.type(n) and math.tointeger(n)
  if not whole or whole < 1 then
    error(('repeat count %s: expected a whole number, 1 or more'):format(tostring(n)), 0)
  end
  return whole
end

local function new_group(items, n)
  local self = setmetatable({}, group_meta)
  groups[self] = { items = items, times = n }
  return self
end

-- A list with a hole would be a shorter list, and a field in it would do nothing: a variable that is nil by
-- mistake, or group { full, times = 3 }, must not vanish. fields: the names that are allowed, or nil for none.
local function check_list(list, where, fields)
  local filled = 0
  while rawget(list, filled + 1) ~= nil do filled = filled + 1 end
  for key in next, list do
    if math.type(key) == 'integer' then
      if key < 1 or key > filled then
        error(('%s: item %d of the list is missing (nil), but there is an item %d'):format(where, filled + 1, key), 0)
      end
    else
      local known = false
      for _, name in ipairs(fields or {}) do known = known or name == key end
      if not known then
        error(("%s: unknown field '%s'%s"):format(where, tostring(key), fields
          and suggest.phrase(tostring(key), fields) or '; here stand only layers and groups'), 0)
      end
    end
  end
end

-- group { swa, reuse * 5 } -> a group, to be repeated with * or put into a layout.
function layout.group(items)
  if type(items) ~= 'table' or layer.is(items) or groups[items] then items = { items } end
  check_list(items, 'group')
  return new_group(table.move(items, 1, #items, 1, {}), 1)
end

local function repeated(a, b)
  if type(a) == 'number' then a, b = b, a end
  return new_group({ a }, times(b))
end
group_meta.__mul = repeated
layer.meta.__mul = repeated

-- Appends the layers of `item` (a layer, group, layout or list of these) to `out`.
local function flatten(item, out, where, depth)
  depth = (depth or 0) + 1
  if depth > MAX_DEPTH then error(('layout: lists and groups are nested more than %d deep'):format(MAX_DEPTH), 0) end
  if layer.is(item) then
    if #out >= MAX_LAYERS then
      error(('%s: more than %d layers'):format(where, MAX_LAYERS), 0)
    end
    out[#out + 1] = item
  elseif groups[item] then
    local own = groups[item]
    local first = #out + 1
    for _, inner in ipairs(own.items) do flatten(inner, out, where, depth) end
    local last = #out
    local size = last - first + 1
    if size > 0 and own.times > (MAX_LAYERS - last) // size + 1 then
      error(('%s: more than %d layers'):format(where, MAX_LAYERS), 0)
    end
    for i = 1, own.times - 1 do table.move(out, first, last, last + 1 + (i - 1) * size) end
  elseif state[item] then
    for _, inner in ipairs(state[item].layers) do flatten(inner, out, where) end
  elseif type(item) == 'table' and getmetatable(item) == nil then
    check_list(item, where)
    for index, inner in ipairs(item) do flatten(inner, out, ('%s, item %d'):format(where, index), depth) end
  else
    error(("%s: expected a layer such as kv.swa, or a group, got %s%s"):format(where, type(item),
      type(item) == 'string' and (" '%s'; text goes through kv.layout 'text'"):format(item) or ''), 0)
  end
  return out
end

-- --- resolving and checking ---------------------------------------------------------------------------
-- "layer 3 (layer_id 2), reuse": people count layers from 1, checkpoints from 0; both are printed.
local function called(i, l) return ('layer %d (layer_id %d), %s'):format(i, i - 1, tostring(l)) end

local function resolve(layers, cut)
  local owner, selector = {}, {}
  local last_owner = 0
  local names = {}        -- name -> index of the owner
  local latest = {}       -- ratio -> index of the layer that made the latest selection over such entries
  for i = 1, #layers do
    local l = layers[i]
    local cache, select = l.cache, l.select
    local from = 0
    if cache == 'own' then
      from = i
      last_owner = i
      if l.name then
        if names[l.name] then
          error(("%s: the name '%s' belongs to layer %d already"):format(called(i, l), l.name, names[l.name]), 0)
        end
        names[l.name] = i
      end
      if l.source == 'encoder' and (not cut or i <= cut) then
        error(('%s: source = encoder needs a layer after the | that ends the encoder'):format(called(i, l)), 0)
      end
    elseif cache == 'share' then
      if l.of then
        from = names[l.of]
        if not from then
          local known = {}
          for name in pairs(names) do known[#known + 1] = name end
          error(("%s: no earlier owner is named '%s'%s"):format(called(i, l), l.of, suggest.phrase(l.of, known)), 0)
        end
      else
        from = last_owner
        if from == 0 then
          error(('%s: no earlier layer owns a cache to share; put an owner before it, such as full, csa or mla')
            :format(called(i, l)), 0)
        end
      end
      if l.form and l.form ~= layers[from].form then
        error(('%s: form = %s, but %s stores rows of form %s; leave form open'):format(called(i, l), l.form,
          called(from, layers[from]), layers[from].form), 0)
      end
    end
    owner[i] = from

    local chosen = 0
    if select == 'all' or select == 'topk' then
      chosen = i
      if select == 'topk' and cache == 'share' and not layers[from].keys then
        error(('%s: %s has no index keys to search; use reuse, or an owner with select = topk')
          :format(called(i, l), called(from, layers[from])), 0)
      end
    elseif select == 'share' then
      chosen = latest[layers[from].ratio]
      if not chosen then
        error(('%s: no earlier layer selects among entries of %d token%s; put a layer with select = topk or all '
          .. 'before it'):format(called(i, l), layers[from].ratio, layers[from].ratio == 1 and '' or 's'), 0)
      end
    end
    selector[i] = chosen
    if chosen == i then latest[layers[from].ratio] = i end
  end
  return owner, selector
end

-- What the records of a layout may be given for: a role, or a form of row (before the role, except for keys).
local RECORDS_FOR = { 'main', 'index', 'window', 'heads', 'latent', 'entry' }
local KNOWN = { 'name', 'encoder', 'decoder', 'widths', 'records', 'strict' }

-- A copy of labels: values and, one level down, tables of values (rope_scaling).
local function copy(t)
  if not t then return nil end
  local out = {}
  for key, value in next, t do
    if type(value) == 'table' then
      out[key] = {}
      for name, inner in next, value do out[key][name] = inner end
    else
      out[key] = value
    end
  end
  return out
end

-- new(layers, cut, labels) -> layout. `layers` is a fresh list that the layout keeps.
local function new(layers, cut, labels)
  if #layers == 0 then error('a layout needs at least one layer', 0) end
  local owner, selector = resolve(layers, cut)
  local self = setmetatable({}, meta)
  state[self] = { layers = layers, cut = cut, owner = owner, selector = selector,
    name = labels.name, widths = copy(labels.widths), records = copy(labels.records) }
  return self
end

local function label(spec)
  local name = spec.name
  if name ~= nil and (type(name) ~= 'string' or name == '' or name:find('%c')) then
    error(('layout: name = %s: expected a text in one line'):format(tostring(name):gsub('%c', '?')), 0)
  end
  for _, key in ipairs { 'widths', 'records' } do
    if spec[key] ~= nil and type(spec[key]) ~= 'table' then
      error(('layout: %s = %s: expected a table'):format(key, tostring(spec[key])), 0)
    end
  end
  opts.check(spec.records, RECORDS_FOR, 'layout: records', 'role')
  for role, record in pairs(spec.records or {}) do
    if type(record) ~= 'string' then
      error(('layout: records: %s = %s: expected the name of a record'):format(role, tostring(record)), 0)
    end
  end
  return spec
end

-- kv.layout(spec): a list of layers and groups, or { encoder = {...}, decoder = {...} }, or text.
function layout.new(spec, more)
  if more ~= nil then
    error(("layout: expected one argument, got a %s beside it; widths, records and name stand beside the layers: "
      .. "kv.layout { kv.layout 'swa full', widths = { ... } }"):format(type(more)), 0)
  end
  if type(spec) == 'string' then return require('kvlab.parse').layout(spec) end
  if layer.is(spec) or groups[spec] or state[spec] then spec = { spec } end
  if type(spec) ~= 'table' then
    error(('layout: expected a table of layers or a text, got %s'):format(type(spec)), 0)
  end
  check_list(spec, 'layout', KNOWN)
  label(spec)
  local layers, cut = {}, nil
  if spec.encoder ~= nil or spec.decoder ~= nil then
    if #spec > 0 then
      error('layout: layers stand either in the list or in encoder and decoder, not in both', 0)
    end
    for _, part in ipairs { 'encoder', 'decoder' } do
      if type(spec[part]) ~= 'table' then
        error(('layout: %s = %s: expected a list of layers; a layout with one part needs neither')
          :format(part, tostring(spec[part])), 0)
      end
    end
    flatten(spec.encoder, layers, 'encoder')
    cut = #layers
    flatten(spec.decoder, layers, 'decoder')
    if cut == 0 or cut == #layers then error('layout: encoder and decoder need a layer each', 0) end
  else
    local list = {}
    for index, item in ipairs(spec) do list[index] = item end
    flatten(list, layers, 'layout')
    -- A layout that stands alone in the list keeps its cut.
    if #spec == 1 and state[spec[1]] then cut = state[spec[1]].cut end
  end
  local self = new(layers, cut, spec)
  if spec.strict then
    local warnings = self:warnings()
    if warnings[1] then error(warnings[1], 0) end
  end
  return self
end

-- of_parts(encoder or nil, layers, labels): for the parser.
function layout.of_parts(first, second)
  local layers = flatten(first, {}, 'layout text')
  local cut
  if second then
    cut = #layers
    flatten(second, layers, 'layout text')
  end
  return new(layers, cut, {})
end

-- --- values -------------------------------------------------------------------------------------------
local function index_of(self, i)
  local n = #state[self].layers
  local whole = math.type(i) and math.tointeger(i)
  if not whole or whole < 1 or whole > n then
    error(('layer %s: this layout has layers 1 to %d'):format(tostring(i), n), 0)
  end
  return whole
end

function meta.__index(self, key)
  if class[key] then return class[key] end
  local own = state[self]
  if math.type(key) == 'integer' then return own.layers[key] end
  if key == 'name' then return own.name end
  if key == 'widths' or key == 'records' then return copy(own[key]) end -- a layout cannot be changed
  if key == 'cut' then return own.cut end
  return nil
end

function meta.__newindex() error('a layout cannot be changed; use L:with(i, layer), L:map(f) or L .. M', 2) end
function meta.__len(self) return #state[self].layers end

function meta.__eq(a, b)
  if not (state[a] and state[b]) then return false end
  local x, y = state[a], state[b]
  if x.cut ~= y.cut or #x.layers ~= #y.layers then return false end
  for i, l in ipairs(x.layers) do
    if l ~= y.layers[i] then return false end
  end
  return true
end

-- L .. M: the layers of both. A cut stays where it was; two cuts cannot be joined.
function meta.__concat(a, b)
  local layers, cut, labels = {}, nil, {}
  for _, part in ipairs { a, b } do
    local own = state[part]
    if own then
      if own.cut and cut then error('layout: both sides of .. have a |; only one encoder can be followed', 0) end
      if own.cut then cut = #layers + own.cut end
      labels = next(labels) and labels or own
    end
    flatten(part, layers, 'layout')
  end
  return new(layers, cut, labels)
end

-- L:with(i, layer) -> a copy with layer i (1-based) replaced.
function class:with(i, replacement)
  local at = index_of(self, i)
  if not layer.is(replacement) then
    error(('with: expected a layer such as kv.reindex, got %s'):format(type(replacement)), 0)
  end
  local own = state[self]
  local layers = table.move(own.layers, 1, #own.layers, 1, {})
  layers[at] = replacement
  return new(layers, own.cut, own)
end

-- L:map(f) -> a copy with every layer replaced by f(layer, i); nil keeps a layer.
function class:map(f)
  local own = state[self]
  local layers = {}
  for i, l in ipairs(own.layers) do
    local result = f(l, i)
    if result == nil then result = l end
    if not layer.is(result) then
      error(('map: layer %d: expected a layer or nil from the function, got %s'):format(i, type(result)), 0)
    end
    layers[i] = result
  end
  return new(layers, own.cut, own)
end

-- L:labelled { name =, widths =, records = } -> the same layers under other labels.
function class:labelled(labels)
  local own = state[self]
  label(labels)
  return new(own.layers, own.cut, { name = labels.name or own.name, widths = labels.widths or own.widths,
    records = labels.records or own.records })
end

-- L:owner(i) -> the layer (1-based) whose cache layer i reads, or nil.
function class:owner(i)
  local at = state[self].owner[index_of(self, i)]
  return at ~= 0 and at or nil
end

-- L:selector(i) -> the layer (1-based) that chose the entries which layer i reads, or nil.
function class:selector(i)
  local at = state[self].selector[index_of(self, i)]
  return at ~= 0 and at or nil
end

-- L:pool(i) -> the candidate pool { blocks =, block = } that layer i searches in, or nil. An owner builds its
-- pool but searches everything; a layer that selects over that owner's keys searches inside.
function class:pool(i)
  local at = index_of(self, i)
  local own = state[self]
  local l = own.layers[at]
  if l.select ~= 'topk' or l.cache ~= 'share' or l.pool == false then return nil end
  return own.layers[own.owner[at]].pool or nil
end

-- L:window(i, widths) -> the tokens that layer i keeps as local KV, or 0. widths.sliding_window fills what
-- a layer leaves open.
function class:window(i, widths)
  local own = state[self]
  local at = index_of(self, i)
  local value = own.layers[at].window
  if value == 'owner' then value = own.layers[own.owner[at]].window end
  if value == true then
    value = (widths or own.widths or {}).sliding_window
    if not value then
      error(('%s: its window is open; give the width sliding_window or the field window')
        :format(called(at, own.layers[at])), 0)
    end
  end
  return value or 0
end

-- L:form(i) -> 'heads', 'latent' or 'entry': what a row of layer i is.
function class:form(i)
  local own = state[self]
  local at = index_of(self, i)
  return own.layers[at].form or own.layers[own.owner[at]].form
end

-- L:called(i) -> "layer 3 (layer_id 2), reuse", the way messages name a layer.
function class:called(i) return called(i, state[self].layers[index_of(self, i)]) end

-- layout.classes(L) -> a list of { first =, count = }, and the entry of each layer: layers that are alike in
-- themselves, their owner, their selector and its owner (whose pool it may search), so that what holds for one
-- holds for all. Counting visits classes, not layers. The tables are the layout's own: they are for kvlab only.
function layout.classes(self)
  local own = state[self]
  if own.classes then return own.classes, own.class_of end
  local list, seen = {}, {}
  local layers, owner, selector = own.layers, own.owner, own.selector
  local ids, class_of = { [0] = 0 }, {}
  for i = 1, #layers do
    ids[i] = layer.id(layers[i])
    local chosen = selector[i]
    local reads, selects = ids[i] << 32 | ids[owner[i]], ids[chosen] << 32 | ids[owner[chosen] or 0]
    local a = seen[reads]
    if not a then a = {} seen[reads] = a end
    local entry = a[selects]
    if not entry then
      entry = { first = i, count = 0 }
      a[selects] = entry
      list[#list + 1] = entry
    end
    entry.count = entry.count + 1
    class_of[i] = entry
  end
  own.classes, own.class_of = list, class_of
  return list, class_of
end

-- L:classes() -> a list of { first =, count = }: the first layer of each kind of layer that there is, and how many.
function class:classes()
  local list = {}
  for at, entry in ipairs((layout.classes(self))) do list[at] = { first = entry.first, count = entry.count } end
  return list
end

-- L:warnings(widths) -> a list of texts. Tokens of an open block are readable only through the window, so a
-- ratio above the window hides some of them until the block is complete. The worst query is the one just
-- before that: ratio - 1 tokens are open, and the window shows its own.
function class:warnings(widths)
  local list = {}
  for _, entry in ipairs((layout.classes(self))) do
    local i = entry.first
    local at = self:owner(i)
    local ratio = at and self[at].ratio or 1
    if ratio > 1 then
      local window = self:window(i, widths)
      local hidden = ratio - 1 - window
      if hidden > 0 then
        list[#list + 1] = ('%s%s: entries cover %d tokens but the window %s, so up to %d tokens of an open block '
          .. 'are not readable: the query at position %d reads nothing of positions 0 to %d; use a window of %d '
          .. 'or more'):format(self:called(i), entry.count > 1 and (' and %d more'):format(entry.count - 1) or '',
          ratio, window == 0 and 'is none' or ('is only %d'):format(window), hidden, ratio - 2, hidden - 1, ratio - 1)
      end
    end
  end
  return list
end

-- --- printing -----------------------------------------------------------------------------------------
-- Which layer a repeated group should start with: owners before readers.
local function rank(l)
  if l.cache == 'own' then return 3 end
  if l.cache == 'none' then return 2 end
  return l.select == 'topk' and 1 or 0
end

-- How often the p layers from i on stand one after another, up to `last`.
local function repeats(layers, i, p, last)
  if i + p - 1 > last then return 0 end
  local j = i + p
  while j <= last and layers[j] == layers[j - p] do j = j + 1 end
  return (j - i) // p
end

local write
local function write_run(layers, i, p, r, out)
  local text = tostring(layers[i])
  if p > 1 then
    local body = {}
    write(layers, i, i + p - 1, body)
    text = '[' .. table.concat(body, ' ') .. ']'
  end
  out[#out + 1] = r > 1 and text .. '*' .. r or text
end

-- The shortest text that a greedy search for repeated groups finds.
function write(layers, first, last, out)
  local i = first
  while i <= last do
    local best_p, best_r = 1, repeats(layers, i, 1, last)
    for p = 2, math.min(MAX_PERIOD, (last - i + 1) // 2) do
      if best_p * best_r >= 4 * MAX_PERIOD then break end
      local r = repeats(layers, i, p, last)
      if (r - 1) * p > (best_r - 1) * best_p then best_p, best_r = p, r end
    end
    -- The same repetition may be read from a later start; begin it with the most owning layer.
    local shift = 0
    if best_p > 1 then
      for k = 1, best_p - 1 do
        if rank(layers[i + k]) > rank(layers[i + shift])
          and repeats(layers, i + k, best_p, last) >= best_r then shift = k end
      end
    end
    if shift > 0 then
      write(layers, i, i + shift - 1, out)
      i = i + shift
    end
    write_run(layers, i, best_p, best_r, out)
    i = i + best_p * best_r
  end
end

-- The text of the layout: kv.layout(tostring(L)) == L.
function meta.__tostring(self)
  local own = state[self]
  local out = {}
  write(own.layers, 1, own.cut or #own.layers, out)
  if own.cut then
    out[#out + 1] = '|'
    write(own.layers, own.cut + 1, #own.layers, out)
  end
  return table.concat(out, ' ')
end

layout.class = class
return layout
