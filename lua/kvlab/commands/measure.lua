-- kvlab measure LAYOUT...: real caches filled and read once, beside what was counted.
local cli = require 'kvlab.cli'
local counted = require 'kvlab.counted'
local exact = require 'kvlab.exact'
local format = require 'kvlab.format'
local json = require 'kvlab.json'
local measure = require 'kvlab.measure'
local progress = require 'kvlab.progress'

local command = {
  name = 'measure',
  json = true,
  usage = 'measure LAYOUT... [OPTIONS]',
  summary = 'fill real caches, run a decode step, compare with the count',
  text = [[Fills the caches of each LAYOUT at its real widths with N tokens of random rows, which go through pooling,
norms, RoPE and record encoders, and runs the cache side of one decode step: scoring, top-k, attention over what is
read. Prints what the caches and their counters say beside what kvlab kv computes, and the seconds; exit status 1 when
anything differs, or when the caches do not fit into memory. LAYOUT is as for kvlab kv; see docs/measure.md.]],
  example = 'kvlab measure v4.1-flash --context 1000',
  options = {
    counted.OPTIONS.context,
    counted.OPTIONS.records,
    counted.OPTIONS.widths,
    { 'memory', 'GiB', 'memory that may be used (15/16 of what the machine or its control group has)' },
    counted.OPTIONS.strict,
  },
}

local function number(x) return format.number(x, 2) end
local function seconds(x) return (x >= 1 and '%.2f s' or '%.4f s'):format(x) end

-- --- text ---------------------------------------------------------------------------------------------
local LABELS = { store_bytes = 'stored', kv_bytes = 'KV read', index_bytes = 'search keys read' }

local function text_of(m)
  local L = m.count.layout
  local lines = {}
  if L.name then lines[1] = L.name end
  lines[#lines + 1] = tostring(L)
  lines[#lines + 1] = ('%s layer%s, %s token%s cached'):format(number(#L), #L == 1 and '' or 's', number(m.context),
    m.context == 1 and '' or 's')
  lines[#lines + 1] = ''
  local rows = { { '', 'computed', 'measured' } }
  for _, figure in ipairs(measure.FIGURES) do
    local a, b = m.computed[figure], m.measured[figure]
    rows[#rows + 1] = { '  ' .. LABELS[figure], number(a) .. ' B', number(b) .. ' B',
      a == b and 'equal' or 'DIFFERENT' }
  end
  rows[#rows + 1] = { '  allocated, in pages', '', number(m.allocated_bytes) .. ' B', '' }
  for _, line in ipairs(format.table(rows)) do lines[#lines + 1] = line end
  for i, d in ipairs(m.differing) do
    if i > 10 then
      lines[#lines + 1] = ('  and %s more'):format(number(#m.differing - 10))
      break
    end
    lines[#lines + 1] = ('  layer %d, %s: computed %s B, measured %s B'):format(d.layer, LABELS[d.figure],
      number(d.computed), number(d.measured))
  end
  lines[#lines + 1] = ''
  local s = m.seconds
  for _, line in ipairs(format.table({ { '  filling the caches', seconds(s.fill) },
    { '  one decode step, scoring and selection', seconds(s.select) },
    { '  one decode step, attention', seconds(s.attention) } })) do lines[#lines + 1] = line end
  return table.concat(lines, '\n')
end

-- How much less the others read and need than the first: not the same.
local function comparison(list)
  local function read(m) return exact(m.measured.kv_bytes) + m.measured.index_bytes end
  local first = list[1]
  local rows = { { '', 'bytes read', 'ratio', 'seconds of the step', 'ratio' } }
  local function times(x)
    if x == 1 then return '1' end
    return x > 1 and '1/' .. format.ratio(x) or format.ratio(1 / x) .. ' times'
  end
  for i, m in ipairs(list) do
    rows[i + 1] = { m.name, number(read(m)), times((read(first) / read(m)):tonumber()),
      ('%.4f'):format(m.seconds.step), times(first.seconds.step / m.seconds.step) }
  end
  return table.concat(format.table(rows), '\n') .. '\n' .. [[
The bytes are what a step has to move; its time is also scoring, selection, unpacking of records and arithmetic.]]
end

-- --- JSON ---------------------------------------------------------------------------------------------
local function json_of(m)
  local function figures(of)
    local fields = {}
    for i, figure in ipairs(measure.FIGURES) do fields[i] = { figure, of[figure] } end
    return json.object(fields)
  end
  local s = m.seconds
  return json.object { { 'name', m.name }, { 'context', m.context }, { 'computed', figures(m.computed) },
    { 'measured', figures(m.measured) }, { 'equal', m.equal }, { 'allocated_bytes', m.allocated_bytes },
    { 'seconds', json.object { { 'fill', s.fill }, { 'select', s.select }, { 'attention', s.attention },
      { 'step', s.step } } } }
end

-- --- the command --------------------------------------------------------------------------------------
function command.run(args, options)
  if #args == 0 then cli.usage('measure: expected a layout, such as v4.1-flash') end
  local parsed = counted.parse(options)
  progress.show_library(true)
  local memory
  if options.memory then
    memory = math.floor(math.min(cli.positive(options.memory, '--memory'), 2 ^ 32) * 2 ^ 30)
    if memory < 1 then cli.usage('--memory %s: less than a byte', options.memory) end
  end
  -- What is wrong with any of them is said before time is spent on the others.
  local counts = {}
  for i, word in ipairs(args) do counts[i] = counted.layout(word, parsed) end
  for _, result in ipairs(counts) do
    local refusal = measure.refusal(result, memory)
    if refusal then cli.failed('%s', refusal) end
  end
  local models = {}
  for i, result in ipairs(counts) do models[i] = cli.as_usage(measure.model, result) end
  local list, out, equal = {}, {}, true
  for i, result in ipairs(counts) do
    local m = measure.counted(result, { records = parsed.records, memory = memory, model = models[i] })
    models[i] = nil
    list[i] = m
    equal = equal and m.equal
    if options.json then out[i] = json_of(m)
    else
      print((i > 1 and '\n' or '') .. text_of(m))
      io.stdout:flush() -- the next one may take minutes
    end
  end
  if options.json then print(json.encode(#out == 1 and out[1] or json.array(out), { indent = 2 }))
  elseif #list > 1 then print('\n' .. comparison(list)) end
  return equal and 0 or 1
end

return command
