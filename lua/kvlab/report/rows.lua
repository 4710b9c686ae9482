-- report/rows.lua: runs as rows: what they differ in, statistics over seeds, the front, differences.
local config = require 'kvlab.config'
local cost = require 'kvlab.cost'
local json = require 'kvlab.json'

local rows = {}

-- varying(runs) -> the settings in which they differ, but for the seed.
function rows.varying(runs)
  local first, differs = nil, {}
  for _, one in ipairs(runs) do
    local leaves = config.leaves(one.config)
    first = first or leaves
    for _, pair in ipairs { { leaves, first }, { first, leaves } } do
      for key, value in pairs(pair[1]) do
        local other = pair[2][key]
        if other == nil or json.encode { value } ~= json.encode { other } then differs[key] = true end
      end
    end
  end
  differs.seed = nil
  local keys = {}
  for key in pairs(differs) do keys[#keys + 1] = key end
  table.sort(keys)
  return keys
end

local function statistics(values)
  local n, sum = #values, 0
  for _, x in ipairs(values) do sum = sum + x end
  local mean, squares = sum / n, 0
  for _, x in ipairs(values) do squares = squares + (x - mean) ^ 2 end
  local sd = n > 1 and math.sqrt(squares / (n - 1)) or nil
  if sd and sd < 1e-14 * math.abs(mean) then sd = 0.0 end -- rounding of equal values
  return { mean = mean, sd = sd, n = n }
end

-- group(runs, keys) -> rows, one for each setting of these keys: the values of every metric, and of each seed.
function rows.group(runs, keys)
  local list, by_key = {}, {}
  for _, one in ipairs(runs) do
    local setting = {}
    for _, key in ipairs(keys) do setting[key] = config.value(one.config, key) end
    local name = json.encode(setting)
    local row = by_key[name]
    if not row then
      row = { setting = setting, n = 0, runs = {}, values = {}, seconds = 0, name = name, config = one.config,
        by_seed = {} }
      by_key[name] = row
      list[#list + 1] = row
    end
    row.n = row.n + 1
    row.runs[row.n] = one
    row.by_seed[tostring(one.config.seed)] = one.metrics
    row.seconds = row.seconds + (one.seconds or 0)
    for metric, value in pairs(one.metrics or {}) do -- none yet of a run that goes on
      if type(value) == 'number' then
        row.values[metric] = row.values[metric] or {}
        table.insert(row.values[metric], value)
      end
    end
  end
  return list
end

-- label_of(row, keys) -> its settings as text.
function rows.label_of(row, keys)
  local given = {}
  for _, key in ipairs(keys) do
    if row.setting[key] ~= nil then given[#given + 1] = key end
  end
  return #given > 0 and config.label(row.setting, given) or 'all'
end

-- Numbers before all else, which is compared as text.
local function less(a, b)
  local x, y = type(a) == 'number', type(b) == 'number'
  if x and y then return a < b end
  if x ~= y then return x end
  return tostring(type(a) == 'table' and json.encode(a) or a) < tostring(type(b) == 'table' and json.encode(b) or b)
end

-- sort(list, keys): by their settings; what a row does not have comes first.
function rows.sort(list, keys)
  table.sort(list, function(a, b)
    for _, key in ipairs(keys) do
      local x, y = a.setting[key], b.setting[key]
      if x == nil or y == nil then
        if (x == nil) ~= (y == nil) then return x == nil end
      elseif less(x, y) then return true
      elseif less(y, x) then return false end
    end
    return false
  end)
end

-- finish(row, keys): its statistics instead of its values, what its layout costs, and its label.
function rows.finish(row, keys)
  row.metrics = {}
  for metric, values in pairs(row.values) do row.metrics[metric] = statistics(values) end
  local paid = cost.of(row.config) or {}
  for _, key in ipairs { 'bytes_per_token', 'read_bytes' } do
    row[key] = row.metrics[key] and row.metrics[key].mean or paid[key]
  end
  row.seconds, row.label = row.seconds / row.n, rows.label_of(row, keys)
  row.values, row.config, row.name, row.runs = nil, nil, nil, nil
end

-- Marks the rows that no other row beats: at most its cost and at least its quality, and better in one of them. Only
-- rows that agree in the settings `within` are rivals.
function rows.mark_front(list, quality, better, within)
  local function rivals(row, other)
    for _, key in ipairs(within) do
      if json.encode { row.setting[key] } ~= json.encode { other.setting[key] } then return false end
    end
    return true
  end
  local function value(row) return row.metrics[quality] and row.metrics[quality].mean end
  local sign = better == 'less' and -1 or 1
  for _, row in ipairs(list) do
    local c, q = row.cost, value(row)
    if c and q then
      row.pareto = true
      for _, other in ipairs(list) do
        local oc, oq = other.cost, value(other)
        local beats = oc and oq and oc <= c and sign * oq >= sign * q and (oc < c or sign * oq > sign * q)
        if beats and rivals(row, other) then row.pareto = false end
      end
    end
  end
end

-- Differences to the row that `pattern` names, seed by seed, which takes out what the seeds have in common. The noise
-- floor is twice the standard error of a difference of two means of as many runs that only seeds tell apart; their
-- deviation is pooled over all rows.
function rows.compare(list, pattern, quality)
  local found = {}
  for _, row in ipairs(list) do
    if row.label == pattern then found = { row } break end
    if row.label:find(pattern, 1, true) then found[#found + 1] = row end
  end
  if #found ~= 1 then
    error(('report: against: %d rows have %s in their label; expected one'):format(#found, pattern), 0)
  end
  local base, squares, freedom = found[1], 0, 0
  for _, row in ipairs(list) do
    local s = row.metrics[quality]
    if s and s.sd then squares, freedom = squares + s.sd ^ 2 * (s.n - 1), freedom + s.n - 1 end
  end
  for _, row in ipairs(list) do
    local differences = {}
    for seed, metrics in pairs(row ~= base and row.by_seed or {}) do
      local a, b = metrics[quality], (base.by_seed[seed] or {})[quality]
      if type(a) == 'number' and type(b) == 'number' then differences[#differences + 1] = a - b end
    end
    if #differences > 0 then
      row.difference = statistics(differences)
      if freedom > 0 then
        row.difference.floor = 2 * math.sqrt(squares / freedom * 2 / #differences)
        row.difference.beyond = math.abs(row.difference.mean) > row.difference.floor
      end
    end
  end
  return base
end

return rows
