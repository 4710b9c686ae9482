-- report.lua: kv.report: the runs of a folder as rows: a setting, and its metrics as mean and deviation over seeds.
--
-- Only what is done counts; the folder may be worked on meanwhile. What a layout costs is computed from the settings
-- (kvlab.cost), not taken from the runs.
local config = require 'kvlab.config'
local core = require 'kvlab.core'
local cost = require 'kvlab.cost'
local format = require 'kvlab.format'
local json = require 'kvlab.json'
local opts = require 'kvlab.options'
local run = require 'kvlab.run'

local report = {}

local function read_json(path)
  local file = io.open(path)
  if not file then return nil end
  local text = file:read('a')
  file:close()
  local ok, value = pcall(json.decode, text)
  return ok and value or nil
end

-- --- what is there --------------------------------------------------------------------------------------------

local function add_environments(seen, r)
  for _, environment in ipairs(r:environments()) do
    for _, key in ipairs { 'commit', 'kvlab', 'experiment' } do
      local value = environment[key] or (key == 'commit' and 'no commit' or nil)
      if value then seen[key][value] = true end
    end
  end
end

local function names_of(set)
  local list = {}
  for name in pairs(set) do list[#list + 1] = name:sub(1, 12) end
  table.sort(list)
  return list
end

-- The done runs, how many there are in each state, warnings, and what the sweeps said.
local function collect(dir)
  local names, problem = core.base.list_dir(dir)
  if not names then error('report: ' .. problem, 0) end
  table.sort(names)
  local out = { runs = {}, counts = {}, warnings = {}, sweeps = {}, failures = {} }
  local seen = { commit = {}, kvlab = {}, experiment = {} }
  local others = 0
  for _, name in ipairs(names) do
    local path = dir .. '/' .. name
    if name:find('%.sweep%.json$') then
      out.sweeps[#out.sweeps + 1] = read_json(path)
    elseif core.system.stat(path .. '/config.json') then
      local ok, r = pcall(run.open, path)
      if not ok then
        others = others + 1
      else
        local how, about = r:status()
        out.counts[how] = (out.counts[how] or 0) + 1
        if how == 'done' then
          out.runs[#out.runs + 1] = { config = r.config, metrics = about.metrics, seconds = about.seconds }
          add_environments(seen, r)
        elseif how == 'failed' then
          out.failures[#out.failures + 1] = { id = r.id, reason = about.reason }
        end
      end
    end
  end
  if others > 0 then
    out.warnings[1] = ('%d runs are of another results version (or damaged) and left out'):format(others)
  end
  local words = { commit = 'commits', kvlab = 'versions of kvlab', experiment = 'versions of the sweep file' }
  for key, what in pairs(words) do
    local list = names_of(seen[key])
    if #list > 1 then
      out.warnings[#out.warnings + 1] = ('the runs mix %d %s: %s'):format(#list, what, table.concat(list, ', '))
    end
  end
  table.sort(out.warnings)
  out.made_with = { results = config.RESULTS, kvlab = json.array(names_of(seen.kvlab)),
    commits = json.array(names_of(seen.commit)) }
  return out
end

-- --- rows ---------------------------------------------------------------------------------------------------------

local function varying(runs)
  local first, differs = nil, {}
  for _, one in ipairs(runs) do
    first = first or one.config
    for _, pair in ipairs { { one.config, first }, { first, one.config } } do
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

local function group(runs, keys)
  local rows, by_key = {}, {}
  for _, one in ipairs(runs) do
    local setting = {}
    for _, key in ipairs(keys) do setting[key] = one.config[key] end
    local name = json.encode(setting)
    local row = by_key[name]
    if not row then
      row = { setting = setting, n = 0, values = {}, seconds = 0, name = name, config = one.config, by_seed = {} }
      by_key[name] = row
      rows[#rows + 1] = row
    end
    row.n = row.n + 1
    row.by_seed[tostring(one.config.seed)] = one.metrics
    row.seconds = row.seconds + (one.seconds or 0)
    for metric, value in pairs(one.metrics) do
      if type(value) == 'number' then
        row.values[metric] = row.values[metric] or {}
        table.insert(row.values[metric], value)
      end
    end
  end
  return rows
end

local function label_of(row, keys)
  local given = {}
  for _, key in ipairs(keys) do
    if row.setting[key] ~= nil then given[#given + 1] = key end
  end
  return #given > 0 and config.label(row.setting, given) or 'all'
end

local function less(a, b)
  if type(a) == 'number' and type(b) == 'number' then return a < b end
  return tostring(type(a) == 'table' and json.encode(a) or a) < tostring(type(b) == 'table' and json.encode(b) or b)
end

-- Marks the rows that no other row beats: at most its cost and at least its quality, and better in one of them. Only
-- rows that agree in the settings `within` are rivals.
local function mark_front(rows, cost_of, quality, better, within)
  local function rivals(row, other)
    for _, key in ipairs(within) do
      if json.encode { row.setting[key] } ~= json.encode { other.setting[key] } then return false end
    end
    return true
  end
  local function value(row) return row.metrics[quality] and row.metrics[quality].mean end
  local sign = better == 'less' and -1 or 1
  for _, row in ipairs(rows) do
    local c, q = cost_of(row), value(row)
    if c and q then
      row.pareto = true
      for _, other in ipairs(rows) do
        local oc, oq = cost_of(other), value(other)
        local beats = oc and oq and oc <= c and sign * oq >= sign * q and (oc < c or sign * oq > sign * q)
        if beats and rivals(row, other) then row.pareto = false end
      end
    end
  end
end

-- Differences to the row that `pattern` names, seed by seed, which takes out what the seeds have in common. The noise
-- floor is twice the standard error of a difference of two means of as many runs that only seeds tell apart; their
-- deviation is pooled over all rows.
local function compare(rows, pattern, quality)
  local found = {}
  for _, row in ipairs(rows) do
    if row.label == pattern then found = { row } break end
    if row.label:find(pattern, 1, true) then found[#found + 1] = row end
  end
  if #found ~= 1 then
    error(('report: against: %d rows have %s in their label; expected one'):format(#found, pattern), 0)
  end
  local base, squares, freedom = found[1], 0, 0
  for _, row in ipairs(rows) do
    local s = row.metrics[quality]
    if s and s.sd then squares, freedom = squares + s.sd ^ 2 * (s.n - 1), freedom + s.n - 1 end
  end
  for _, row in ipairs(rows) do
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

local OPTIONS = { 'by', 'quality', 'better', 'cost', 'within', 'against' }

-- report.of(dir, { by = { keys }, quality = metric, better = 'less' | 'more', cost = metric,
-- within = { keys } }) -> { rows =, keys =, metrics = names, counts =, warnings =, failures =, quality =, cost = }
function report.of(dir, options)
  options = options or {}
  opts.check(options, OPTIONS, 'kv.report', 'option')
  local all = collect(dir)
  local said = #all.sweeps == 1 and all.sweeps[1] or {}
  local keys = options.by or said.by
  if keys then
    local known = {}
    for _, one in ipairs(all.runs) do
      for key in pairs(one.config) do known[key] = true end
    end
    local list = {}
    for key in pairs(known) do list[#list + 1] = key end
    table.sort(list)
    for _, key in ipairs(#all.runs > 0 and keys or {}) do opts.word(key, list, 'report: by') end
  else
    keys = varying(all.runs)
  end
  local rows = group(all.runs, keys)
  table.sort(rows, function(a, b)
    for _, key in ipairs(keys) do
      local x, y = a.setting[key], b.setting[key]
      if x == nil or y == nil then
        if (x == nil) ~= (y == nil) then return x == nil end
      elseif less(x, y) then return true
      elseif less(y, x) then return false end
    end
    return false
  end)
  local metrics, names = {}, {}
  for _, row in ipairs(rows) do
    row.metrics = {}
    for metric, values in pairs(row.values) do
      row.metrics[metric] = statistics(values)
      metrics[metric] = true
    end
    row.seconds, row.values = row.seconds / row.n, nil
    local paid = cost.of(row.config) or {}
    for key, value in pairs(row.metrics) do
      if key == 'bytes_per_token' or key == 'read_bytes' then paid[key] = value.mean end
    end
    row.bytes_per_token, row.read_bytes, row.config, row.name = paid.bytes_per_token, paid.read_bytes, nil, nil
  end
  -- the measured ones first, in their order
  local placed = {}
  for _, metric in ipairs(said.measure or {}) do
    if metrics[metric] then
      names[#names + 1] = metric
      placed[metric] = true
    end
  end
  local rest = {}
  for metric in pairs(metrics) do
    if not placed[metric] then rest[#rest + 1] = metric end
  end
  table.sort(rest)
  for _, metric in ipairs(rest) do names[#names + 1] = metric end
  local quality = options.quality or names[1]
  if options.quality then opts.word(quality, names, 'report: quality') end
  local paid = options.cost or said.cost or 'bytes_per_token'
  local better = options.better or said.better
    or quality and (quality:find('loss') or quality:find('error')) and 'less' or 'more'
  local function cost_of(row)
    return row[paid] or row.metrics[paid] and row.metrics[paid].mean or type(row.setting[paid]) == 'number'
      and row.setting[paid] or nil
  end
  for _, row in ipairs(rows) do
    row.label = label_of(row, keys)
  end
  local baseline = options.against and quality and compare(rows, options.against, quality)
  for _, row in ipairs(rows) do row.by_seed = nil end
  local within = options.within or said.within or {}
  if quality then mark_front(rows, cost_of, quality, better, within) end
  return { rows = rows, keys = keys, metrics = names, counts = all.counts, warnings = all.warnings,
    failures = all.failures, quality = quality, better = better, cost = paid, within = within, baseline = baseline,
    made_with = all.made_with }
end

-- --- showing ------------------------------------------------------------------------------------------------------

-- Enough digits of the mean for its deviation: 0.4312 +- 0.0021.
local function shown(s)
  if not s then return '-' end
  if not s.sd then return ('%.5g'):format(s.mean) end
  return ('%.5g ± %.2g'):format(s.mean, s.sd)
end

local function difference(s)
  if not s then return '-' end
  local text = (s.sd and '%+.3g ± %.2g' or '%+.3g'):format(s.mean, s.sd)
  if s.beyond == nil then return text end
  return text .. (s.beyond and ' > ' or ' < ') .. ('%.2g'):format(s.floor)
end

local function cells(result, shown_metrics)
  local has = {}
  for _, row in ipairs(result.rows) do
    for _, key in ipairs { 'bytes_per_token', 'read_bytes', 'pareto' } do has[key] = has[key] or row[key] ~= nil end
  end
  local head = { 'setting', 'n' }
  for _, metric in ipairs(shown_metrics) do head[#head + 1] = metric end
  if result.baseline then head[#head + 1] = result.quality .. ', difference' end
  if has.bytes_per_token then head[#head + 1] = 'bytes/token' end
  if has.read_bytes then head[#head + 1] = 'bytes read' end
  if has.pareto then head[#head + 1] = 'front' end
  local rows = { head }
  for _, row in ipairs(result.rows) do
    local line = { row.label, tostring(row.n) }
    for _, metric in ipairs(shown_metrics) do line[#line + 1] = shown(row.metrics[metric]) end
    if result.baseline then line[#line + 1] = row == result.baseline and '0' or difference(row.difference) end
    if has.bytes_per_token then line[#line + 1] = row.bytes_per_token and format.number(row.bytes_per_token) or '-' end
    if has.read_bytes then line[#line + 1] = row.read_bytes and format.number(row.read_bytes) or '-' end
    if has.pareto then line[#line + 1] = row.pareto and '*' or '' end
    rows[#rows + 1] = line
  end
  return rows
end

local function state_line(result)
  local parts = {}
  for _, how in ipairs { 'done', 'running', 'stopped', 'new', 'failed' } do
    if result.counts[how] then parts[#parts + 1] = ('%d %s'):format(result.counts[how], how) end
  end
  return 'runs: ' .. (#parts > 0 and table.concat(parts, ', ') or 'none')
end

function report.text(result)
  local lines = format.table(cells(result, result.metrics), { 'l' })
  lines[#lines + 1] = state_line(result)
  if result.baseline then
    lines[#lines + 1] = ('difference to %s over the same seeds; > or < the noise of seeds, two standard errors')
      :format(result.baseline.label)
  end
  for _, row in ipairs(result.rows) do
    if row.pareto ~= nil then
      lines[#lines + 1] = ('front: no other has less %s and a better %s (%s)%s'):format(result.cost, result.quality,
        result.better, #result.within > 0 and ', at the same ' .. table.concat(result.within, ', ') or '')
      break
    end
  end
  return table.concat(lines, '\n')
end

function report.markdown(result)
  local lines = {}
  for i, row in ipairs(cells(result, result.metrics)) do
    for j, cell in ipairs(row) do row[j] = cell:gsub('|', '\\|') end
    lines[#lines + 1] = '| ' .. table.concat(row, ' | ') .. ' |'
    if i == 1 then lines[#lines + 1] = '|---' .. ('|---:'):rep(#row - 1) .. '|' end
  end
  return table.concat(lines, '\n')
end

local function csv_cell(value)
  if value == nil then return '' end
  if type(value) == 'table' then value = json.encode(value) end
  local text = math.type(value) == 'float' and ('%.17g'):format(value) or tostring(value)
  if text:find('[",\r\n]') then return '"' .. text:gsub('"', '""') .. '"' end
  return text
end

function report.csv(result)
  local head, lines = {}, {}
  for _, key in ipairs(result.keys) do head[#head + 1] = csv_cell(key) end
  head[#head + 1] = 'n'
  for _, metric in ipairs(result.metrics) do
    head[#head + 1] = csv_cell(metric .. '_mean')
    head[#head + 1] = csv_cell(metric .. '_sd')
  end
  for _, name in ipairs { 'bytes_per_token', 'read_bytes', 'seconds', 'pareto' } do head[#head + 1] = name end
  lines[1] = table.concat(head, ',')
  for _, row in ipairs(result.rows) do
    local line = {}
    for _, key in ipairs(result.keys) do line[#line + 1] = csv_cell(row.setting[key]) end
    line[#line + 1] = tostring(row.n)
    for _, metric in ipairs(result.metrics) do
      local s = row.metrics[metric] or {}
      line[#line + 1] = csv_cell(s.mean)
      line[#line + 1] = csv_cell(s.sd)
    end
    for _, name in ipairs { 'bytes_per_token', 'read_bytes', 'seconds', 'pareto' } do
      line[#line + 1] = csv_cell(row[name])
    end
    lines[#lines + 1] = table.concat(line, ',')
  end
  return table.concat(lines, '\n')
end

function report.json(result)
  local rows = {}
  for i, row in ipairs(result.rows) do
    local metrics = {}
    for metric, s in pairs(row.metrics) do
      metrics[metric] = json.object { { 'mean', s.mean }, { 'sd', s.sd or json.null }, { 'n', s.n } }
    end
    rows[i] = json.object { { 'setting', row.setting }, { 'n', row.n }, { 'metrics', metrics },
      { 'bytes_per_token', row.bytes_per_token }, { 'read_bytes', row.read_bytes }, { 'seconds', row.seconds },
      { 'pareto', row.pareto }, { 'difference', row.difference } }
  end
  return json.encode(json.object { { 'rows', json.array(rows) }, { 'runs', result.counts },
    { 'quality', result.quality }, { 'better', result.better }, { 'cost', result.cost },
    { 'against', result.baseline and result.baseline.label }, { 'made_with', result.made_with },
    { 'warnings', json.array(result.warnings) }, { 'failures', json.array(result.failures) } }, { indent = 2 })
end

return report
