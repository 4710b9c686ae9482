-- evaluate.lua: what a model is worth on the validation batches of its task: loss and accuracy, also of slices, and
-- what its selections are worth; computed on whole sequences, or decoded through caches in records.
local ops = require 'kvlab.ops'
local study = require 'kvlab.study'
local tasks = require 'kvlab.tasks'
local tensor = require 'kvlab.tensor'

local evaluate = {}

-- --- sums over batches --------------------------------------------------------------------------------

-- The sum of cross-entropies of the rows of logits whose mark (int32 [n], nil: all) is 1.
local function loss_of(logits, labels, mark)
  if mark then labels = ops.where(mark:gt(0), labels, -1) end
  return ops.cross_entropy(logits, labels, 1):item()
end

-- add(sums, task, batch, logits): logits {n, vocab} have a row for each target.
local function add(sums, task, batch, logits, places)
  local function at_targets(t) return t:flatten():gather(1, places) end
  local labels = at_targets(batch.targets)
  sums.score = tasks.sum { sums.score, task.score(batch, logits) }
  sums.losses.all = (sums.losses.all or 0) + loss_of(logits, labels)
  for name, mark in pairs(batch.slices or {}) do
    sums.losses[name] = (sums.losses[name] or 0) + loss_of(logits, labels, at_targets(mark))
  end
end

-- The counts of a task as metrics: accuracy, candidate, val_loss, and the same of slices with their name behind.
local function metrics_of(sums)
  local m = {}
  local function put(score, suffix, loss)
    if score.count == 0 then return end
    m['accuracy' .. suffix] = score.correct / score.count
    if score.candidate then m['candidate' .. suffix] = score.candidate / score.count end
    if loss then m['val_loss' .. suffix] = loss / score.count end
  end
  put(sums.score, '', sums.losses.all)
  for name, score in pairs(sums.score) do
    if name == 'slices' then
      for slice, one in pairs(score) do put(one, '_' .. slice, sums.losses[slice]) end
    elseif type(score) == 'table' and score.count and score.correct then
      put(score, '_' .. name)
    end
  end
  return m
end

local function new_sums() return { score = { correct = 0, count = 0 }, losses = {} } end

-- --- indexers -----------------------------------------------------------------------------------------

-- Means over batches; nil without indexers. { recall, gap, kl, active, overlap } of all, and by layer.
local function indexer_metrics(reports)
  local sums, order = {}, {}
  for _, report in ipairs(reports) do
    for layer, one in pairs(report) do
      if not sums[layer] then
        sums[layer] = {}
        order[#order + 1] = layer
      end
      for name, value in pairs(one) do sums[layer][name] = (sums[layer][name] or 0) + value / #reports end
    end
  end
  if #order == 0 then return nil end
  table.sort(order)
  local list, mean = {}, {}
  for i, layer in ipairs(order) do
    list[i] = { layer_id = layer - 1 }
    for name, value in pairs(sums[layer]) do list[i][name] = value end
  end
  for _, name in ipairs { 'recall', 'gap', 'kl', 'active', 'overlap' } do
    local sum, n = 0, 0
    for _, one in ipairs(list) do
      if one[name] then sum, n = sum + one[name], n + 1 end
    end
    if n > 0 then mean['index_' .. name] = sum / n end
  end
  return mean, list
end

-- --- the full-sequence path -----------------------------------------------------------------------------

-- evaluate.full(m, task, { batches =, size =, indexer = { select =, seed = } or nil }) -> metrics: val_loss, accuracy,
-- candidate, these of slices; with `indexer` also index_recall, index_gap, index_kl, ... and the list `indexers`.
function evaluate.full(m, task, o)
  local sums, reports = new_sums(), {}
  for i = 1, o.batches do
    local batch = task.validation(i, o.size)
    local ids = m:tokens(batch.tokens)
    local observed = o.indexer and study.new({ select = o.indexer.select, kl = 'visible', metrics = true,
      seed = o.indexer.seed + i }, m, ids)
    local h = m:run(m:embed(ids, 0), 0, m:tensor_cells(ids.shape[1]), nil, observed)
    local normed, head = m:head(h)
    local places = tasks.positions(batch)
    local logits = ops.linear(ops.embedding(normed:reshape(-1, normed.shape[3]), places), head)
    add(sums, task, batch, logits, places)
    logits:free()
    normed:free()
    if observed then
      local _, kl = observed:losses()
      local report = observed:report()
      for layer, value in pairs(kl) do report[layer].kl = value end
      reports[i] = report
    end
  end
  local metrics = metrics_of(sums)
  local mean, list = indexer_metrics(reports)
  for name, value in pairs(mean or {}) do metrics[name] = value end
  metrics.indexers = list
  return metrics
end

-- --- the cached path --------------------------------------------------------------------------------------

-- The column of a batch as a list of ids.
local function column(t, at) return t:slice(2, at, at):reshape(-1) end

-- The first and the last column in which a row has a target.
local function asked_columns(targets)
  local asked = targets:ge(0):max(1)
  local T, first, last = targets.shape[2], nil, nil
  for t = 1, T do
    if asked:slice(1, t, t):item() > 0 then first, last = first or t, t end
  end
  return first, last
end

-- Decodes the rows of a batch: the tokens before the first target are taken in at once, then one at a time.
local function decode_batch(m, batch, records, each)
  local ids = m:tokens(batch.tokens)
  local B = ids.shape[1]
  local first, last = asked_columns(batch.targets)
  local sequences = {}
  local _ <close> = setmetatable({}, { __close = function()
    for _, seq in ipairs(sequences) do seq:free() end
  end })
  for b = 1, B do
    sequences[b] = m:sequence { records = records }
    if first > 1 then sequences[b]:prefill(ids:slice(1, b, b):slice(2, 1, first - 1):contiguous()):free() end
  end
  for t = first, last do
    local logits = m:decode(sequences, column(ids, t):contiguous())
    each(t, logits)
    logits:free()
  end
end

-- evaluate.cached(m, task, { batches =, size =, records = as of a sequence }) -> the same metrics of the same batches,
-- decoded through caches that hold records.
function evaluate.cached(m, task, o)
  local sums = new_sums()
  for i = 1, o.batches do
    local batch = task.validation(i, o.size)
    local T, columns = batch.tokens.shape[2], {}
    local nothing = column(batch.targets, 1):mul(0)
    for t = 1, T do columns[t] = nothing end
    decode_batch(m, batch, o.records, function(t, logits)
      local labels = column(batch.targets, t):contiguous()
      columns[t] = logits:argmax()
      sums.losses.all = (sums.losses.all or 0) + loss_of(logits, labels)
      for name, mark in pairs(batch.slices or {}) do
        sums.losses[name] = (sums.losses[name] or 0) + loss_of(logits, labels, column(mark, t))
      end
    end)
    sums.score = tasks.sum { sums.score, task.score(batch, tensor.stack(columns, 2)) }
  end
  return metrics_of(sums)
end

return evaluate
