-- kvlab eval RUN: what a trained model is worth on whole sequences and decoded through its caches.
local cli = require 'kvlab.cli'
local config = require 'kvlab.config'
local cost = require 'kvlab.cost'
local evaluate = require 'kvlab.evaluate'
local format = require 'kvlab.format'
local json = require 'kvlab.json'
local shape = require 'kvlab.shape'
local source = require 'kvlab.source'
local trained = require 'kvlab.trained'

local command = {
  name = 'eval',
  json = true,
  usage = 'eval RUN [OPTIONS]',
  summary = 'a trained model: on whole sequences, and decoded through its caches',
  text = [[Evaluates the newest checkpoint of a run of kvlab train or kvlab sweep on the same validation batches in
three ways: whole sequences in float32, whole sequences whose rows pass through the records, and token by token
through caches that hold these records. The last two agree up to rounding; their difference to the first is what
storing costs. RUN is the folder of a run, or a folder with only one.]],
  example = 'kvlab eval runs/where',
  options = {
    { 'records', 'NAME', 'instead of those of the run: a record, own, deployed, or main=NAME,index=NAME,window=NAME;'
      .. ' may be given again', many = true },
    { 'batches', 'N', 'validation batches (eval_batches of the run)' },
    { 'size', 'N', 'rows of each (eval_size of the run)' },
    { 'set', 'KEY=VALUE', 'another setting, such as task.files when the text has moved', many = true },
  },
}

local function records_of(word)
  if word == 'own' or word == 'deployed' then return word end
  if word:find('=') then return source.records(word) end
  return config.record(word).name
end

-- The names of the records that a layout is stored in.
local function names_of(t, records)
  local names, seen = {}, {}
  local asked, deployed = shape.asked(records), shape.deployed(t.model.layout, records)
  for _, A in ipairs(t.model.layers) do
    local s = A.shape
    for role, row in pairs { main = s.owns and s.main, index = s.owns and s.index, window = s.local_kv } do
      local name = row and select(2, shape.plan(s, role, asked, deployed)).name
      if name and not seen[name] then
        seen[name] = true
        names[#names + 1] = name
      end
    end
  end
  table.sort(names)
  return table.concat(names, ', ')
end

-- The ways to evaluate: { path =, records = setting or nil, names =, metrics =, bytes_per_token = }.
local function ways(t, o, list)
  local select = t.config.indexer.select
  local full = { batches = o.batches, size = o.size, indexer = t.indexer }
  local out = { { path = 'full', metrics = evaluate.full(trained.through(t, nil), t.task, full) } }
  for _, records in ipairs(list) do
    local m = trained.through(t, records)
    local names = names_of(t, records)
    out[#out + 1] = { path = 'full', records = records, names = names, metrics = evaluate.full(m, t.task, full) }
    if select == 'learned' then
      local settings = {}
      for key, value in pairs(t.config) do settings[key] = value end
      settings.records = records
      local paid = cost.of(settings) or {}
      out[#out + 1] = { path = 'decode', records = records, names = names, bytes_per_token = paid.bytes_per_token,
        read_bytes = paid.read_bytes, metrics = evaluate.cached(m, t.task, { batches = o.batches, size = o.size,
          records = records }) }
    end
  end
  if select ~= 'learned' then
    cli.note("caches select by indexers only; this run selects '%s', so it is not decoded", select)
  end
  return out
end

local function metric_names(list)
  local names, seen = { 'val_loss', 'accuracy' }, { val_loss = true, accuracy = true }
  local rest = {}
  for _, way in ipairs(list) do
    for name, value in pairs(way.metrics) do
      if type(value) == 'number' and not seen[name] then
        seen[name] = true
        rest[#rest + 1] = name
      end
    end
  end
  table.sort(rest)
  return table.move(rest, 1, #rest, #names + 1, names)
end

local PATHS = { full = 'whole sequences', decode = 'decoded' }

local function signed(x) return (('%+.5f'):format(x):gsub('^%-(0%.0+)$', '+%1')) end

local function show(t, list, o)
  print(('%s: step %d, %s, %s; %d batches of %d rows'):format(t.run.dir, t.step, t.task.name, tostring(t.model.layout),
    o.batches, o.size))
  local names = metric_names(list)
  local rows = { { 'computed', 'rows in', table.unpack(names) } }
  table.move({ 'bytes/token', 'bytes read' }, 1, 2, #rows[1] + 1, rows[1])
  for i, way in ipairs(list) do
    local row = { PATHS[way.path], way.names or 'float32' }
    for _, name in ipairs(names) do
      local value = way.metrics[name]
      row[#row + 1] = value and ('%.5f'):format(value) or '-'
    end
    row[#row + 1] = way.bytes_per_token and format.number(way.bytes_per_token, 2) or '-'
    row[#row + 1] = way.read_bytes and format.number(way.read_bytes) or '-'
    rows[i + 1] = row
  end
  print(table.concat(format.table(rows, { 'l', 'l' }), '\n'))
  local base = list[1].metrics
  for _, way in ipairs(list) do
    if way.path == 'decode' then
      print(('storing rows in %s costs: val_loss %s, accuracy %s'):format(way.names,
        signed(way.metrics.val_loss - base.val_loss), signed(way.metrics.accuracy - base.accuracy)))
    end
  end
end

local function as_json(t, list, o)
  local items, base = {}, list[1].metrics
  for i, way in ipairs(list) do
    local costs = way.path == 'decode' and { val_loss = way.metrics.val_loss - base.val_loss,
      accuracy = way.metrics.accuracy - base.accuracy } or nil
    items[i] = json.object { { 'path', way.path }, { 'records', way.records and config.plain({ way.records })[1] },
      { 'stored_in', way.names }, { 'metrics', way.metrics }, { 'bytes_per_token', way.bytes_per_token },
      { 'read_bytes', way.read_bytes }, { 'storing_costs', costs } }
  end
  print(json.encode(json.object { { 'id', t.run.id }, { 'dir', t.run.dir }, { 'step', t.step },
    { 'layout', tostring(t.model.layout) }, { 'batches', o.batches }, { 'size', o.size },
    { 'paths', json.array(items) } }, { indent = 2 }))
end

function command.run(args, options)
  if #args ~= 1 then cli.usage('eval: expected one folder of a run, got %d', #args) end
  local list = {}
  for i, word in ipairs(options.records or {}) do list[i] = cli.as_usage(records_of, word) end
  local batches = options.batches and cli.whole(options.batches, '--batches', 1)
  local size = options.size and cli.whole(options.size, '--size', 1)
  local t = trained.open(args[1], options.set)
  for _, note in ipairs(t.run.notes) do cli.note('%s', note) end
  if #list == 0 then list[1] = config.records(t.config.records) end
  local o = { batches = batches or t.config.eval_batches, size = size or t.config.eval_size }
  local found = ways(t, o, list)
  if options.json then as_json(t, found, o) else show(t, found, o) end
  return 0
end

return command
