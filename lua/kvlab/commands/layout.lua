-- kvlab layout [LAYOUT]: what each layer is, and who shares what.
local cli = require 'kvlab.cli'
local count = require 'kvlab.count'
local describe = require 'kvlab.describe'
local format = require 'kvlab.format'
local json = require 'kvlab.json'
local presets = require 'kvlab.presets'
local source = require 'kvlab.source'

local command = {
  name = 'layout',
  json = true,
  usage = 'layout [LAYOUT] [OPTIONS]',
  summary = 'what each layer is and who shares what; alone: the presets',
  text = [[Prints one line for each layer of a preset, a Lua file or layout text: what it is, whose cache and whose
selection it reads, its window and its records; then a picture of who shares what. Without a LAYOUT it lists
the presets. The language is in docs/layouts.md.]],
  options = {
    { 'widths', 'FILE|k=v,...', 'other widths, as for kvlab kv' },
    { 'records', 'SET', 'other records, as for kvlab kv' },
    { 'text', nil, 'print only the text of the layout' },
    { 'strict', nil, 'a ratio above its window is an error' },
  },
}

local function list_presets(options)
  local rows, items = { { 'preset', 'layers', 'B/token', 'layout' } }, {}
  for _, name in ipairs(presets.names) do
    local L = presets.load(name)
    local slope = count.layout(L).store.bytes_per_token
    rows[#rows + 1] = { name, tostring(#L), format.number(slope), tostring(L) }
    items[#items + 1] = json.object { { 'preset', name }, { 'name', L.name }, { 'layers', #L },
      { 'bytes_per_token', slope }, { 'layout', tostring(L) }, { 'file', presets.path(name) } }
  end
  if options.json then print(json.encode(json.array(items), { indent = 2 })) return end
  print(table.concat(format.table(rows, { 'l', 'r', 'r', 'l' }), '\n'))
end

function command.run(args, options)
  if #args > 1 then
    cli.usage("layout: expected one layout, got %d; quote a layout text: 'swa*2 [full/2 reuse*5]*3'", #args)
  end
  if #args == 0 then return list_presets(options) end
  local word = args[1]
  local L, from
  if word:find('%.lua$') then L, from = source.layout(word) else L, from = cli.as_usage(source.layout, word) end
  if options.text then print(tostring(L)) return end
  local counted = {}
  if options.widths then counted.widths = cli.as_usage(source.widths, options.widths) end
  if options.records then counted.records = cli.as_usage(source.records, options.records) end
  local result = cli.as_usage(count.layout, L, counted)
  if result.borrowed_widths then
    cli.note('%s has no widths of its own: those of v4.1-flash are used', from == 'text' and 'layout text' or 'the layout')
  end
  for _, warning in ipairs(L:warnings(result.widths)) do
    if options.strict then cli.failed('%s', warning) end
    cli.note('%s', warning)
  end

  if options.json then
    local list = {}
    for i = 1, #L do list[i] = describe.layer_json(result, i) end
    print(json.encode(json.object { { 'name', result.name }, { 'layout', tostring(L) },
      { 'encoder_layers', L.cut or json.null }, { 'layers', json.array(list) } }, { indent = 2 }))
    return
  end
  if L.name then print(L.name) end
  print(tostring(L))
  print()
  print(table.concat(describe.layers(result), '\n'))
  print()
  print(table.concat(describe.sharing(L), '\n'))
end

return command
