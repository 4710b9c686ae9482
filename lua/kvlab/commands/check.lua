-- kvlab check DIR: golden vectors in every way of running.
local cli = require 'kvlab.cli'
local core = require 'kvlab.core'
local format = require 'kvlab.format'
local json = require 'kvlab.json'
local vectors = require 'kvlab.vectors'

local command = {
  name = 'check',
  json = true,
  usage = 'check DIR [OPTIONS]',
  summary = 'golden vectors: full sequence, token by token, chunked',
  text = [[Runs every case (NAME.json with NAME.safetensors) of a folder: the full sequence at once, token by token, and
prompts in chunks that go on token by token; MLA in its three orders; caches in float32 records, or, where the
case has quantisers, in records that do the same and in records as they are deployed.]],
  example = 'kvlab check tests/golden --only csa2',
  options = { { 'only', 'NAME', 'cases whose name contains NAME' } },
}

function command.run(args, options)
  if #args ~= 1 then cli.usage('check: expected a folder of golden cases, got %d arguments', #args) end
  local dir = args[1]
  local entries = core.base.list_dir(dir)
  if not entries then cli.failed('check: cannot read the folder %s', dir) end
  table.sort(entries)
  local results, passed, failed = {}, 0, 0
  local found = 0
  for _, entry in ipairs(entries) do
    local name = entry:match('^(.*)%.json$')
    if name and (not options.only or name:find(options.only, 1, true)) then
      found = found + 1
      local ok, rows = pcall(vectors.check, dir, name)
      if not ok then
        if tostring(rows):find('interrupted', 1, true) then error(rows, 0) end
        rows = { { name = name, way = 'read', ok = false, problem = tostring(rows) } }
      end
      for _, row in ipairs(rows) do
        results[#results + 1] = row
        if row.ok then passed = passed + 1 else failed = failed + 1 end
      end
    end
  end
  if found == 0 then cli.failed('check: no case (NAME.json with NAME.safetensors) in %s', dir) end
  if options.json then
    local list = {}
    for i, row in ipairs(results) do
      list[i] = json.object { { 'name', row.name }, { 'way', row.way }, { 'error', row.error or json.null },
        { 'selected_equal', row.selected_equal == nil and json.null or row.selected_equal }, { 'ok', row.ok },
        { 'problem', row.problem or json.null } }
    end
    print(json.encode(json.object { { 'cases', json.array(list) }, { 'passed', passed }, { 'failed', failed } },
      { indent = 2 }))
  else
    local rows = { { 'case', 'way', 'error', 'bound', 'selections', '' } }
    for _, row in ipairs(results) do
      rows[#rows + 1] = { row.name, row.way, row.error and ('%.2e'):format(row.error) or '-',
        row.bound and ('%.0e'):format(row.bound) or '-', row.selected_equal == nil and '-'
          or row.selected_equal and 'equal' or 'DIFFER', row.ok and 'ok' or 'FAILED' }
    end
    print(table.concat(format.table(rows, { 'l', 'l', 'r', 'r', 'l', 'l' }), '\n'))
    for _, row in ipairs(results) do
      if row.problem then print(('%s: %s'):format(row.name, row.problem)) end
    end
    print(('%d passed, %d failed'):format(passed, failed))
  end
  return failed == 0 and 0 or 1
end

return command
