-- draw/trace.lua: a trace as rows of entries and positions, and as a table of what was read; the grid of a prefill.
local format = require 'kvlab.format'
local opts = require 'kvlab.options'
local screen = require 'kvlab.plot.screen'
local strip = require 'kvlab.plot.strip'

local draw = {}

local PAGE <const> = 120 -- columns of a file
local MOST <const> = 24 -- rows of layers that are shown when nobody says which

local number = format.number

-- --- which layers look alike --------------------------------------------------------------------------------------

local function same(a, b)
  if a == b then return true end
  if not a or not b or #a ~= #b then return false end
  for i, x in ipairs(a) do
    if x ~= b[i] then return false end
  end
  return true
end

local function alike(a, b)
  return a.text == b.text and a.ratio == b.ratio and same(a.selected, b.selected) and same(a.window, b.window)
    and same(a.scored, b.scored) and same(a.pool, b.pool) and #a.readable == #b.readable
end

-- Runs of layers that read the same: { first =, last =, one = }.
local function runs_of(layers)
  local runs = {}
  for i, one in ipairs(layers) do
    local run = runs[#runs]
    if run and alike(run.one, one) then run.last = i else runs[#runs + 1] = { first = i, last = i, one = one } end
  end
  return runs
end

local function numbers(run)
  return run.first == run.last and tostring(run.first) or ('%d-%d'):format(run.first, run.last)
end

-- --- the rows -----------------------------------------------------------------------------------------------------

local READ <const>, OUTSIDE <const>, WINDOW <const>, POOL <const>, SCORED <const>, SEEN <const>, NOTHING <const> =
  '#', '*', 'w', '+', '-', 'o', '.'

local LEGEND = {
  { OUTSIDE, 'read, and outside the pool that it builds' }, { READ, 'entry that is read' },
  { '1', 'tenths of the entries that are read, 1 also for less' },
  { WINDOW, 'row of the window that is read' }, { POOL, 'scored and in the pool, not read' },
  { SCORED, 'scored, not read' }, { SEEN, 'readable, neither scored nor read' }, { '[', 'ends of an entry' },
  { NOTHING, 'nothing that is readable' } }

-- What became of each entry of a layer, by its number.
local function states(one)
  local state = {}
  for _, id in ipairs(one.readable) do state[id] = SEEN end
  for _, id in ipairs(one.scored) do state[id] = SCORED end
  for _, id in ipairs(one.pool or {}) do state[id] = POOL end
  for _, id in ipairs(one.selected) do
    state[id] = one.pool and #one.scored > #one.pool and state[id] == SCORED and OUTSIDE or READ
  end
  return state
end

-- The entries of a layer over the tokens of their blocks. Entries of three tokens and more show where they end.
local function entry_cells(one, n)
  local state, cells = states(one), {}
  for at = 0, n - 1 do
    local place = at % one.ratio
    local char = state[at // one.ratio] or NOTHING
    if one.ratio >= 3 and char ~= NOTHING then
      if place == 0 then char = '[' elseif place == one.ratio - 1 then char = ']' end
    end
    cells[at + 1] = char
  end
  return cells
end

local BEST = { POOL, SCORED, SEEN }

-- The same where a column stands for `every` positions: how many tenths of its entries are read, or what became of
-- the best of them.
local function entry_bins(one, n, every)
  local state, cells = states(one), {}
  for first = 0, n - 1, every do
    local read, entries, seen = 0, 0, {}
    for id = first // one.ratio, (math.min(n, first + every) - 1) // one.ratio do
      local char = state[id]
      if char then
        entries = entries + 1
        if char == READ or char == OUTSIDE then read = read + 1 else seen[char] = true end
      end
    end
    local char = NOTHING
    if read > 0 then
      char = read == entries and READ or tostring(math.max(1, 10 * read // entries))
    else
      for _, best in ipairs(BEST) do
        if seen[best] then char = best break end
      end
    end
    cells[#cells + 1] = char
  end
  return cells
end

local function window_cells(one, n, every)
  local cells = {}
  for at = 1, (n - 1) // every + 1 do cells[at] = NOTHING end
  for _, at in ipairs(one.window) do cells[at // every + 1] = WINDOW end
  return cells
end

-- The legend of the characters that are there, '[' standing for both ends and 1 for every digit.
local function legend_of(rows)
  local used, out = {}, {}
  for _, row in ipairs(rows) do
    for _, char in ipairs(row[2]) do used[char:find '%d' and '1' or char] = true end
  end
  for _, one in ipairs(LEGEND) do
    if used[one[1]] then out[#out + 1] = { one[1] == '[' and '[ ]' or one[1] == '1' and '1-9' or one[1], one[2] } end
  end
  return out
end

local function range_of(list, count)
  if list == nil then return 1, count end
  local pair = type(list) == 'table' and list or {}
  local first, last = math.tointeger(pair[1]), math.tointeger(pair[2])
  if not first or not last or first < 1 or last > count or first > last then
    error(('draw: layers: expected { first, last } between 1 and %d'):format(count), 0)
  end
  return first, last
end

-- --- the table ----------------------------------------------------------------------------------------------------

local function count_or_dash(list) return list and number(#list) or '-' end

-- Counts and bytes of one layer of each run, and the sum up to its last; with bytes rounded where they are too wide.
local function table_of(runs, layers, width, rounded)
  local bytes = rounded and format.bytes or number
  local rows = { { 'layer', 'readable', 'scored', 'pool', 'entries', 'window', 'rows', 'keys B', 'KV B', 'so far B' } }
  for _, run in ipairs(runs) do
    local one, r = run.one, run.one.reads
    rows[#rows + 1] = { numbers(run), count_or_dash(one.owner and one.readable),
      count_or_dash(#one.scored > 0 and one.scored or nil), count_or_dash(one.pool),
      count_or_dash(one.owner and one.selected), count_or_dash(#one.window > 0 and one.window or nil),
      number(#one.selected + #one.window),
      bytes(r.index_bytes), bytes(r.selected_bytes + r.window_bytes), bytes(layers[run.last].after) }
  end
  if rounded then -- and without the sum of rows
    rows[1][8], rows[1][9], rows[1][10] = 'keys', 'KV', 'so far'
    for _, row in ipairs(rows) do table.remove(row, 7) end
  end
  local lines = format.table(rows)
  if not rounded then
    for _, line in ipairs(lines) do
      if screen.width(line) + 2 > width then return table_of(runs, layers, width, true) end
    end
  end
  return lines
end

local function sum(self)
  if self.equal then
    return ('the counters say %s B in all, layer by layer what kv.count computes'):format(number(self.read_bytes))
  end
  return ('the counters say %s B in all, kv.count %s B'):format(number(self.read_bytes), number(self.counted_bytes))
end

local function label(run) return ('%s %s'):format(numbers(run), run.one.text) end

local function called(self, width) return screen.cut(self.name or tostring(self.layout), width - 2) end

local OPTIONS = { 'width', 'ascii', 'layers', 'file' }

local function check(o)
  o = opts.check(o or {}, OPTIONS, 'draw', 'option')
  return o, screen.size(o.width, o.file and PAGE or math.min(screen.columns(), 200), 40, 1000, 'draw: width')
end

-- draw.step(trace, options) -> text, or the name of the file
function draw.step(self, options)
  local o, width = check(options)
  local n = self.context
  local first, last = range_of(o.layers, #self.layers)
  local all = runs_of(table.move(self.layers, first, last, 1, {}))
  for _, run in ipairs(all) do run.first, run.last = run.first + first - 1, run.last + first - 1 end
  local runs = o.layers and all or table.move(all, 1, math.min(#all, MOST), 1, {})
  local labels, windows = #'every window', nil
  for _, run in ipairs(runs) do
    labels = math.max(labels, screen.width(label(run)))
    if #run.one.window > 0 then windows = windows == nil and run.one.window or same(windows, run.one.window)
      and windows end
  end
  -- Columns of the strip; it cuts labels at a third.
  local every = math.max(1, math.ceil(n / (width - math.min(labels, width // 3) - 4)))
  local rows = {}
  for _, run in ipairs(runs) do
    local one = run.one
    if one.owner then
      rows[#rows + 1] = { label(run), every == 1 and entry_cells(one, n) or entry_bins(one, n, every) }
    end
    if #one.window > 0 and not windows then
      rows[#rows + 1] = { one.owner and '  window' or label(run), window_cells(one, n, every) }
    end
  end
  if windows then -- one row says it, when all are the same
    local only = #runs == 1 and (runs[1].one.owner and '  window' or label(runs[1]))
    rows[#rows + 1] = { only or 'every window', window_cells({ window = windows }, n, every) }
  end
  if #rows == 0 then rows[1] = { 'nothing', window_cells({ window = {} }, n, every) } end
  local picture = strip { title = ('%s: what the query at position %s reads'):format(called(self, width),
    number(self.position)), x = every == 1 and 'position; an entry lies over the tokens of its block'
      or ('times %s positions'):format(number(every)), from = 0, rows = rows,
    legend = legend_of(rows), width = width, ascii = o.ascii, file = o.file }
  if o.file then return picture end
  local lines = { picture, '' }
  for _, line in ipairs(table_of(runs, self.layers, width)) do lines[#lines + 1] = screen.cut('  ' .. line, width) end
  local notes = { sum(self) }
  if #runs < #self.layers then notes[2] = 'where several layers read alike, figures are those of one of them' end
  if #runs < #all then
    notes[#notes + 1] = ('%d more layers: trace:draw { layers = { %d, %d } }'):format(last - runs[#runs].last,
      runs[#runs].last + 1, math.min(last, runs[#runs].last + MOST))
  end
  if self.widths then notes[#notes + 1] = 'widths and records that were not given are those of ' .. self.widths end
  if self.stand_ins then
    notes[#notes + 1] = 'rows and queries are random numbers, so it is chance which entries are picked; how many is not'
  end
  for _, note in ipairs(notes) do
    for _, line in ipairs(screen.words(note, width - 2)) do lines[#lines + 1] = '  ' .. line end
  end
  return table.concat(lines, '\n')
end

-- --- prefill ------------------------------------------------------------------------------------------------------

local RUN <const>, STORED <const>, SKIPPED <const> = '#', 'k', '.'

-- draw.grid(prefill, options) -> text, or the name of the file
function draw.grid(self, options)
  local o, width = check(options)
  local L, n = self.layout, self.length
  local first, last = range_of(o.layers, #L)
  local rows, used = {}, {}
  local before
  for i = first, last do
    local one, cells = self.layers[i], {}
    for at = 0, n - 1 do
      local char = SKIPPED
      if at >= one.first and at <= one.last then char = RUN
      elseif one.entries and at < one.entries * one.ratio then char = STORED end
      cells[at + 1], used[char] = char, true
    end
    local text = table.concat(cells)
    if before and before.text == text and before.kind == tostring(L[i]) and i - 1 ~= L.cut then
      before.last = i
    else
      before = { text = text, cells = cells, first = i, last = i, kind = tostring(L[i]) }
      if L.cut and i == L.cut + 1 and i > first then rows[#rows + 1] = { text = '' } end
      rows[#rows + 1] = before
    end
  end
  for at, row in ipairs(rows) do
    rows[at] = row.text == '' and { 'encoder above', {} } or { ('%s %s'):format(numbers(row), row.kind), row.cells }
  end
  local legend = {}
  for _, one in ipairs { { RUN, 'layer runs' }, { STORED, 'only its cache is filled' }, { SKIPPED, 'skipped' } } do
    if used[one[1]] then legend[#legend + 1] = one end
  end
  local title = ('%s: prefill of %s tokens%s'):format(called(self, width), number(n),
    self.replay and (', decoder on the last %s'):format(number(self.replay)) or '')
  local note = ('evaluations of (position, layer): %s'):format(number(self.evaluations))
  if self.replay then
    note = ('%s, without replay %s (%.1f %%). The output at the last position differs by %.3g of its length.'):format(
      note, number(self.whole.evaluations), 100 * self.evaluations / self.whole.evaluations, self.error)
  end
  return strip { title = title, x = 'position', from = 0, rows = rows, legend = legend, note = note, width = width,
    ascii = o.ascii, file = o.file }
end

return draw
