-- sequence.lua: one sequence of a model: its caches in pools, and where it stands.
--
-- Every layer has a cell of tables (kvlab.cell) and counters of its own. An operation that fails - out of pages,
-- interrupted, out of memory - leaves the sequence as it was: a chunk works on a fork of the cells, which
-- replaces them when it is done; a single token is taken back by a rollback of one, for which every ring and
-- compressor keeps a row more than the user asked for.
local cell = require 'kvlab.cell'
local model = require 'kvlab.model'
local opts = require 'kvlab.options'
local record = require 'kvlab.record'
local shape = require 'kvlab.shape'
local tensor = require 'kvlab.tensor'
local core = require 'kvlab.core'

local sequence = {}

local class = {}
local meta = { __name = 'kvlab.Sequence', __index = class }

local function check_open(self)
  if not self.cells then error('the sequence was freed', 0) end
end

-- The record of a role: what the caller asks for, the layer's own, the form's, the role's.
local function record_of(value)
  if record.is(value) then return value end
  return record.named(value)
end

local function records_of(s, asked, deployed)
  local own = s.layer
  local function pick(role, field)
    local value = asked and asked[role] or own[field] or role ~= 'index' and deployed[s.form] or deployed[role] or 'bf16'
    return record_of(value)
  end
  return { main = pick('main', 'record'), index = pick('index', 'index_record'), window = pick('window', 'window_record') }
end

local ROLES = { 'main', 'index', 'window' }

local function asked_records(value)
  if value == nil or value == 'deployed' then return nil end
  if record.is(value) or type(value) == 'string' then return { main = value, index = value, window = value } end
  opts.check(value, ROLES, 'sequence: records')
  return value
end

-- One pool for each plan and model; `pages` limits those that are made now.
local function pool_of(m, pages)
  return function(plan)
    local known = m.pools[plan]
    if not known then
      known = core.pool.new(plan, pages)
      m.pools[plan] = known
    end
    return known
  end
end

-- model:sequence { records = 'deployed' | name | record | { main =, index =, window = }, rollback = r, pages = n }
function sequence.new(m, options)
  options = options or {}
  opts.check(options, { 'records', 'rollback', 'pages' }, 'sequence')
  local rollback = opts.whole(options.rollback or 0, 0, 'sequence: rollback')
  local pages = options.pages and opts.whole(options.pages, 1, 'sequence: pages')
  local asked = asked_records(options.records)
  local deployed = shape.deployed(m.layout)
  local self = setmetatable({ model = m, cells = {}, counters = {}, position = 0, most = rollback, reach = 0,
    evaluations = 0 }, meta)
  local pool = pool_of(m, pages)
  for i, A in ipairs(m.layers) do
    local plans = model.plans(A.shape, records_of(A.shape, asked, deployed))
    self.counters[i] = core.pool.counters()
    self.cells[i] = cell.of_pool(A, plans, pool, self.counters[i], rollback + 1)
  end
  return self
end

local function ratio_of(self, i) return self.model.layers[i].shape.ratio or 1 end

-- Runs f on a fork of the cells; they replace the old ones when f returns and vanish when it fails.
local function attempt(self, T, f)
  check_open(self)
  local cells = {}
  local ok, a, b, c = xpcall(function()
    for i, old in ipairs(self.cells) do
      cells[i] = old:fork()
      cells[i]:reserve(self.position, T, ratio_of(self, i))
    end
    return f(cells)
  end, function(problem) return problem end)
  local dead = ok and self.cells or cells
  for _, one in ipairs(dead) do one:free() end
  if not ok then error(a, 0) end
  self.cells = cells
  self.position = self.position + T
  self.reach = self.most -- a chunk moves everything on: as many tokens can be taken back as rows are kept
  return a, b, c
end

-- seq:extend(h, { replay = n }) -> hidden states after the last layer [1, T', D] of a chunk of inputs h [1, T, D].
function class:extend(h, options)
  options = options or {}
  opts.check(options, { 'replay' }, 'prefill')
  local replay = options.replay and opts.whole(options.replay, 1, 'prefill: replay')
  if replay and not self.model.layout.cut then
    error('prefill: replay needs a layout with an encoder and a decoder (a | in its text)', 0)
  end
  if replay and self.position > 0 then
    error(('prefill: replay starts a sequence; this one has %d tokens already'):format(self.position), 0)
  end
  local out, evaluations = attempt(self, h.shape[2], function(cells)
    return self.model:run(h, self.position, cells, replay)
  end)
  self.evaluations = self.evaluations + evaluations
  return out
end

-- seq:prefill(tokens, { replay = n }) -> logits of the last position [V]. Any chunks, one after the other.
-- With replay the layers after the cut run on the last n positions only; seq.evaluations counts (position,
-- layer) pairs. Exact for the first token from n = 1 + sum over decoder layers of (window - 1) on.
function class:prefill(tokens, options)
  check_open(self)
  local ids = self.model:tokens(tokens)
  if ids.shape[1] ~= 1 then
    error(('prefill: expected one sequence of tokens, got a batch of %d'):format(ids.shape[1]), 0)
  end
  local h = self:extend(self.model:embed(ids), options)
  return self.model:logits(h:slice(2, -1, -1)):reshape(-1)
end

-- sequence.decode(m, seqs, h) -> h [B, 1, D]: one token for each sequence. When anything fails, every sequence is
-- taken back to where it was.
function sequence.step(m, seqs, h)
  local seen = {}
  for b, seq in ipairs(seqs) do
    if getmetatable(seq) ~= meta then error(('decode: sequence %d is %s'):format(b, type(seq)), 0) end
    check_open(seq)
    if seq.model ~= m then error(('decode: sequence %d belongs to another model'):format(b), 0) end
    if seen[seq] then error(('decode: sequence %d stands twice in the batch'):format(b), 0) end
    seen[seq] = true
  end
  local ok, out = pcall(function()
    for _, seq in ipairs(seqs) do
      for i, one in ipairs(seq.cells) do one:reserve(seq.position, 1, ratio_of(seq, i)) end
    end
    if #seqs == 1 then return (m:run(h, seqs[1].position, seqs[1].cells)) end
    return m:run_batch(h, seqs)
  end)
  if not ok then
    for _, seq in ipairs(seqs) do
      for i, one in ipairs(seq.cells) do one:truncate(seq.position, ratio_of(seq, i)) end
    end
    error(out, 0)
  end
  for _, seq in ipairs(seqs) do
    seq.position = seq.position + 1
    seq.reach = math.min(seq.reach + 1, seq.most)
    seq.evaluations = seq.evaluations + #m.layers
  end
  return out
end

-- seq:decode(token) -> logits [V].
function class:decode(token)
  check_open(self)
  local ids = self.model:tokens(token)
  if ids.shape[1] ~= 1 or ids.shape[2] ~= 1 then error('decode: expected one token', 0) end
  return self.model:logits(sequence.step(self.model, { self }, self.model:embed(ids))):reshape(-1)
end

-- model:decode(seqs, tokens) -> logits [B, V].
function sequence.decode(m, seqs, tokens)
  if type(seqs) ~= 'table' or #seqs == 0 then error('decode: expected a list of sequences', 0) end
  local ids = tensor.is_tensor(tokens) and tokens or tensor.tensor(tokens, 'int32')
  if ids.shape[#ids.shape] ~= #seqs or #ids.shape > 1 then
    error(('decode: %d sequences need a list of as many tokens, got {%s}'):format(#seqs,
      table.concat(ids.shape, ', ')), 0)
  end
  return m:logits(sequence.step(m, seqs, m:embed(ids:reshape(#seqs, 1)))):reshape(#seqs, -1)
end

-- seq:fork() -> a sequence with the same past; complete pages are shared, others copied when written.
function class:fork()
  check_open(self)
  local copy = setmetatable({ model = self.model, cells = {}, counters = {}, position = self.position,
    most = self.most, reach = self.reach, evaluations = self.evaluations }, meta)
  for i, one in ipairs(self.cells) do
    copy.counters[i] = core.pool.counters()
    copy.cells[i] = one:fork(copy.counters[i])
  end
  return copy
end

-- seq:rollback(n): forgets the last n tokens, n <= the rollback the sequence was made with.
function class:rollback(n)
  check_open(self)
  n = opts.whole(n, 0, 'rollback: the number of tokens')
  if n > self.position then
    error(('rollback: %d tokens, but the sequence has %d'):format(n, self.position), 0)
  end
  if n > self.reach then
    error(('rollback: %d tokens, but rows for %d are kept; make the sequence with rollback = %d'):format(n, self.reach,
      n), 0)
  end
  self.position = self.position - n
  for i, one in ipairs(self.cells) do one:truncate(self.position, ratio_of(self, i)) end
  self.reach = self.reach - n
end

-- The sums of what each layer says, and the layers.
local function add_up(list, of)
  local total = { layers = {} }
  for i, one in ipairs(list) do
    local own = of(one)
    total.layers[i] = own
    for name, value in pairs(own) do total[name] = (total[name] or 0) + value end
  end
  return total
end

-- seq:stats() -> bytes that the caches hold (kvlab.cell stats), in total and by layer.
function class:stats()
  check_open(self)
  return add_up(self.cells, function(one) return one:stats() end)
end

-- seq:reads() -> rows and bytes read since the last reset: selected_bytes, window_bytes, index_bytes, ...
function class:reads()
  return add_up(self.counters, function(one) return one:get() end)
end

function class:reset()
  for _, counters in ipairs(self.counters) do counters:reset() end
end

function class:free()
  if not self.cells then return end
  for _, one in ipairs(self.cells) do one:free() end
  self.cells = nil
end

meta.__gc = class.free
meta.__close = class.free
function meta.__len(self) return self.position end
function meta.__tostring(self)
  return ('kvlab.Sequence: %d tokens%s'):format(self.position, self.cells and '' or ', freed')
end

function model.class:sequence(options) return sequence.new(self, options) end
function model.class:decode(seqs, tokens) return sequence.decode(self, seqs, tokens) end

sequence.class = class
return sequence
