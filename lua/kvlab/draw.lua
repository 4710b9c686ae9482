-- draw.lua: pictures of layouts and layers: Layout:draw, Layer:draw, Attention:draw.
--
-- A layout is a row for each layer, equal neighbours in one row. In the lanes beside them a cache begins where a layer
-- makes it and goes down to the last layer that reads it, and so does a selection; how sharing is resolved is asked of
-- the layout. A layer is drawn as boxes (kvlab.draw.layer).
local attention = require 'kvlab.attention'
local count = require 'kvlab.count'
local format = require 'kvlab.format'
local layer = require 'kvlab.layer'
local layout = require 'kvlab.layout'
local layers = require 'kvlab.draw.layer'
local opts = require 'kvlab.options'
local page = require 'kvlab.draw.page'
local screen = require 'kvlab.plot.screen'
local shape = require 'kvlab.shape'
local width_rules = require 'kvlab.widths'

local draw = {}

local number = format.number

local LANES <const> = 6       -- caches, or selections, side by side
local UNFOLDED <const> = 24   -- rows up to which repeated groups are written out
local PERIOD <const> = 12     -- the longest group of rows that is looked for

local SIGNS = { utf8 = { makes = '●', reads = '○', passes = '│', times = '×', rule = '─' },
  ascii = { makes = '@', reads = 'o', passes = '|', times = 'x', rule = '-' } }

-- --- rows ---------------------------------------------------------------------------------------------------------

-- Where layer i takes something from: itself, an earlier one, nothing.
local function from(source, i) return source == i and 'self' or source or 'none' end

-- Neighbours that are the same layer and share with the same ones: { first =, last =, owner =, selector = }.
local function rows_of(L)
  local rows = {}
  for i = 1, #L do
    local row, owner, selector = rows[#rows], L:owner(i), L:selector(i)
    if row and i - 1 ~= L.cut and row.layer == L[i] and from(row.owner, row.first) == from(owner, i)
      and from(row.selector, row.first) == from(selector, i) then
      row.last = i
    else
      rows[#rows + 1] = { first = i, last = i, layer = L[i], owner = owner, selector = selector }
    end
  end
  return rows
end

-- The index of the row that layer i is in.
local function row_at(rows, i)
  local low, high = 1, #rows
  while low < high do
    local middle = (low + high) // 2
    if rows[middle].last < i then low = middle + 1 else high = middle end
  end
  return low
end

-- Two rows are alike when their layers are and what they share is as far away.
local function signature(rows, at)
  local row = rows[at]
  local function distance(source)
    if not source then return '-' end
    local of = row_at(rows, source)
    return ('%d:%d'):format(at - of, source - rows[of].last)
  end
  return ('%s %d %s %s'):format(tostring(row.layer), row.last - row.first, distance(row.owner), distance(row.selector))
end

-- Which rows are shown: a list of { at = row } and of { rows =, times =, first =, last = } for what repeats the rows
-- before it. The cut is not crossed.
local function folded(rows, cut)
  local shown = {}
  if #rows <= UNFOLDED then
    for at = 1, #rows do shown[at] = { at = at } end
    return shown
  end
  local signs = {}
  for at in ipairs(rows) do signs[at] = signature(rows, at) end
  local at = 1
  while at <= #rows do
    local best, times = 1, 1
    for period = 1, math.min(PERIOD, #rows // 2) do
      local last = at + period
      while last <= #rows and signs[last] == signs[last - period]
        and not (cut and rows[last].first > cut and rows[at].first <= cut) do last = last + 1 end
      local n = (last - at) // period
      if n > 1 and (n - 1) * period > (times - 1) * best then best, times = period, n end
    end
    for k = at, at + best - 1 do shown[#shown + 1] = { at = k } end
    local past = at + best * times
    if times > 1 then
      shown[#shown + 1] = { rows = best, times = times, first = rows[at].first, last = rows[past - 1].last }
    end
    at = past
  end
  return shown
end

-- --- lanes --------------------------------------------------------------------------------------------------------

-- lanes(rows, shown, key, sign) -> for each row a text with a column for each cache (key = 'owner') or selection that
-- is read on both sides of it, or there. Those that find no column have none.
local function lanes_of(rows, shown, key, sign)
  local last, most = {}, 0
  for at, row in ipairs(rows) do
    if row[key] then last[row_at(rows, row[key])] = at end
  end
  local held, texts = {}, {}
  for _, item in ipairs(shown) do
    local at = item.at
    if at then
      local row, cells = rows[at], {}
      local source = row[key] and row_at(rows, row[key])
      if source == at then
        for lane = 1, LANES do
          if not held[lane] or last[held[lane]] < at then held[lane] = at break end
        end
      end
      for lane = 1, LANES do
        local of = held[lane]
        local alive = of and last[of] >= at
        cells[lane] = not alive and ' ' or of ~= source and sign.passes
          or (row[key] == row.first and sign.makes or sign.reads)
        if alive then most = math.max(most, lane) end
      end
      texts[at] = cells
    end
  end
  for at, cells in pairs(texts) do texts[at] = table.concat(cells, '', 1, math.max(most, 1)) end
  return texts
end

-- --- words --------------------------------------------------------------------------------------------------------

local function numbers(first, last) return first == last and tostring(first) or ('%d-%d'):format(first, last) end

local function cache_text(L, row)
  if not row.owner then return '' end
  if row.owner ~= row.first then return ('of %d'):format(row.owner) end
  local l = row.layer
  local text = row.last > row.first and 'own each' or 'own'
  if l.ratio > 1 then text = ('%s, 1 per %s tokens'):format(text, number(l.ratio)) end
  if L.cut and row.first > L.cut and l.source ~= 'input' then text = text .. ', from encoder' end
  return text
end

local function selection_text(L, row, widths)
  if not row.selector then return '' end
  if row.selector ~= row.first then return ('of %d'):format(row.selector) end
  local l = row.layer
  if l.select ~= 'topk' then return 'all' end
  local k = l.topk or widths.index_topk
  local text = 'top-' .. (k and number(k) or 'k')
  local pool = L:pool(row.first)
  if pool then return text .. ' in pool' end
  return l.pool and ('%s, pool %dx%d'):format(text, l.pool.blocks, l.pool.block) or text
end

local function window_text(L, row, widths)
  if not row.layer.window then return '' end
  local ok, tokens = pcall(L.window, L, row.first, widths)
  return not ok and 'yes' or tokens > 0 and number(tokens) or ''
end

local function heading(L)
  local owns, selects, windows = 0, 0, 0
  for _, entry in ipairs(L:classes()) do
    local i = entry.first
    if L:owner(i) == i then owns = owns + entry.count end
    if L:selector(i) == i then selects = selects + entry.count end
    if L[i].window and window_text(L, { layer = L[i], first = i }, {}) ~= '' then windows = windows + entry.count end
  end
  local function each(n, one, many) return ('%s %s'):format(number(n), n == 1 and one or many) end
  return ('%s: %s, %s global KV, %s, %s a window'):format(L.name or 'layout', each(#L, 'layer', 'layers'),
    each(owns, 'makes', 'make'), each(selects, 'selects', 'select'), each(windows, 'keeps', 'keep'))
end

-- --- the picture of a layout ---------------------------------------------------------------------------------------

local OPTIONS = { 'widths', 'width', 'ascii', 'layer', 'order', 'parts', 'file' }

-- The second column, of { kind, how many }, gets what the others leave.
local function fit_kinds(rows, width)
  local room = width - 2
  for column = 1, 5 do
    local widest = 0
    for _, row in ipairs(rows) do
      if column ~= 2 then widest = math.max(widest, screen.width(row[column])) end
    end
    room = room - widest - (column > 1 and 2 or 0)
  end
  for i = 2, #rows do
    local kind, many = table.unpack(rows[i][2])
    rows[i][2] = screen.cut(kind, math.max(8, room - screen.width(many))) .. many
  end
end

local function draw_layout(L, o)
  o = page.options(o)
  local sign = SIGNS[screen.ascii(o.ascii) and 'ascii' or 'utf8']
  local width = screen.size(o.width, math.min(screen.columns(), 120), 40, 1000, 'draw: width')
  local widths = width_rules.merge(L.widths, o.widths)
  local rows = rows_of(L)
  local shown = folded(rows, L.cut)
  local caches, selections = lanes_of(rows, shown, 'owner', sign), lanes_of(rows, shown, 'selector', sign)
  local cells = { { 'layer', 'kind', 'window', 'global KV', 'selection' } }
  for _, item in ipairs(shown) do
    local row = rows[item.at]
    if row then
      local many = row.last - row.first + 1
      cells[#cells + 1] = { numbers(row.first, row.last), { tostring(row.layer),
        many > 1 and (' %s%d'):format(sign.times, many) or '' }, window_text(L, row, widths),
        ('%s %s'):format(caches[item.at], cache_text(L, row)),
        ('%s %s'):format(selections[item.at], selection_text(L, row, widths)) }
    else
      cells[#cells + 1] = item
    end
  end
  local lines = screen.words(heading(L), width)
  lines[#lines + 1] = ''
  -- Only rows of texts go through the table; notes and the cut stand between them.
  local plain, notes = {}, {}
  for _, row in ipairs(cells) do
    if row.times then notes[#plain] = row else plain[#plain + 1] = row end
  end
  fit_kinds(plain, width)
  local at_cut
  for at, line in ipairs(format.table(plain, { 'l', 'l', 'r', 'l', 'l' })) do
    lines[#lines + 1] = screen.cut('  ' .. line, width)
    local note = notes[at]
    if note then
      lines[#lines + 1] = screen.cut(('  %s the %s above %s%s: layers %s'):format(('.'):rep(3), note.rows == 1
        and 'row' or ('%d rows'):format(note.rows), sign.times, number(note.times), numbers(note.first, note.last)),
        width)
    end
    local last = note and note.last or at > 1 and math.tointeger(tonumber(plain[at][1]:match('(%d+)$')))
    if L.cut and last == L.cut and not at_cut then
      at_cut = true
      local text = sign.rule:rep(3) .. ' encoder above; its output makes the global KV of owners below '
      text = screen.cut('  ' .. text, width)
      lines[#lines + 1] = text .. sign.rule:rep(width - screen.width(text))
    end
  end
  local marks, legend = {}, {} -- of the lanes: letters of words are none
  for _, item in ipairs(shown) do
    if item.at then marks[#marks + 1] = caches[item.at] .. selections[item.at] end
  end
  marks = table.concat(marks)
  for _, one in ipairs { { sign.makes, 'makes it' }, { sign.reads, 'borrows it, of the layer that is named' },
    { sign.passes, 'is read further down' } } do
    if marks:find(one[1], 1, true) then legend[#legend + 1] = one[1] .. ' ' .. one[2] end
  end
  if #legend > 0 then
    lines[#lines + 1] = ''
    for _, line in ipairs(screen.wrap(legend, width, '  ')) do lines[#lines + 1] = line end
  end
  local text = table.concat(lines, '\n')
  return o.file and page.file(text, o.file, 'draw') or text
end

-- Layer i of a layout, with the widths that kv.count takes.
local function draw_one(L, i, o)
  local widths, borrowed = count.model_widths(L, o.widths)
  local s = shape.of(L, i, widths)
  local title = ('%s%s%s'):format(L:called(i), L.name and ' of ' .. L.name or '',
    borrowed and ', with widths of v4.1-flash' or '')
  return layers.layer(s, title, attention.softmax_scale(s), { at = i,
    encoder = L.cut and i > L.cut and s.owns and s.layer.source ~= 'input' },
    { width = o.width, ascii = o.ascii, order = o.order, parts = o.parts, file = o.file })
end

-- L:draw { widths =, width =, ascii =, file =, layer = i, order =, parts = } -> text, or the name of the file
function layout.class:draw(options)
  local o = opts.check(options or {}, OPTIONS, 'draw', 'option')
  if o.layer == nil then
    for _, name in ipairs { 'order', 'parts' } do
      if o[name] then error(('draw: %s is of one layer; give layer = its number'):format(name), 0) end
    end
    return draw_layout(self, o)
  end
  local i = opts.whole(o.layer, 1, 'draw: layer')
  if i > #self then error(('draw: layer = %d: this layout has layers 1 to %d'):format(i, #self), 0) end
  return draw_one(self, i, o)
end

-- l:draw(widths, options) -> text. What the layer borrows has to be in a layout.
function layer.class:draw(widths, options)
  local o = opts.check(options or {}, { 'width', 'ascii', 'order', 'parts', 'file' }, 'draw', 'option')
  if self.cache == 'share' or self.select == 'share' then
    error(('draw: %s borrows from layers before it; draw it where it stands: L:draw { layer = i }'):format(
      tostring(self)), 0)
  end
  local L = layout.new { self }
  if widths then L = L:labelled { widths = width_rules.merge(nil, widths) } end
  return draw_one(L, 1, o)
end

-- A:draw(options) -> text
function attention.class:draw(options)
  return layers.layer(self.shape, tostring(self.shape.layer), self.scale, { at = self.index, order = self.order,
    no_rope = not self.freqs }, options)
end

return draw
