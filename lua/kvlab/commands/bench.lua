-- kvlab bench [NAME]: kernels against what the machine can do.
local bench = require 'kvlab.bench'
local cli = require 'kvlab.cli'
local core = require 'kvlab.core'
local format = require 'kvlab.format'
local json = require 'kvlab.json'
local suggest = require 'kvlab.suggest'

local command = {
  name = 'bench',
  json = true,
  usage = 'bench [NAME] [OPTIONS]',
  summary = 'speed of kernels as ratios of what the machine can do',
  text = [[Times kernels and, in turns with them, a limit of this machine for the same work: a direct call of BLAS,
reading or copying memory, or doing one by one what can be done together. Prints value, limit, their ratio and the
target of the ratio, for one thread and for all. NAME is one bench or a group; without it all of them run, which takes
four minutes.
Best of several repetitions. A spread (median over best) far above 1, or cpu (processor time that the threads got)
below 1, says that other processes disturbed the run. docs/bench.md says what each bench computes.]],
  example = 'kvlab bench --list',
  options = { { 'threads', 'N,...', 'numbers of threads (1 and all processors)' },
    { 'seconds', 'S', 'time for each bench (0.6)' }, { 'list', nil, 'only say what the benches are' },
    { 'strict', nil, 'exit status 1 when a ratio is under its target' } },
}

local function thread_counts(text)
  local all = core.base.threads()
  local counts = {}
  if not text then return all > 1 and { 1, all } or { 1 } end
  for word in (text .. ','):gmatch('(.-),') do
    local n = word == 'all' and all or cli.whole(word, '--threads', 1)
    if n > 256 then cli.usage('--threads %s: expected at most 256', word) end
    counts[#counts + 1] = n
  end
  return counts
end

local HEAD = { 'bench', 'threads', 'value', 'limit', 'unit', 'ratio', 'target', 'spread', 'cpu', '' }
local ALIGN = { 'l', 'r', 'r', 'r', 'l', 'r', 'r', 'r', 'r', 'l' }

local function row(r)
  local function digits(x, n) return ('%%.%df'):format(n):format(x) end
  return { r.name, tostring(r.threads), digits(r.value, 1), digits(r.limit, 1), r.unit, digits(r.ratio, 2),
    digits(r.target, 2), digits(r.spread, 2), digits(r.cpu, 2), r.ratio < r.target and 'under target' or 'ok' }
end

function command.run(args, options)
  if #args > 1 then cli.usage('bench: expected one name, got %d', #args) end
  local found = bench.named(args[1])
  if not found then
    local names = bench.names()
    cli.usage("bench: there is no bench '%s'%s; kvlab bench --list names them", args[1], suggest.phrase(args[1], names))
  end
  if options.list then
    local rows = {}
    for _, b in ipairs(found) do rows[#rows + 1] = { b.name, format.number(b.target), b.about } end
    print(table.concat(format.table(rows, { 'l', 'r', 'l' }), '\n'))
    return 0
  end
  local counts = thread_counts(options.threads)
  local seconds = options.seconds and cli.positive(options.seconds, '--seconds') or 0.6
  local results, under = {}, 0
  for _, b in ipairs(found) do
    for _, threads in ipairs(counts) do
      local r = bench.run(b, { threads = threads, seconds = seconds })
      results[#results + 1] = r
      if r.ratio < r.target then under = under + 1 end
    end
  end
  if options.json then
    local out = {}
    for i, r in ipairs(results) do
      out[i] = json.object { { 'name', r.name }, { 'threads', r.threads }, { 'value', r.value }, { 'limit', r.limit },
        { 'ratio', r.ratio }, { 'target', r.target }, { 'unit', r.unit }, { 'seconds', r.seconds },
        { 'parameters', r.parameters }, { 'spread', r.spread }, { 'cpu', r.cpu } }
    end
    print(json.encode(json.object { { 'benches', json.array(out) } }, { indent = 2 }))
  else
    local rows = { HEAD }
    for _, r in ipairs(results) do rows[#rows + 1] = row(r) end
    print(table.concat(format.table(rows, ALIGN), '\n'))
    print(('%d of %d under target; BLAS kernels: %s'):format(under, #results, core.system.blas_core()))
  end
  return options.strict and under > 0 and 1 or 0
end

return command
