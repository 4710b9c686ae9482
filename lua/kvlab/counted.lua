-- counted.lua: what the commands kv, layout and measure have in common: a LAYOUT argument with the options --widths,
-- --records, --context, --access and --strict becomes a count, with notes about what was assumed.
local cli = require 'kvlab.cli'
local count = require 'kvlab.count'
local source = require 'kvlab.source'

local counted = {}

-- The rows of a command's option table.
counted.OPTIONS = {
  context = { 'context', 'N', 'tokens in the cache, the current one included (131072)' },
  records = { 'records', 'SET', 'deployed, bf16, or main=NAME,index=NAME,window=NAME (kvlab records)' },
  widths = { 'widths', 'FILE|k=v,...', 'other widths: a preset, a config.json, a Lua file, or NAME=VALUE,...' },
  access = { 'access', 'gather|mask', 'what is read: only what is selected, or everything and then masked (gather)' },
  strict = { 'strict', nil, 'a ratio above its window is an error' },
}

-- counted.parse(options) -> the same, checked. Raises bad usage.
function counted.parse(options)
  local parsed = { context = 131072, access = options.access, strict = options.strict }
  if options.context then parsed.context = cli.whole(options.context, '--context', 1) end
  if options.access and options.access ~= 'gather' and options.access ~= 'mask' then
    cli.usage('--access %s: expected gather or mask', options.access)
  end
  if options.records then parsed.records = cli.as_usage(source.records, options.records) end
  if options.widths then parsed.widths, parsed.whole = cli.as_usage(source.widths, options.widths) end
  return parsed
end

-- counted.load(word) -> layout, where from. A file that fails is a failed job, anything else bad usage.
function counted.load(word)
  if word:find('%.lua$') then return source.layout(word) end
  return cli.as_usage(source.layout, word)
end

-- counted.layout(word, parsed) -> the count. A layout without widths takes those of --widths as they are when they
-- are a whole model's; otherwise it borrows v4.1-flash's and changes them.
function counted.layout(word, parsed)
  local L, from = counted.load(word)
  local changes = parsed.widths
  if parsed.whole and not L.widths then L, changes = L:labelled { widths = changes }, nil end
  local result = cli.as_usage(count.layout, L, { context = parsed.context, access = parsed.access,
    records = parsed.records, widths = changes })
  if result.borrowed_widths then
    cli.note('%s has no widths of its own: those of v4.1-flash are used%s', from == 'text' and 'layout text'
      or 'the layout', changes and ', changed by --widths' or '; --widths gives others')
  end
  for _, warning in ipairs(L:warnings(result.widths)) do
    if parsed.strict then cli.failed('%s', warning) end
    cli.note('%s', warning)
  end
  return result
end

return counted
