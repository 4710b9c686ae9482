-- kvlab kv LAYOUT...: what a layout's KV cache stores and reads. The numbers come from kvlab.count and
-- kvlab.flops; here they are only written down.
local cli = require 'kvlab.cli'
local count = require 'kvlab.count'
local counted = require 'kvlab.counted'
local exact = require 'kvlab.exact'
local flops = require 'kvlab.flops'
local format = require 'kvlab.format'
local json = require 'kvlab.json'

local command = {
  name = 'kv',
  json = true,
  usage = 'kv LAYOUT... [OPTIONS]',
  summary = 'bytes stored and read, exactly',
  text = [[A LAYOUT is a preset (kvlab layout lists them), a Lua file that returns a layout, or layout text such as
'swa*2 [full/2 reuse*5]*3'. Text brings no widths of its own and uses those of v4.1-flash. What is counted, and
what is not, is in docs/counting.md.]],
  example = 'kvlab kv v4-flash --context 1000000',
  options = {
    counted.OPTIONS.context,
    counted.OPTIONS.records,
    counted.OPTIONS.widths,
    { 'baseline', 'LAYOUT', "compare with this layout instead of the article's MHA" },
    { 'requests', 'R', 'total for R requests' },
    { 'memory', 'GiB', 'how many requests fit' },
    counted.OPTIONS.access,
    { 'layers', nil, 'a line for each layer' },
    { 'factors', nil, 'how much each of the four factors changed from one LAYOUT to the next' },
    { 'flops', nil, 'multiply-adds of a decode step and of the prefill' },
    counted.OPTIONS.strict,
  },
}

local MOST_LAYERS_IN_JSON = 4096 -- more only with --layers: a million layers would be a million objects

local function number(x) return format.number(x, 2) end

-- --- text ---------------------------------------------------------------------------------------------
-- Classes that store the same thing under the same name are one line of the factors.
local function storing_kinds(result)
  local rows, by_text = {}, {}
  for _, c in ipairs(result.classes) do
    if c.shape.owns then
      local index = c.index_record and c.index_record.name or ''
      local key = ('%s %s %s %d'):format(c.shape.layer, c.main_record.name, index, c.shape.main.channels)
      local row = by_text[key]
      if not row then
        row = { class = c, layers = 0, slope = exact(0) }
        by_text[key] = row
        rows[#rows + 1] = row
      end
      row.layers = row.layers + c.count
      row.slope = row.slope + c.slope * c.count
    end
  end
  return rows
end

local function formulas(result)
  local rows, seen = {}, {}
  for _, c in ipairs(result.classes) do
    for _, part in ipairs { { 'main KV', c.main_plan, c.main_record, c.shape.main },
      { 'search key', c.index_plan, c.index_record, c.shape.index },
      { 'local KV', c.window_plan, c.window_record, c.shape.local_kv } } do
      local label, plan, rec, dims = part[1], part[2], part[3], part[4]
      if plan and (label ~= 'search key' or c.shape.owns) and (label ~= 'main KV' or c.shape.owns) then
        local text = ('%s  %s'):format(rec.name, rec:formula { channels = dims.channels, rotary = dims.rotary,
          key = dims.key, value = dims.value })
        if not seen[label .. text] then
          seen[label .. text] = true
          rows[#rows + 1] = { '  ' .. label, text }
        end
      end
    end
  end
  return format.table(rows, { 'l', 'l' })
end

local function append(lines, more)
  for _, line in ipairs(more) do lines[#lines + 1] = line end
end

local function factor_lines(result)
  local rows = { { '  stores', 'width', 'layers', 'bytes a value', 'ratio', 'B/token' } }
  for _, row in ipairs(storing_kinds(result)) do
    local c = row.class
    local main, index = c.shape.main.channels, c.shape.index and c.shape.index.channels
    local bytes = c.main_plan.bytes + (c.index_plan and c.index_plan.bytes or 0)
    rows[#rows + 1] = { '  ' .. tostring(c.shape.layer),
      index and ('%s + %s'):format(number(main), number(index)) or number(main),
      'x ' .. number(row.layers),
      ('x %s (%s B)'):format(number(exact(bytes, main + (index or 0)):tonumber()),
        index and ('%s + %s'):format(number(c.main_plan.bytes), number(c.index_plan.bytes)) or number(bytes)),
      '/ ' .. number(c.shape.ratio), '= ' .. number(row.slope) }
  end
  if #rows == 1 then return { '  no layer stores KV for the whole context' } end
  return format.table(rows)
end

local function ratio_text(result, options)
  local base = options.baseline and options.baseline_result.store.bytes_per_token or count.mha_bytes_per_token()
  local name = options.baseline and options.baseline_result.name or "the article's MHA"
  local own = result.store.bytes_per_token
  if own:is_zero() then return '' end
  if own <= base then return ('  (1/%s of %s)'):format(format.ratio(base / own), name) end
  return ('  (%s times %s)'):format(format.ratio(own / base), name)
end

local function total_with_state(result) return result.store.total_bytes + result.store.state_bytes end

local function fits(result, options)
  return exact(math.floor(options.memory * 2 ^ 30)) // total_with_state(result)
end

local function store_lines(result, options)
  local store, N = result.store, number(result.context)
  local rows = {
    { '  bytes per token', number(store.bytes_per_token) .. ' B', ratio_text(result, options) },
    { '  fixed, local KV', number(store.fixed_bytes) .. ' B', '' },
    { '  compressor state', number(store.state_bytes) .. ' B',
      ('  (float32, apart; at most %s B)'):format(number(store.state_bytes_most)) },
    { ('  total at %s'):format(N), number(store.total_bytes) .. ' B', '  (' .. format.bytes(store.total_bytes) .. ')' },
  }
  if options.requests then
    local all = store.total_bytes * options.requests
    rows[#rows + 1] = { ('  for %s requests'):format(number(options.requests)), number(all) .. ' B',
      '  (' .. format.bytes(all) .. ')' }
  end
  if options.memory then
    rows[#rows + 1] = { ('  fit in %s GiB'):format(number(options.memory)),
      number(fits(result, options)) .. ' requests', '  (state included)' }
  end
  local lines = format.table(rows, { 'l', 'r', 'l' })
  local cross = result.crossover_tokens
  if cross and not store.fixed_bytes:is_zero() then
    lines[#lines + 1] = ('  global and local KV are equal at %s tokens%s'):format(number(cross),
      exact(result.context) < cross and '; at this context the local KV is the larger part' or '')
  end
  return lines
end

local function read_lines(result)
  local read = result.read
  local rows = {}
  for _, part in ipairs { { 'selected KV', read.selected_bytes }, { 'window', read.window_bytes },
    { 'search keys', read.index_bytes } } do
    rows[#rows + 1] = { '  ' .. part[1], number(part[2]) .. ' B', format.percent(part[2], read.total_bytes) }
  end
  rows[#rows + 1] = { '  total', number(read.total_bytes) .. ' B', format.bytes(read.total_bytes) }
  return format.table(rows)
end

local function layer_lines(result)
  local rows = { { '  layer', 'kind', 'entries', 'scored', 'read', 'window', 'B/token', 'stored B', 'read B' } }
  for i = 1, #result.layout do
    local c = count.layer(result, i)
    rows[#rows + 1] = { ('  %d'):format(i), tostring(c.shape.layer), number(c.entries), number(c.scored),
      number(c.rows), number(c.window_rows), number(c.slope), number(c.store + c.filled),
      number(c.selected + c.window + c.keys) }
  end
  return format.table(rows, { 'r', 'l' })
end

local PARTS = { 'projections', 'attention', 'indexing', 'total' }

local function flops_lines(result)
  local f = flops.layout(result)
  local rows = { { '  multiply-adds', 'projections', 'attention', 'indexing', 'total' } }
  for _, phase in ipairs { { 'decode', f.decode }, { 'prefill', f.prefill } } do
    for _, order in ipairs(f.orders) do
      local row = { ('  %s%s'):format(phase[1], order == 'plain' and '' or ', ' .. order) }
      for _, part in ipairs(PARTS) do row[#row + 1] = number(phase[2][order][part]) end
      rows[#rows + 1] = row
    end
  end
  local lines = format.table(rows)
  if #f.orders > 1 then
    lines[#lines + 1] = f.expand_wins
      and ('  expanding costs less than absorbing from %s queries on'):format(number(f.expand_wins))
      or '  absorbing never costs more than expanding here'
  end
  if f.evaluations.replay then
    lines[#lines + 1] = ('  prefill evaluates %s (position, layer) pairs; with bounded replay of %s tokens %s (%s)')
      :format(number(f.evaluations.all), number(f.evaluations.replay_tokens), number(f.evaluations.replay),
        format.percent(f.evaluations.replay, f.evaluations.all))
  end
  return lines
end

local function text_of(result, options)
  local lines = {}
  if result.layout.name then lines[1] = result.layout.name end
  lines[#lines + 1] = tostring(result.layout)
  lines[#lines + 1] = ('%s layer%s, %s tokens cached'):format(number(#result.layout),
    #result.layout == 1 and '' or 's', number(result.context))
  lines[#lines + 1] = ''
  append(lines, factor_lines(result))
  append(lines, formulas(result))
  lines[#lines + 1] = ''
  lines[#lines + 1] = 'stored'
  append(lines, store_lines(result, options))
  lines[#lines + 1] = ''
  lines[#lines + 1] = 'read by one decode step'
    .. (result.access == 'mask' and ', everything scored and then masked' or '')
  append(lines, read_lines(result))
  if options.layers then
    lines[#lines + 1] = ''
    append(lines, layer_lines(result))
  end
  if options.flops then
    lines[#lines + 1] = ''
    append(lines, flops_lines(result))
  end
  return table.concat(lines, '\n')
end

-- --- factors from A to B ------------------------------------------------------------------------------
local FACTORS = { { 'width', 'width of a token-layer, values' }, { 'layers', 'layers that store' },
  { 'bytes', 'bytes a value' }, { 'ratio', 'tokens per entry' } }

local function compare_factors(a, b)
  local fa, fb = count.factors(a), count.factors(b)
  if not (fa and fb) then
    cli.failed('--factors: %s stores nothing for the whole context, so it has no factors', fa and b.name or a.name)
  end
  local change = {}
  for _, factor in ipairs(FACTORS) do
    local name = factor[1]
    -- Each as what it does to the bytes, so that the product of the four is the ratio of the bytes.
    change[name] = name == 'ratio' and fa.ratio / fb.ratio or fb[name] / fa[name]
  end
  change.bytes_per_token = b.store.bytes_per_token / a.store.bytes_per_token
  return { from = a, to = b, a = fa, b = fb, change = change }
end

local function times_text(x)
  if x == exact(1) then return 'the same' end
  if x < exact(1) then return '/ ' .. format.ratio(exact(1) / x) end
  return 'x ' .. format.ratio(x)
end

local function factors_text(f)
  local rows = { { '  factor', f.from.name, f.to.name, 'change' } }
  for _, factor in ipairs(FACTORS) do
    local name = factor[1]
    rows[#rows + 1] = { '  ' .. factor[2], format.number(f.a[name], 4), format.number(f.b[name], 4),
      times_text(f.change[name]) }
  end
  rows[#rows + 1] = { '  bytes per token', number(f.from.store.bytes_per_token), number(f.to.store.bytes_per_token),
    times_text(f.change.bytes_per_token) }
  return 'four factors; the product of their changes is the change of the bytes\n'
    .. table.concat(format.table(rows), '\n')
end

-- --- several layouts in one table ---------------------------------------------------------------------
local function comparison(results, options)
  local base = options.baseline_result
  local slope = base and base.store.bytes_per_token or count.mha_bytes_per_token()
  local rows = { { '', 'B/token', (base and 'baseline' or 'MHA') .. ' is', 'fixed B', 'total B', 'read B', 'keys' } }
  for _, r in ipairs(results) do
    rows[#rows + 1] = { r.name, number(r.store.bytes_per_token),
      r.store.bytes_per_token:is_zero() and '-'
        or format.ratio(slope / r.store.bytes_per_token) .. ' x',
      number(r.store.fixed_bytes), number(r.store.total_bytes), number(r.read.total_bytes),
      format.percent(r.read.index_bytes, r.read.total_bytes) }
  end
  return table.concat(format.table(rows), '\n')
end

-- --- JSON ---------------------------------------------------------------------------------------------
local function layer_json(result, i)
  local c = count.layer(result, i)
  local L = result.layout
  local owner, selector = L:owner(i), L:selector(i)
  return json.object {
    { 'layer_id', i - 1 }, { 'kind', L[i].kind }, { 'layer', tostring(L[i]) },
    { 'owner', owner and owner - 1 or json.null }, { 'selector', selector and selector - 1 or json.null },
    { 'ratio', c.shape.ratio or json.null }, { 'window', c.shape.window },
    { 'record', c.main_record and c.main_record.name or json.null },
    { 'index_record', c.index_record and c.index_record.name or json.null },
    { 'window_record', c.window_record and c.window_record.name or json.null },
    { 'bytes_per_token', c.slope }, { 'bytes_per_token_exact', tostring(c.slope) }, { 'fixed_bytes', c.fixed },
    { 'state_bytes', c.state }, { 'store_bytes', c.store + c.filled }, { 'entries', c.entries },
    { 'rows_read', c.rows }, { 'keys_scored', c.scored }, { 'window_rows', c.window_rows },
    { 'selected_bytes', c.selected }, { 'window_bytes', c.window }, { 'index_bytes', c.keys },
  }
end

local function flops_json(result)
  local f = flops.layout(result)
  local out = {}
  for _, phase in ipairs { { 'decode', f.decode }, { 'prefill', f.prefill } } do
    local orders = {}
    for _, order in ipairs(f.orders) do
      local parts = {}
      for _, part in ipairs(PARTS) do parts[#parts + 1] = { part, phase[2][order][part] } end
      orders[#orders + 1] = { order, json.object(parts) }
    end
    out[#out + 1] = { phase[1], json.object(orders) }
  end
  out[#out + 1] = { 'expand_wins_from_queries', f.expand_wins or json.null }
  out[#out + 1] = { 'evaluations', f.evaluations.all }
  out[#out + 1] = { 'evaluations_with_replay', f.evaluations.replay or json.null }
  return json.object(out)
end

local function json_of(result, options)
  local store, read = result.store, result.read
  local own = store.bytes_per_token
  local function ratio_to(base) return own:is_zero() and json.null or base / own end
  local fields = {
    { 'name', result.name }, { 'context', result.context }, { 'layout', tostring(result.layout) },
    { 'access', result.access },
    { 'store', json.object {
      { 'bytes_per_token', own }, { 'bytes_per_token_exact', tostring(own) }, { 'fixed_bytes', store.fixed_bytes },
      { 'state_bytes', store.state_bytes }, { 'state_bytes_most', store.state_bytes_most },
      { 'total_bytes', store.total_bytes } } },
    { 'read', json.object {
      { 'selected_bytes', read.selected_bytes }, { 'window_bytes', read.window_bytes }, { 'kv_bytes', read.kv_bytes },
      { 'index_bytes', read.index_bytes }, { 'total_bytes', read.total_bytes } } },
    { 'mha_ratio', ratio_to(count.mha_bytes_per_token()) },
    { 'crossover_tokens', result.crossover_tokens or json.null },
  }
  local function add(name, value) fields[#fields + 1] = { name, value } end
  if options.baseline then
    add('baseline', json.object { { 'name', options.baseline_result.name },
      { 'ratio', ratio_to(options.baseline_result.store.bytes_per_token) } })
  end
  if options.requests then
    add('requests', json.object { { 'count', options.requests },
      { 'total_bytes', store.total_bytes * options.requests } })
  end
  if options.memory then
    add('memory', json.object { { 'gib', options.memory }, { 'requests_that_fit', fits(result, options) } })
  end
  if options.flops then add('flops', flops_json(result)) end
  if options.layers or #result.layout <= MOST_LAYERS_IN_JSON then
    local list = {}
    for i = 1, #result.layout do list[i] = layer_json(result, i) end
    add('layers', json.array(list))
  else
    add('layers', json.null)
  end
  return json.object(fields)
end

local function factors_json(f)
  local fields = { { 'from', f.from.name }, { 'to', f.to.name } }
  for _, factor in ipairs(FACTORS) do
    local name = factor[1]
    fields[#fields + 1] = { name, json.object { { 'from', f.a[name] }, { 'to', f.b[name] },
      { 'change', f.change[name] } } }
  end
  fields[#fields + 1] = { 'bytes_per_token', json.object { { 'from', f.from.store.bytes_per_token },
    { 'to', f.to.store.bytes_per_token }, { 'change', f.change.bytes_per_token } } }
  return json.object(fields)
end

-- --- the command --------------------------------------------------------------------------------------
function command.run(args, options)
  if #args == 0 then cli.usage("kv: expected a layout, such as v4.1-flash or 'swa*2 [full/2 reuse*5]*3'") end
  if options.factors then
    if #args < 2 then cli.usage('kv: --factors compares two layouts, got one') end
    for _, other in ipairs { 'layers', 'flops', 'requests', 'memory', 'baseline' } do
      if options[other] then cli.usage('kv: --factors prints the factors only; leave out --%s', other) end
    end
  end
  local parsed = counted.parse(options)
  if options.requests then options.requests = cli.whole(options.requests, '--requests', 1) end
  if options.memory then options.memory = cli.positive(options.memory, '--memory') end
  if options.baseline then options.baseline_result = counted.layout(options.baseline, parsed) end
  local results = {}
  for i, word in ipairs(args) do results[i] = counted.layout(word, parsed) end

  if options.json then
    local out
    if options.factors then
      local list = {}
      for i = 2, #results do list[#list + 1] = factors_json(compare_factors(results[i - 1], results[i])) end
      out = #list == 1 and list[1] or json.array(list)
    else
      local list = {}
      for i, result in ipairs(results) do list[i] = json_of(result, options) end
      out = #list == 1 and list[1] or json.array(list)
    end
    print(json.encode(out, { indent = 2 }))
    return
  end
  if options.factors then
    for i = 2, #results do
      if i > 2 then print() end
      print(factors_text(compare_factors(results[i - 1], results[i])))
    end
    return
  end
  for i, result in ipairs(results) do
    if i > 1 then print() end
    print(text_of(result, options))
  end
  if #results > 1 then print('\n' .. comparison(results, options)) end
end

return command
