-- study.lua: how selections are made and learned while whole sequences run: selection arms, the loss of indexers, and
-- what is logged of them.
--
-- A study goes through the layers of one pass as shared.study (kvlab.attention) and collects for every selecting
-- layer i: seen[i] = { question, list, target, readers, mass }. The teacher of indexer i is attention mass on the
-- owner's entries: each head normalised together with window and sink, restricted to the supervised set, summed over
-- heads, renormalised (DeepSeek-V3.2 report 2.1.1); the mean over all layers that read with its selection. Nothing of
-- the teacher has a gradient. Loss: the mean of KL(teacher || softmax(scores)) over the queries that see an entry.
local kernels = require 'kvlab.kernels'
local core = require 'kvlab.core'
local gradients = require 'kvlab.gradients'
local ops = require 'kvlab.ops'
local opts = require 'kvlab.options'
local tensor = require 'kvlab.tensor'

local study = {}

local class = {}
local meta = { __index = class, __name = 'kvlab.Study' }

study.arms = { 'learned', 'oracle', 'random', 'recent' }
study.sets = { 'selected', 'visible', 'pool' }
study.fields = { 'select', 'kl', 'dense', 'coefficient', 'metrics', 'seed' }

local prepare

-- study.new({ select = arm, kl = set or nil, dense =, coefficient =, metrics =, seed = }, m, ids) -> a study of one
-- pass of the model m over ids; without these only the options are checked.
--   select   who selects: 'learned' (the indexer), 'oracle' (top-k of the dense attention mass, the mean over the
--            layers that read with the selection), 'random' (of `seed`), 'recent'
--   kl       the supervised set: 'selected', 'visible' (all), 'pool' (all where there is none); nil: no loss
--   dense    attention reads all visible entries while the indexer learns (warm-up)
function study.new(o, m, ids)
  o = opts.check(o, study.fields, 'indexer') or {}
  opts.word(o.select or 'learned', study.arms, 'indexer: select')
  if o.kl then opts.word(o.kl, study.sets, 'indexer: kl') end
  local coefficient = o.coefficient or 1
  if type(coefficient) ~= 'number' or coefficient < 0 or coefficient ~= coefficient then
    error(('indexer: coefficient is %s, expected a number, 0 or more'):format(tostring(coefficient)), 0)
  end
  local self = setmetatable({ arm = o.select or 'learned', kl = o.kl, dense = o.dense or false,
    metrics = o.metrics or false, coefficient = coefficient, seed = opts.whole(o.seed or 1, 0, 'indexer: seed'),
    seen = {}, order = {}, ahead = {} }, meta)
  if m then prepare(self, m, ids) end
  return self
end

-- What layers above will read is not known when an oracle selects for them, so for selections that are shared a pass
-- with dense attention finds out.
function prepare(self, m, ids)
  if self.arm ~= 'oracle' then return end
  local readers, shared = {}, false
  for i = 1, #m.layout do
    local by = m.layout:selector(i)
    if by then
      readers[by] = (readers[by] or 0) + 1
      shared = shared or readers[by] > 1
    end
  end
  if not shared then return end
  local dense = study.new { select = 'recent', dense = true, metrics = true }
  m:run(m:embed(ids, 0), 0, m:tensor_cells(ids.shape[1]), nil, dense)
  for i, seen in pairs(dense.seen) do
    if readers[i] > 1 then self.ahead[i] = seen.mass else seen.mass:free() end
  end
end

-- --- selection ----------------------------------------------------------------------------------------
local MINUS <const> = -math.huge

-- A list by the arm. question: as the indexer is asked; mass: dense attention mass [B, T, n], for the oracle.
function class:by_arm(i, question, mass)
  local asked = {}
  for name, setting in pairs(question) do asked[name] = setting end
  if self.arm == 'learned' then return ops.index(asked) end
  asked.scores = true
  local found = ops.index(asked) -- scores are -inf where an entry cannot be chosen; the pool stays the indexer's
  local shape = found.scores.shape
  local visible = found.scores:gt(MINUS)
  local scores
  if self.arm == 'oracle' then scores = self.ahead[i] or mass
  elseif self.arm == 'random' then
    scores = tensor.random { shape[1], shape[2], shape[3], seed = self.seed * 1000003 + i, dist = 'uniform' }
  else scores = tensor.arange(0, shape[3] - 1, 1, 'float32') end
  scores = tensor.where(visible, scores, MINUS)
  found.top = (scores:topk(math.min(question.k, shape[3]), 'index'))
  return found
end

-- --- reading ------------------------------------------------------------------------------------------
-- Mass on the entries, which are the last source of `call`.
local function mass_of(call, lse, set)
  return core.grad.mass(call.q, call.sources, lse, call.scale, call.pos0, #call.sources, set, true)
end

-- The set on which the indexer of layer `i` is supervised; nil: all visible entries.
function class:set_of(i)
  local seen = self.seen[i]
  if self.kl == 'selected' then return seen.list end
  if self.kl == 'pool' then return seen.question.pool end
  return nil
end

local function collect(seen, name, mass)
  if not seen[name] then seen[name] = mass return end
  seen[name]:add_(mass)
  mass:free()
end

-- study:read(A, p, pos0, cell, shared): what A:read does, looked at. Whole sequences of tensors only.
function class:read(A, p, pos0, cell, shared)
  local s = A.shape
  local sources = A:sources(p, pos0, cell, shared, true)
  local call = A:attention_call(p, pos0, sources)
  local reads = s.owner and shared.cells[s.owner].main:count() > 0
  local selector = reads and s.selector
  local question = selector and s.topk and A:question(p, pos0, cell, shared)
  local all, all_lse, mass -- dense attention and its mass, where they are needed
  local from_all = self.kl and self.kl ~= 'selected'
  if selector and (self.metrics or from_all or self.arm == 'oracle' and question) then
    all = gradients.plain(call)
    all.lse = true
    local out
    out, all_lse = kernels.attend(all)
    out:free()
    if self.metrics or self.arm == 'oracle' then mass = mass_of(all, all_lse) end
  end
  if s.topk then
    local found = question and self:by_arm(A.index, question, mass) or A:nothing(p)
    shared.lists[A.index], shared.pools[A.index] = found.top, found.pool
    if question then
      self.seen[A.index] = { question = question, list = found.top, readers = 0 }
      self.order[#self.order + 1] = A.index
    end
  end
  local list = reads and shared.lists[s.selector]
  if list and not self.dense then
    local source = sources[#sources]
    source.see, source.list, source.ratio = 'list', list:slice(2, -p.T, -1):contiguous(), nil
  end
  call.lse = true
  local out, lse = ops.attend(call)
  local seen = selector and self.seen[selector]
  if seen then
    seen.readers = seen.readers + 1
    if self.kl then
      local teacher = from_all and all or gradients.plain(call)
      collect(seen, 'target', mass_of(teacher, from_all and all_lse or lse, self:set_of(selector)))
    end
    if mass and self.metrics then collect(seen, 'mass', mass) end
  end
  if all_lse then all_lse:free() end
  return out
end

-- --- what came out ------------------------------------------------------------------------------------
-- study:losses() -> the sum of the indexers' losses times the coefficient (nil without any), and each: { [layer] = }.
function class:losses()
  local sum, each = nil, {}
  if not self.kl then return sum, each end
  for _, i in ipairs(self.order) do
    local seen = self.seen[i]
    if seen.target then
      local q = seen.question
      seen.target:mul_(1 / seen.readers)
      local loss = ops.index_loss { q = q.q, w = q.w, keys = q.keys.rows, pos0 = q.pos0, ratio = q.ratio,
        set = self:set_of(i), target = seen.target }
      seen.target:free()
      each[i] = loss:item()
      loss = loss * self.coefficient
      sum = sum and ops.add(sum, loss) or loss
    end
  end
  return sum, each
end

-- Which of n entries a list holds, float32 [B, T, n] of 0 and 1.
local function members(list, n)
  local found = list:ge(0)
  local places = tensor.where(found, list, 0)
  return tensor.zeros(list.shape[1], list.shape[2], n):scatter_add(3, places, found:to 'float32'):gt(0):to 'float32'
end

-- study:report() -> { [layer] = { recall, oracle, gap, active, overlap } } for the indexers of the pass:
--   recall   attention mass of the visible entries that the selected ones have, mean over queries that see entries
--   oracle   the same for the best k entries; gap = oracle - recall
--   active   the share of queries that see more than k entries
--   overlap  the share of selected entries that the selection before it (another layer's) has too
function class:report()
  local report, before = {}, nil
  if not self.metrics then return report end
  for _, i in ipairs(self.order) do
    local seen = self.seen[i]
    local q, mass = seen.question, seen.mass
    local T, n = q.q.shape[2], mass.shape[3]
    local own = members(seen.list, n)
    mass:mul_(1 / seen.readers)
    local total = math.max(mass:sum(), 1e-30) -- 1 for each query that sees entries
    local _, best = mass:topk(math.min(q.k, n))
    local one = { recall = (mass * own):sum() / total, oracle = best:maximum(0):sum() / total }
    one.gap = one.oracle - one.recall
    one.active = math.max(0, math.min(T, q.pos0 + T - (q.ratio * (q.k + 1) - 1))) / T
    if before and before.shape[3] == n then one.overlap = (before * own):sum() / math.max(own:sum(), 1) end
    before = own
    report[i] = one
    mass:free()
  end
  return report
end

return study
