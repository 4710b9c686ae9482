-- cell.lua: what one layer keeps between chunks: stores of rows and the states of its compressors.
--
-- A store is a list of rows that grows at its end; it says where its rows are as a source for kv.attend and
-- kv.index. Two kinds:
--   tensors   rows [B, n, channels] in float32, through a quantiser (a record's decode of its encode) or not
--   a table   pages of records in a pool, one sequence (B = 1); every read is counted there
-- A window is a store of which only the last rows are read; in a pool it is a ring.
local ops = require 'kvlab.ops'

local cell = {}

-- --- tensors ------------------------------------------------------------------------------------------
local Tensors = {}
Tensors.__index = Tensors

local function tensors(plan) return setmetatable({ plan = plan, rows = nil, first = 0 }, Tensors) end

function Tensors:append(rows)
  if rows.shape[2] == 0 then return end
  if self.plan then rows = ops.roundtrip(self.plan, rows) end
  self.rows = self.rows and ops.cat({ self.rows, rows }, 2) or rows
end

function Tensors:count() return self.rows and self.rows.shape[2] or 0 end
function Tensors:source() return { rows = self.rows, pos0 = self.first, store = self } end
function Tensors.read(_, source) return source.rows end

-- extend(rows, pos0): appends the window rows of a chunk and says where those that it may see are.
function Tensors:extend(rows, pos0)
  if not self.rows then self.first = pos0 end
  self:append(rows)
  return self:source()
end

-- --- tables of a pool ---------------------------------------------------------------------------------
local Tables = {}
Tables.__index = Tables

local function tables(table) return setmetatable({ table = table }, Tables) end

function Tables:append(rows) self.table:append(rows) end
function Tables:count() return #self.table end

-- source(kind, counters): whoever reads counts, not the owner of the rows.
function Tables:source(kind, counters)
  return { table = self.table, counters = counters, kind = kind, store = self }
end

-- A single query reads what it selected, and no more; its list then names the rows that were read.
function Tables:read(source)
  local list = source.list
  if list and list.shape[2] == 1 then
    local n = math.tointeger(list:ge(0):sum()) -- the ids come first, -1 after them
    local places = ops.arange(0, list.shape[3] - 1):reshape(1, 1, -1)
    source.list = ops.where(list:ge(0), places, list)
    return self.table:read(list:reshape(-1):slice(1, 1, n), source.kind, source.counters):unsqueeze(1)
  end
  return self.table:read(1, #self.table, source.kind, source.counters):unsqueeze(1)
end

-- --- rings --------------------------------------------------------------------------------------------
local Rings = {}
Rings.__index = Rings

local function rings(table, counters, plan, window)
  return setmetatable({ table = table, counters = counters, plan = plan, window = window, first = 0 }, Rings)
end

-- append(rows, pos0): rows that no query of their chunk reads.
function Rings:append(rows, pos0)
  if #self.table == 0 then self.first = pos0 end
  self.table:append(rows)
end

-- One token is read from the ring like any other row. A longer chunk does not fit into the ring beside the
-- rows that its first queries need, so these are read out first and the chunk's own rows follow them as the
-- record would give them back.
function Rings:extend(rows, pos0)
  if rows.shape[2] == 1 then
    self:append(rows, pos0)
    return { table = self.table, counters = self.counters, kind = 'window', store = self, pos0 = self.first }
  end
  local seen = math.min(self.window - 1, #self.table)
  local all = ops.roundtrip(self.plan, rows)
  if seen > 0 then
    local last = #self.table
    all = ops.cat({ self.table:read(last - seen + 1, last, 'window', self.counters):unsqueeze(1), all }, 2)
  end
  self:append(rows, pos0)
  return { rows = all, pos0 = pos0 - seen, store = self }
end

function Rings:count() return #self.table end

function Rings:read(source)
  if source.rows then return source.rows end
  local last = #self.table
  local seen = math.min(self.window, last)
  source.pos0 = source.pos0 + last - seen
  return self.table:read(last - seen + 1, last, 'window', self.counters):unsqueeze(1)
end

-- --- cells --------------------------------------------------------------------------------------------
local class = {}
local meta = { __index = class, __name = 'kvlab.Cell' }

local function compressor(A, width, bias, rollback, batch)
  local l = A.shape.layer
  local o = { ratio = l.ratio, width = width, overlap = l.overlap, bias = bias, batch = batch }
  if A.tape then return ops.tape_compressor(o) end
  o.rollback = rollback
  return ops.compressor(o)
end

local function add_compressors(self, A, rollback, batch)
  local s = A.shape
  if not s.owns then return end
  local l = s.layer
  if l.ratio > 1 or s.form == 'entry' then
    self.compressor = compressor(A, s.main.channels, A.w['compressor.ape'], rollback, batch)
  end
  if l.keys == 'compressor' then
    self.index_compressor = compressor(A, s.index.channels, A.w['indexer.compressor.ape'], rollback, batch)
  end
end

-- cell.of_tensors(A, batch, quantisers) -> the cell of layer A for the full-sequence form. quantisers: plans
-- main, index, window, or none of them.
function cell.of_tensors(A, batch, quantisers)
  local s = A.shape
  local q = quantisers or {}
  local self = setmetatable({}, meta)
  add_compressors(self, A, 0, batch)
  if s.owns then self.main = tensors(q.main) end
  if s.owns and s.layer.keys then self.index = tensors(q.index) end
  if s.window > 0 then self.window = tensors(q.window) end
  return self
end

-- cell.of_pool(A, plans, pool_of, counters, rollback) -> the cell of layer A for one sequence. pool_of(plan) is
-- the pool for a record's pages; rollback is how many tokens can be taken back.
function cell.of_pool(A, plans, pool_of, counters, rollback)
  local s = A.shape
  local self = setmetatable({ counters = counters }, meta)
  add_compressors(self, A, rollback, 1)
  if s.owns then self.main = tables(pool_of(plans.main):table()) end
  if s.owns and s.layer.keys then self.index = tables(pool_of(plans.index):table()) end
  if s.window > 0 then
    self.window = rings(pool_of(plans.window):table(s.window + rollback, s.window), counters, plans.window, s.window)
  end
  return self
end

local STORES = { 'main', 'index', 'window' }
local STATES = { 'compressor', 'index_compressor' }

-- fork() -> a cell that shares the pages; `counters` are the new owner's.
function class:fork(counters)
  local copy = setmetatable({ counters = counters or self.counters }, meta)
  for _, name in ipairs(STORES) do
    local store = self[name]
    if store then
      local twin = {}
      for key, value in pairs(store) do twin[key] = value end
      twin.table = store.table:fork()
      if store.counters then twin.counters = copy.counters end
      copy[name] = setmetatable(twin, getmetatable(store))
    end
  end
  for _, name in ipairs(STATES) do
    if self[name] then copy[name] = self[name]:copy() end
  end
  return copy
end

-- reserve(pos0, T): pages for T more tokens, or an error that leaves the tables as they were.
function class:reserve(pos0, T, ratio)
  if self.main then
    local more = (pos0 + T) // ratio - pos0 // ratio
    self.main.table:reserve(more)
    if self.index then self.index.table:reserve(more) end
  end
  if self.window then self.window.table:reserve(T) end
end

-- truncate(position, ratio): back to `position` tokens, from wherever each part of the cell has come to. Pages that
-- were reserved for more go back too.
function class:truncate(position, ratio)
  local function cut(store, entries)
    if store and store:count() >= entries then store.table:truncate(entries) end
  end
  cut(self.main, position // ratio)
  cut(self.index, position // ratio)
  if self.window then cut(self.window, math.max(position - self.window.first, 0)) end
  for _, name in ipairs(STATES) do
    local state = self[name]
    if state and state:position() > position then state:rollback(state:position() - position) end
  end
end

-- What the cell holds: stored_bytes of rows, rollback_bytes of rings, unused_bytes and alignment_bytes of pages, which
-- add up to allocated_bytes; state_bytes of the compressors and state_rollback_bytes that rollback adds to them.
local HELD = { 'stored_bytes', 'rollback_bytes', 'unused_bytes', 'alignment_bytes', 'allocated_bytes' }

function class:stats()
  local total = { state_bytes = 0, state_rollback_bytes = 0 }
  for _, key in ipairs(HELD) do total[key] = 0 end
  for _, name in ipairs(STORES) do
    local own = self[name] and self[name].table:stats() or {}
    for _, key in ipairs(HELD) do total[key] = total[key] + (own[key] or 0) end
  end
  for _, name in ipairs(STATES) do
    local state = self[name]
    if state then
      total.state_bytes = total.state_bytes + state:state_bytes()
      total.state_rollback_bytes = total.state_rollback_bytes + state:rollback_bytes()
    end
  end
  return total
end

function class:free()
  for _, name in ipairs(STORES) do
    if self[name] and self[name].table then self[name].table:free() end
  end
  for _, name in ipairs(STATES) do
    if self[name] then self[name]:free() end
  end
end

cell.class = class
return cell
