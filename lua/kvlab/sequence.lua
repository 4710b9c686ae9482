-- sequence.lua: one sequence of a model: its caches in pools, and where it stands.
--
-- Every layer has a cell of tables (kvlab.cell) and counters of its own. An operation that fails - out of pages,
-- interrupted, out of memory - leaves the sequence as it was: a chunk works on a fork of the cells, which
-- replaces them when it is done; a single token is taken back by a rollback of one, for which every ring and
-- compressor keeps a row more than the user asked for.
local cell = require 'kvlab.cell'
local model = require 'kvlab.model'
local opts = require 'kvlab.options'
local shape = require 'kvlab.shape'
local core = require 'kvlab.core'

local sequence = {}

local class = {} -- what users call
local internal = setmetatable({}, { __index = class }) -- what other modules call besides
local meta = { __name = 'kvlab.Sequence', __index = internal }

local function check_open(self)
  if not self.cells then error('the sequence was freed', 0) end
end

-- One pool for each plan and limit: sequences of a model that ask for the same share their pages.
local function pool_of(m, pages)
  local limit = pages or 0
  return function(plan)
    local of_plan = m.pools[plan] or {}
    m.pools[plan] = of_plan
    of_plan[limit] = of_plan[limit] or core.pool.new(plan, pages)
    return of_plan[limit]
  end
end

-- model:sequence { records = 'deployed' | 'own' | name | record | { main =, index =, window = }, rollback =, pages = }
function sequence.new(m, options)
  options = options or {}
  opts.check(options, { 'records', 'rollback', 'pages' }, 'sequence')
  local rollback = opts.whole(options.rollback or 0, 0, 'sequence: rollback')
  local pages = options.pages and opts.whole(options.pages, 1, 'sequence: pages')
  local asked, deployed = shape.asked(options.records), shape.deployed(m.layout, options.records)
  -- `reach` tokens can be taken back now, `most` when enough have come since the last rollback.
  local self = setmetatable({ model = m, cells = {}, counters = {}, position = 0, most = rollback, reach = 0,
    evaluations = 0 }, meta)
  local pool = pool_of(m, pages)
  for i, A in ipairs(m.layers) do
    self.counters[i] = core.pool.counters()
    self.cells[i] = cell.of_pool(A, shape.plans(A.shape, asked, deployed), pool, self.counters[i], rollback + 1)
  end
  return self
end

local function ratio_of(self, i) return self.model.layers[i].shape.ratio or 1 end

-- Runs f on a fork of the cells, which takes the sequence on by T tokens (back, when negative). They replace the old
-- ones when f returns and vanish when it fails, wherever it is broken off.
local function attempt(self, T, f)
  check_open(self)
  local old, position, reach = self.cells, self.position, self.reach
  local cells = {}
  local ok, a, b = pcall(function()
    for i, one in ipairs(old) do cells[i] = one:fork() end
    local result, more = f(cells)
    self.cells, self.position, self.reach = cells, position + T, math.min(reach + T, self.most)
    return result, more
  end)
  if not ok then self.cells, self.position, self.reach = old, position, reach end
  for _, one in ipairs(ok and old or cells) do one:free() end
  if not ok then error(a, 0) end
  return a, b
end

-- seq:extend(h, { replay = n }) -> hidden states after the last layer [1, T', D] of a chunk of inputs h [1, T, D]. What
-- is still to be done with them, finish(h), belongs to the attempt. A study in seq.study (kvlab.attention) looks on.
function internal:extend(h, options, finish)
  check_open(self)
  options = options or {}
  opts.check(options, { 'replay' }, 'prefill')
  local replay = options.replay and opts.whole(options.replay, 1, 'prefill: replay')
  if replay and not self.model.layout.cut then
    error('prefill: replay needs a layout with an encoder and a decoder (a | in its text)', 0)
  end
  if replay and self.position > 0 then
    error(('prefill: replay starts a sequence; this one has %d tokens already'):format(self.position), 0)
  end
  local T = h.shape[2]
  local out, evaluations = attempt(self, T, function(cells)
    for i, one in ipairs(cells) do one:reserve(self.position, T, ratio_of(self, i)) end
    local result, done = self.model:run(h, self.position, cells, replay, self.study)
    if finish then result = finish(result) end
    return result, done
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
  local m = self.model
  local h = m:embed(ids, self.position)
  return self:extend(h, options, function(out) return m:logits(out:slice(2, -1, -1)):reshape(-1) end)
end

-- sequence.step(m, seqs, ids [B, 1]) -> logits [B, 1, V]: one token for each sequence. When anything fails, every
-- sequence is taken back to where it was.
function sequence.step(m, seqs, ids)
  local seen = {}
  for b, seq in ipairs(seqs) do
    if getmetatable(seq) ~= meta then
      error(('decode: item %d is a %s, expected a sequence of the model'):format(b, type(seq)), 0)
    end
    check_open(seq)
    if seq.model ~= m then error(('decode: sequence %d belongs to another model'):format(b), 0) end
    if seen[seq] then error(('decode: sequence %d stands twice in the batch'):format(b), 0) end
    seen[seq] = true
  end
  local before, positions = {}, {}
  for b, seq in ipairs(seqs) do
    before[b], positions[b] = { seq.position, seq.reach, seq.evaluations }, seq.position
  end
  local ok, out = pcall(function()
    local h = m:embed(ids, positions)
    for _, seq in ipairs(seqs) do
      for i, one in ipairs(seq.cells) do one:reserve(seq.position, 1, ratio_of(seq, i)) end
    end
    h = #seqs == 1 and m:run(h, seqs[1].position, seqs[1].cells) or m:run_batch(h, seqs)
    local logits = m:logits(h)
    for b, seq in ipairs(seqs) do
      seq.position, seq.reach = before[b][1] + 1, math.min(before[b][2] + 1, seq.most)
      seq.evaluations = before[b][3] + #m.layers
    end
    return logits
  end)
  if ok then return out end
  for b, seq in ipairs(seqs) do
    seq.position, seq.reach, seq.evaluations = table.unpack(before[b])
    for i, one in ipairs(seq.cells) do one:truncate(seq.position, ratio_of(seq, i)) end
  end
  error(out, 0)
end

-- seq:decode(token) -> logits [V].
function class:decode(token)
  check_open(self)
  local ids = self.model:tokens(token)
  if ids.shape[1] ~= 1 or ids.shape[2] ~= 1 then error('decode: expected one token', 0) end
  return sequence.step(self.model, { self }, ids):reshape(-1)
end

-- model:decode(seqs, tokens) -> logits [B, V].
function sequence.decode(m, seqs, tokens)
  if type(seqs) ~= 'table' or #seqs == 0 then error('decode: expected a list of sequences', 0) end
  local ids = m:tokens(tokens)
  if ids.shape[1] ~= 1 or ids.shape[2] ~= #seqs then
    error(('decode: %d sequences need a list of as many tokens, got {%s}'):format(#seqs,
      table.concat(ids.shape, ', ')), 0)
  end
  return sequence.step(m, seqs, ids:reshape(#seqs, 1)):reshape(#seqs, -1)
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
    local why = n > self.most and 'make the sequence with rollback = ' .. n
      or ('%d are kept, less what was taken back already'):format(self.most)
    error(('rollback: %d tokens, but only %d can be taken back; %s'):format(n, self.reach, why), 0)
  end
  attempt(self, -n, function(cells)
    for i, one in ipairs(cells) do one:truncate(self.position - n, ratio_of(self, i)) end
  end)
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
