-- vectors.lua: runs golden cases in every way and measures the error (`kvlab check`).
--
-- Ways: the full sequence at once through tensors; token by token through pools of records; prompts in chunks and
-- then token by token, in several cuts. MLA in its three orders. A case without quantisers is stored in float32
-- records; one with quantisers once in records that do exactly what the quantiser does and once in records as
-- they are deployed, whose unquantised channels are bf16.
local cell = require 'kvlab.cell'
local core = require 'kvlab.core'
local golden = require 'kvlab.golden'
local model = require 'kvlab.model'
local record = require 'kvlab.record'
local tensor = require 'kvlab.tensor'

local vectors = {}

-- Relative error ||y - y_ref|| / ||y_ref|| that is allowed.
vectors.bounds = { none = 5e-6, quantisers = 1e-4, records = 2e-3 }

-- Cuts of T tokens into chunks: the second half of each goes token by token.
local function chunkings(T)
  local list = { tokens = {}, halves = {}, sevens = {}, uneven = {} }
  for t = 1, T do list.tokens[t] = 1 end
  local half = T // 2
  if half > 0 then list.halves[1] = half end
  for _ = half + 1, T do table.insert(list.halves, 1) end
  local left = T - T // 4
  while left > 0 do
    table.insert(list.sevens, math.min(7, left))
    left = left - 7
  end
  for _ = T - T // 4 + 1, T do table.insert(list.sevens, 1) end
  local size, used = 1, 0
  while used < T do -- 1, 2, 3, ... and single tokens in between
    local n = math.min(size, T - used)
    table.insert(list.uneven, n)
    used = used + n
    if used < T then
      table.insert(list.uneven, 1)
      used = used + 1
    end
    size = size + 1
  end
  return list
end

-- The weights of the file under the names of a model: a case of one layer has none of the prefixes.
local function load_weights(case, file)
  local weights = {}
  for _, name in ipairs(file:names()) do
    if (file:info(name)) == 'F32' and not name:find('^x') then
      local full = name
      if not name:find('^layers%.') and not name:find('^model%.') then
        full = (case.layout:form(1) == 'entry' and 'layers.0.attn.' or 'model.layers.0.self_attn.') .. name
      end
      weights[full] = file:load(name)
    end
  end
  return weights
end

-- What a way of running gives: y by file name, and the lists that selecting layers published, by layer.
local function run(case, m, cells, chunks)
  local inputs, outputs, lists = case.inputs, {}, {}
  local pos0 = 0
  for _, n in ipairs(chunks) do
    local shared
    local function part(x) return x:slice(2, pos0 + 1, pos0 + n) end
    if case.kind == 'csa2-stack' then
      local y, _, published = m:run(part(inputs[1]), pos0, cells)
      shared = published
      outputs[1] = outputs[1] or {}
      table.insert(outputs[1], y)
    else
      shared = { cells = cells, lists = {}, pools = {} }
      for i, A in ipairs(m.layers) do
        outputs[i] = outputs[i] or {}
        table.insert(outputs[i], A:forward(part(inputs[i]), pos0, cells[i], shared))
      end
    end
    for i, list in pairs(shared.lists) do
      lists[i] = lists[i] or {}
      for _, row in ipairs(list:reshape(n, -1):totable()) do table.insert(lists[i], row) end
    end
    pos0 = pos0 + n
  end
  for i, parts in ipairs(outputs) do outputs[i] = tensor.cat(parts, 2):reshape(pos0, -1) end
  return outputs, lists
end

-- Two rows of ids select the same when they agree without the -1 that fill them up.
local function same_row(a, b)
  local function taken(row)
    local ids = {}
    for _, id in ipairs(row) do
      if id >= 0 then ids[#ids + 1] = id end
    end
    return table.concat(ids, ' ')
  end
  return taken(a) == taken(b)
end

local function names_of(case, what, i)
  return #case.layout == 1 and what or ('%s.%d'):format(what, i - 1)
end

-- Compares one run with the file -> error, selections equal.
local function compare(case, file, outputs, lists)
  local worst = 0
  for i, y in ipairs(outputs) do
    local name = case.kind == 'csa2-stack' and 'y' or names_of(case, 'y', i)
    local difference = file:compare(name, y)
    if difference > worst or difference ~= difference then worst = difference end -- a NaN is worst of all
  end
  local equal = true
  for i in ipairs(case.layout) do
    local name = names_of(case, 'selected', i)
    if file:has(name) then
      local list = lists[case.layout:selector(i)] or {} -- a reusing layer's is that of whom it reuses
      for t, row in ipairs(file:load(name):totable()) do
        equal = equal and list[t] ~= nil and same_row(row, list[t])
      end
    end
  end
  return worst, equal
end

-- The error of finished entries and keys, where the file has them.
local function compare_rows(case, file, cells)
  local worst = 0
  for i in ipairs(case.layout) do
    for what, store in pairs { entries = cells[i].main, keys = cells[i].index } do
      local name = names_of(case, what, i)
      if file:has(name) and store.rows then
        worst = math.max(worst, file:compare(name, store.rows:reshape(store.rows.shape[2], -1)))
      end
    end
  end
  return worst
end

local function pool_cells(m, records)
  local pools = {}
  local function pool_of(plan)
    pools[plan] = pools[plan] or core.pool.new(plan)
    return pools[plan]
  end
  local cells = {}
  for i, A in ipairs(m.layers) do
    cells[i] = cell.of_pool(A, model.plans(A.shape, records), pool_of, core.pool.counters(), 0)
  end
  return cells
end

local F32 = { main = 'f32', index = 'f32', window = 'f32' }

-- vectors.check(dir, name) -> a list of { name, way, error, bound, selected_equal, ok }.
function vectors.check(dir, name)
  local text <close> = assert(io.open(('%s/%s.json'):format(dir, name)))
  local case = golden.read(text:read('a'), name)
  local file <close> = core.safetensors.open(('%s/%s.safetensors'):format(dir, name))
  case.inputs = {}
  local stacked = case.kind == 'csa2-stack'
  for i = 1, stacked and 1 or #case.layout do
    local x_name = stacked and 'x' or names_of(case, 'x', i)
    local x = file:load(x_name)
    if #x.shape ~= 2 or x.shape[2] ~= case.widths.hidden_size then
      error(("case '%s': %s is {%s}, expected {T, %d}"):format(name, x_name, table.concat(x.shape, ', '),
        case.widths.hidden_size), 0)
    end
    case.inputs[i] = x:reshape(1, x.shape[1], -1)
  end
  local T = case.inputs[1].shape[2]
  local weights = load_weights(case, file)
  local f32 = {}
  for role, rec in pairs(F32) do f32[role] = record.named(rec) end

  local results = {}
  local function way(label, m, cells, chunks, bound)
    local outputs, lists = run(case, m, cells, chunks)
    local difference, equal = compare(case, file, outputs, lists)
    if label:find('^full') then difference = math.max(difference, compare_rows(case, file, cells)) end
    results[#results + 1] = { name = name, way = label, error = difference, bound = bound, selected_equal = equal,
      ok = difference <= bound and equal }
  end

  local latent = case.layout:form(1) == 'latent'
  for _, order in ipairs(latent and { 'expand', 'absorb', 'merged' } or { false }) do
    local tail = order and ', ' .. order or ''
    local m = model.new(case.layout, case.widths, { weights = weights, hidden_only = true, ffn = 0,
      order = order or nil, quantisers = case.quantisers })
    local exact_bound = case.quantisers and vectors.bounds.quantisers or vectors.bounds.none
    way('full' .. tail, m, m:tensor_cells(1), { T }, exact_bound)
    local stores = case.quantisers and { { 'quantisers', case.quantisers, exact_bound },
      { 'records', case.deployed, vectors.bounds.records } } or { { 'f32 records', f32, exact_bound } }
    for _, store in ipairs(stores) do
      local records = {}
      for role in pairs(F32) do records[role] = store[2][role] or f32[role] end
      for cut, chunks in pairs(chunkings(T)) do
        way(('%s, %s%s'):format(cut, store[1], tail), m, pool_cells(m, records), chunks, store[3])
      end
    end
  end
  table.sort(results, function(a, b) return a.way < b.way end)
  return results
end

return vectors
