-- report/tables.lua: a report as text, Markdown, CSV and JSON.
local format = require 'kvlab.format'
local json = require 'kvlab.json'

local tables = {}

-- Enough digits of the mean for its deviation: 0.4312 +- 0.0021.
function tables.shown(s)
  if not s.sd then return ('%.5g'):format(s.mean) end
  return ('%.5g ± %.2g'):format(s.mean, s.sd)
end

function tables.difference(s)
  local text = (s.sd and '%+.3g ± %.2g' or '%+.3g'):format(s.mean, s.sd)
  if s.beyond == nil then return text end
  return text .. (s.beyond and ' > ' or ' < ') .. ('%.2g'):format(s.floor)
end

-- columns(result) -> the columns of a table behind the settings: { name =, get = row -> text ('' for none), number to
-- sort by }. Costs and the front are there when some row has them; `more` names further fields of rows.
function tables.columns(result, more)
  local columns = {}
  local function add(name, get) columns[#columns + 1] = { name = name, get = get } end
  local function there(key)
    for _, row in ipairs(result.rows) do
      if row[key] ~= nil then return true end
    end
    return false
  end
  add('n', function(row) return tostring(row.n), row.n end)
  for _, metric in ipairs(result.metrics) do
    add(metric, function(row)
      local s = row.metrics[metric]
      if s then return tables.shown(s), s.mean end
      return ''
    end)
  end
  if result.baseline then
    add(result.quality .. ', difference', function(row)
      if row == result.baseline then return '0', 0 end
      if row.difference then return tables.difference(row.difference), row.difference.mean end
      return ''
    end)
  end
  for _, pair in ipairs { { 'bytes_per_token', 'bytes/token', 2 }, { 'read_bytes', 'bytes read', 2 },
    table.unpack(more or {}) } do
    if there(pair[1]) then
      add(pair[2], function(row)
        if not row[pair[1]] then return '' end
        return format.number(row[pair[1]], pair[3]), row[pair[1]]
      end)
    end
  end
  if there 'pareto' then add('front', function(row) return row.pareto and '*' or '' end) end
  return columns
end

-- The table of text: a missing number is a dash.
local function cells(result)
  local columns, rows = tables.columns(result), { { 'setting' } }
  for i, column in ipairs(columns) do rows[1][i + 1] = column.name end
  for _, row in ipairs(result.rows) do
    local line = { row.label }
    for i, column in ipairs(columns) do
      local text = column.get(row)
      line[i + 1] = text == '' and column.name ~= 'front' and '-' or text
    end
    rows[#rows + 1] = line
  end
  return rows
end

function tables.state(result)
  local parts = {}
  for _, how in ipairs { 'done', 'running', 'stopped', 'new', 'failed' } do
    if result.counts[how] then parts[#parts + 1] = ('%d %s'):format(result.counts[how], how) end
  end
  return 'runs: ' .. (#parts > 0 and table.concat(parts, ', ') or 'none')
end

-- legend(result) -> lines: what the columns of differences and of the front say.
function tables.legend(result)
  local lines = {}
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
  return lines
end

function tables.text(result)
  local lines = format.table(cells(result), { 'l' })
  lines[#lines + 1] = tables.state(result)
  for _, line in ipairs(tables.legend(result)) do lines[#lines + 1] = line end
  return table.concat(lines, '\n')
end

function tables.markdown(result)
  local lines = {}
  for i, row in ipairs(cells(result)) do
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

function tables.csv(result)
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

function tables.json(result)
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

return tables
