-- kvlab layout [LAYOUT]: what each layer is, and who shares what.
local cli = require 'kvlab.cli'
local count = require 'kvlab.count'
local counted = require 'kvlab.counted'
local describe = require 'kvlab.describe'
local format = require 'kvlab.format'
local json = require 'kvlab.json'
local presets = require 'kvlab.presets'

local command = {
  name = 'layout',
  json = true,
  usage = 'layout [LAYOUT] [OPTIONS]',
  summary = 'what each layer is and who shares what; alone: the presets',
  text = [[Prints one line for each layer of a preset, a Lua file or layout text: what it is, whose cache and whose
selection it reads, its window and its records; then a picture of who shares what. Without a LAYOUT it lists
the presets. The language is in docs/layouts.md.]],
  example = 'kvlab layout v4.1-flash',
  options = {
    counted.OPTIONS.widths,
    counted.OPTIONS.records,
    { 'text', nil, 'print only the text of the layout' },
    { 'draw', nil, 'draw it: who makes and who borrows what, a row for each layer' },
    { 'layer', 'I', 'draw layer I (from 1) as boxes with shapes' },
    { 'file', 'NAME', 'draw into a file: .svg, .png or .pdf, through gnuplot' },
    counted.OPTIONS.strict,
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
  if options.text then print(tostring((counted.load(args[1])))) return end
  local result = counted.layout(args[1], counted.parse(options))
  local L = result.layout

  if options.layer or options.draw or options.file then
    local layer = options.layer and cli.whole(options.layer, '--layer', 1)
    print(cli.as_usage(L.draw, L, { layer = layer, widths = result.widths, file = options.file }))
    return
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
