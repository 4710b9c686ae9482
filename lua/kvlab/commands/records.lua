-- kvlab records [NAME...]: how entries lie in bytes.
local cli = require 'kvlab.cli'
local format = require 'kvlab.format'
local json = require 'kvlab.json'
local record = require 'kvlab.record'

local command = {
  name = 'records',
  json = true,
  usage = 'records [NAME...] [OPTIONS]',
  summary = 'how cache entries lie in bytes',
  text = [[Lists the named records with their bytes at their natural width, or explains the named ones: every field,
its number format and scales, and the page. Own records are written in Lua: docs/records.md.]],
  example = 'kvlab records v4-main',
  options = {},
}

local ANY_WIDTH = { channels = 128 } -- what a record of any width is shown at

local function one(name)
  local rec = cli.as_usage(record.named, name)
  local dims = rec.natural or ANY_WIDTH
  return rec, rec:plan(dims), dims
end

function command.run(args, options)
  local names = #args > 0 and args or record.names()
  local rows, items = { { 'record', 'B', 'values', 'bits a value', 'page', 'about' } }, {}
  for _, name in ipairs(names) do
    local rec, plan, dims = one(name)
    rows[#rows + 1] = { name, format.number(plan.bytes), format.number(plan.channels),
      format.number(plan.bytes * 8 / plan.channels), ('%s in %s B'):format(format.number(plan.page_entries),
      format.number(plan.page_bytes)), rec.about or '' }
    items[#items + 1] = json.object { { 'record', name }, { 'bytes', plan.bytes }, { 'channels', plan.channels },
      { 'data_bytes', plan.data_bytes }, { 'scale_bytes', plan.scale_bytes }, { 'page_entries', plan.page_entries },
      { 'page_bytes', plan.page_bytes }, { 'formula', rec:formula(dims) }, { 'about', rec.about or json.null } }
  end
  if options.json then
    print(json.encode(#args == 1 and items[1] or json.array(items), { indent = 2 }))
    return
  end
  if #args == 0 then
    print(table.concat(format.table(rows, { 'l', 'r', 'r', 'r', 'r', 'l' }), '\n'))
    return
  end
  for i, name in ipairs(names) do
    local rec, plan, dims = one(name)
    if i > 1 then print() end
    print(('%s: %s'):format(name, rec.about or ''))
    print(('  %s'):format(rec:formula(dims)))
    print(('  entry %s B = data %s B + split scales %s B; page of %s entries %s B, %s B of it padding'):format(
      format.number(plan.bytes), format.number(plan.data_bytes), format.number(plan.scale_bytes),
      format.number(plan.page_entries), format.number(plan.page_bytes), format.number(plan.page_padding)))
  end
end

return command
