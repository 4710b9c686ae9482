-- report/pictures.lua: a report as pictures, which are options of plot.line: curves over steps, quality against cost.
local opts = require 'kvlab.options'
local rows = require 'kvlab.report.rows'

local pictures = {}

local THIN <const> = 300 -- steps of a curve; more become means of neighbours
local MOST <const> = 8 -- curves in a picture

-- --- curves -----------------------------------------------------------------------------------------------------

-- What says where a run is and how fast, rather than how well it does: drawn when it is asked for.
local ASIDE = { epoch = true, seconds = true, time = true, tokens = true, tokens_per_second = true, lr = true }

-- What the run logged: { metric = { { step, value }, ... } }. A record without a step counts on.
local function logged(r)
  local out = {}
  for i, record in ipairs((r:metrics())) do
    local step = type(record.step) == 'number' and record.step or i
    for metric, value in pairs(record) do
      if type(value) == 'number' and metric ~= 'step' then
        out[metric] = out[metric] or {}
        table.insert(out[metric], { step, value })
      end
    end
  end
  return out
end

-- Mean, lowest and highest over runs at every step: list of { step, mean, low, high }.
local function over_runs(lists)
  local by_step, steps = {}, {}
  for _, list in ipairs(lists) do
    for _, one in ipairs(list) do
      local at = by_step[one[1]]
      if not at then
        at = { one[1], 0.0, one[2], one[2], n = 0 }
        by_step[one[1]], steps[#steps + 1] = at, at
      end
      at[2], at.n = at[2] + one[2], at.n + 1
      at[3], at[4] = math.min(at[3], one[2]), math.max(at[4], one[2])
    end
  end
  for _, at in ipairs(steps) do at[2] = at[2] / at.n end
  table.sort(steps, function(a, b) return a[1] < b[1] end)
  return steps
end

local function thinned(points)
  local each = math.ceil(#points / THIN)
  if each <= 1 then return points, 1 end
  local out = {}
  for first = 1, #points, each do
    local last = math.min(first + each - 1, #points)
    local step, mean, low, high = 0.0, 0.0, math.huge, -math.huge
    for i = first, last do
      local p = points[i]
      step, mean, low, high = step + p[1], mean + p[2], math.min(low, p[3]), math.max(high, p[4])
    end
    local n = last - first + 1
    out[#out + 1] = { step / n, mean / n, low, high }
  end
  return out, each
end

-- curves(result) -> { metric = { { label =, setting =, points = { { step, mean, low, high }, ... }, runs =, each = },
-- ... } }, and the names of the metrics: what a report is about first. Runs that go on are in.
function pictures.curves(result)
  local groups, all, names = rows.group(result.runs, result.keys), {}, {}
  rows.sort(groups, result.keys)
  for _, group in ipairs(groups) do
    local by_metric = {}
    for _, one in ipairs(group.runs) do
      for metric, list in pairs(logged(one.run)) do
        by_metric[metric] = by_metric[metric] or {}
        table.insert(by_metric[metric], list)
      end
    end
    for metric, lists in pairs(by_metric) do
      if not all[metric] then all[metric], names[#names + 1] = {}, metric end
      local points, each = thinned(over_runs(lists))
      table.insert(all[metric], { label = rows.label_of(group, result.keys), setting = group.setting, points = points,
        runs = #lists, each = each })
    end
  end
  local function rank(name)
    if name == result.quality then return 1 end
    return ASIDE[name] and 5 or name:find('loss') and 2 or name:find('acc') and 3 or 4
  end
  table.sort(names, function(a, b)
    if rank(a) ~= rank(b) then return rank(a) < rank(b) end
    return a < b
  end)
  return all, names
end

-- The curves to be seen: all, or those of the front and then the best of the rest, in the order of the report.
local function chosen(result, list)
  if #list <= MOST then return list, 0 end
  local row_of, order = {}, {}
  for _, row in ipairs(result.rows) do row_of[row.label] = row end
  for i, curve in ipairs(list) do
    local row = row_of[curve.label]
    local s = row and row.metrics[result.quality]
    order[i] = { at = i, curve = curve, front = row ~= nil and row.pareto == true,
      value = s and (result.better == 'less' and -s.mean or s.mean) or -math.huge }
  end
  table.sort(order, function(a, b)
    if a.front ~= b.front then return a.front end
    if a.value ~= b.value then return a.value > b.value end
    return a.at < b.at
  end)
  local kept = table.move(order, 1, MOST, 1, {})
  table.sort(kept, function(a, b) return a.at < b.at end)
  for i, one in ipairs(kept) do kept[i] = one.curve end
  return kept, #list - MOST
end

-- curve_plot(result, metric, curves of it) -> options of plot.line.
function pictures.curve_plot(result, metric, list)
  local kept, left = chosen(result, list)
  local series, most, each = {}, 1, 1
  for i, curve in ipairs(kept) do
    local points, errors = {}, curve.runs > 1 and {} or nil
    for k, p in ipairs(curve.points) do
      points[k] = { p[1], p[2] }
      if errors then errors[k] = { p[3], p[4] } end
    end
    series[i] = { curve.label, points, error = errors }
    most, each = math.max(most, curve.runs), math.max(each, curve.each)
  end
  local notes = {}
  if most > 1 then notes[1] = ('means over up to %d runs, from the lowest to the highest'):format(most) end
  if each > 1 then notes[#notes + 1] = ('means of %d steps'):format(each) end
  local going = #result.runs - (result.counts.done or 0)
  if going > 0 then
    notes[#notes + 1] = ('%d run%s not done'):format(going, going == 1 and ' is' or 's are')
  end
  if left > 0 then notes[#notes + 1] = ('%d settings left out (the front and the best are shown)'):format(left) end
  return { title = metric .. ' over steps', x = 'step', y = metric, series = series,
    note = #notes > 0 and table.concat(notes, '; ') or nil }
end

-- metric_curves(result, wanted) -> list of options of plot.line, one for each metric that is wanted: a list of names,
-- or the greatest number of them.
function pictures.metric_curves(result, wanted)
  local all, names = pictures.curves(result)
  if type(wanted) == 'table' then
    for _, name in ipairs(wanted) do
      if #names == 0 then error(('report: curves: no run has logged %s, nor anything else'):format(name), 0) end
      opts.word(name, names, 'report: curves')
    end
    names = wanted
  end
  local list = {}
  for i, name in ipairs(names) do
    if type(wanted) == 'table' or i <= wanted and (not ASIDE[name] or name == result.quality) then
      list[#list + 1] = pictures.curve_plot(result, name, all[name])
    end
  end
  return list
end

-- --- quality against cost ------------------------------------------------------------------------------------------

local UNITS = { bytes_per_token = 'bytes stored per token (B)', read_bytes = 'bytes read by one decode step (B)' }

-- The front as a staircase: what quality is to be had for a cost.
local function staircase(front, quality)
  table.sort(front, function(a, b) return a.cost < b.cost end)
  local points = {}
  for i, row in ipairs(front) do
    local y = row.metrics[quality].mean
    if i > 1 then points[#points + 1] = { row.cost, points[#points][2] } end
    points[#points + 1] = { row.cost, y }
  end
  return points
end

-- One path for each group of rivals, when it has two rows or more.
local function fronts(list, result)
  local groups, order = {}, {}
  for _, row in ipairs(list) do
    if row.pareto then
      local parts = {}
      for i, key in ipairs(result.within) do parts[i] = ('%s=%s'):format(key, tostring(row.setting[key])) end
      local name = #parts > 0 and 'front, ' .. table.concat(parts, ' ') or 'front'
      if not groups[name] then groups[name], order[#order + 1] = {}, name end
      table.insert(groups[name], row)
    end
  end
  local out = {}
  for _, name in ipairs(order) do
    if #groups[name] > 1 then
      out[#out + 1] = { name, staircase(groups[name], result.quality), style = 'path' }
    end
  end
  return out
end

-- quality_plot(result) -> options of plot.line; or nil and why there is no such picture. A letter for each row, capital
-- on the front; in a crowd only the front has letters.
function pictures.quality_plot(result)
  local q, list, without = result.quality, {}, 0
  if not q then return nil, 'no run has a metric' end
  local low, high = math.huge, -math.huge
  for _, row in ipairs(result.rows) do
    if row.cost and row.metrics[q] then
      list[#list + 1] = row
      low, high = math.min(low, row.cost), math.max(high, row.cost)
    else
      without = without + 1
    end
  end
  if #list == 0 then
    return nil, ('no row has both %s and %s; --cost names another cost'):format(q, result.cost)
  end
  local named = #list <= 26
  local series, crowd, letter, beyond = {}, { points = {}, errors = {} }, 0, 0
  for _, row in ipairs(list) do
    local s = row.metrics[q]
    if (named or row.pareto) and letter < 26 then
      letter = letter + 1
      series[#series + 1] = { row.label, { { row.cost, s.mean } }, error = s.sd and { s.sd }, style = 'points',
        mark = string.char((row.pareto and 64 or 96) + letter) }
    else
      table.insert(crowd.points, { row.cost, s.mean })
      table.insert(crowd.errors, s.sd or 0)
      if row.pareto then beyond = beyond + 1 end
    end
  end
  if #crowd.points > 0 then
    series[#series + 1] = { ('%d others%s'):format(#crowd.points, beyond > 0 and '' or ', not on the front'),
      crowd.points, error = crowd.errors, style = 'points', mark = '.' }
  end
  local paths = fronts(list, result)
  table.move(paths, 1, #paths, #series + 1, series)
  local notes = { ('capitals are on the front, %s is better; bars are standard deviations'):format(result.better) }
  if without > 0 then
    notes[2] = ('%s without %s or %s'):format(without == 1 and '1 row is' or without .. ' rows are', q, result.cost)
  end
  return { title = ('%s against %s'):format(q, result.cost), x = UNITS[result.cost] or result.cost, y = q,
    xscale = low > 0 and high / low > 20 and 'log' or 'linear', series = series, note = table.concat(notes, '; ') }
end

return pictures
