-- describe.lua: a layout in words and as a picture of who shares what.
local count = require 'kvlab.count'
local format = require 'kvlab.format'
local json = require 'kvlab.json'

local describe = {}

local number = format.number

local FORMS = { heads = 'per-head K and V', latent = 'latent and rotary key', entry = 'K = V entries' }

local function entries(ratio) return ratio == 1 and 'all tokens' or ('entries of %s tokens'):format(number(ratio)) end

-- describe.layer(result, i) -> what layer i is, in a line: 'top-512 of entries of 2 tokens, last 128 tokens'.
function describe.layer(result, i)
  local L = result.layout
  local c = count.layer(result, i)
  local s, l = c.shape, L[i]
  local parts = {}
  if s.owner then
    if l.select == 'topk' then
      parts[1] = ('top-%s of %s'):format(number(s.topk), s.ratio == 1 and 'tokens' or entries(s.ratio))
      if s.pool then
        parts[1] = parts[1] .. (', inside the pool of %s blocks of %s'):format(number(s.pool.blocks),
          number(s.pool.block))
      elseif l.pool then
        parts[1] = parts[1] .. (', builds a pool of %s blocks of %s'):format(number(l.pool.blocks),
          number(l.pool.block))
      end
    elseif l.select == 'all' then
      parts[1] = s.ratio == 1 and 'all tokens' or 'all ' .. entries(s.ratio)
    else
      parts[1] = ('what layer %d selects'):format(L:selector(i))
    end
    if l.cache == 'own' and l.overlap then parts[1] = parts[1] .. ', overlapping' end
  end
  if s.window > 0 then parts[#parts + 1] = ('last %s tokens'):format(number(s.window)) end
  return table.concat(parts, ' + ')
end

local function borrowed(at, i)
  if not at then return '-' end
  return at == i and 'own' or tostring(at)
end

local function records(c)
  local names = {}
  if c.shape.owns then
    names[1] = c.main_record.name
    if c.index_record then names[2] = c.index_record.name end
  end
  if c.window_record then names[#names + 1] = c.window_record.name end
  return table.concat(names, ', ')
end

-- describe.layers(result) -> lines of a table, one for each layer; layers counted from 1, layer_id from 0.
function describe.layers(result)
  local L = result.layout
  local rows = { { 'layer', 'id', 'kind', 'reads', 'cache of', 'selection of', 'records' } }
  for i = 1, #L do
    local c = count.layer(result, i)
    rows[#rows + 1] = { tostring(i), tostring(i - 1), tostring(L[i]), describe.layer(result, i),
      borrowed(L:owner(i), i), borrowed(L:selector(i), i), records(c) }
  end
  local lines = format.table(rows, { 'r', 'r', 'l', 'l', 'r', 'r', 'l' })
  if L.cut then
    table.insert(lines, L.cut + 2,
      ('-- encoder above, decoder below: owners below project the output of layer %d'):format(L.cut))
  end
  return lines
end

-- describe.layer_json(result, i) -> what `kvlab layout --json` says of layer i.
function describe.layer_json(result, i)
  local L = result.layout
  local c = count.layer(result, i)
  local owner, selector = L:owner(i), L:selector(i)
  local function name(rec) return rec and rec.name or json.null end
  return json.object {
    { 'layer_id', i - 1 }, { 'kind', L[i].kind }, { 'layer', tostring(L[i]) }, { 'reads', describe.layer(result, i) },
    { 'form', FORMS[c.shape.form] and c.shape.form or json.null }, { 'owner', owner and owner - 1 or json.null },
    { 'selector', selector and selector - 1 or json.null }, { 'ratio', c.shape.ratio or json.null },
    { 'topk', c.shape.topk or json.null }, { 'window', c.shape.window }, { 'record', name(c.main_record) },
    { 'index_record', name(c.index_record) }, { 'window_record', name(c.window_record) },
  }
end

-- --- the picture --------------------------------------------------------------------------------------
local LETTERS = 'ABCDEFGHIJKLMNOPQRSTUVWXYZ'
local PER_LINE = 60

-- One letter for each of `count` sources: A .. Z and again; capital where it is made, small where borrowed.
local function marks(L, source_of)
  local letter, used, out = {}, 0, {}
  for i = 1, #L do
    local at = source_of(i)
    if not at then
      out[i] = '.'
    else
      if at == i then
        letter[i] = LETTERS:sub(used % 26 + 1, used % 26 + 1)
        used = used + 1
      end
      out[i] = at == i and letter[at] or letter[at]:lower()
    end
  end
  return out, used
end

local function with_cut(cells, cut, first, last)
  local text = table.concat(cells, '', first, last)
  if cut and cut >= first and cut < last then
    text = text:sub(1, cut - first + 1) .. '|' .. text:sub(cut - first + 2)
  end
  return text
end

-- describe.sharing(L) -> lines: one column a layer, capitals own or select, the same small letter borrows.
function describe.sharing(L)
  local n = #L
  local caches, owners = marks(L, function(i) return L:owner(i) end)
  local selections, selectors = marks(L, function(i) return L:selector(i) end)
  local windows, tens, ones = {}, {}, {}
  local windowed = 0
  for i = 1, n do
    windows[i] = L[i].window and 'w' or '.'
    if L[i].window then windowed = windowed + 1 end
    tens[i] = i % 10 == 0 and tostring(i // 10 % 10) or ' '
    ones[i] = tostring(i % 10)
  end
  local lines = {}
  for first = 1, n, PER_LINE do
    local last = math.min(n, first + PER_LINE - 1)
    if first > 1 then lines[#lines + 1] = '' end
    for _, row in ipairs { { 'layer', tens }, { '', ones }, { 'cache', caches }, { 'selection', selections },
      { 'window', windows } } do
      lines[#lines + 1] = ('%-10s %s'):format(row[1], with_cut(row[2], L.cut, first, last)):gsub('%s+$', '')
    end
  end
  local function each(k, one, many) return ('%s layer%s'):format(number(k), k == 1 and ' ' .. one or 's ' .. many) end
  lines[#lines + 1] = ('%s a cache, %s, %s a window; a capital makes it, the same small letter borrows it%s')
    :format(each(owners, 'owns', 'own'), each(selectors, 'selects', 'select'), each(windowed, 'keeps', 'keep'),
      L.cut and '; | ends the encoder' or '')
  return lines
end

return describe
