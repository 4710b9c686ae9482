#!/usr/bin/env lua5.4
-- gendoc.lua: writes docs/reference.md from lua/kvlab/meta/*.lua, the texts that kv.help prints.
--   lua5.4 scripts/gendoc.lua [--check]     --check: only says whether the file is up to date
local root = arg[0]:match('^(.*)/scripts/[^/]*$') or arg[0]:find('^scripts/') and '.' or '..'
package.path = ('%s/lua/?.lua;%s/lua/?/init.lua;%s'):format(root, root, package.path)
package.cpath = root .. '/build/lib/?.so;' .. package.cpath
if arg[1] and arg[1] ~= '--check' or arg[2] then
  io.stderr:write(("gendoc: unknown option '%s'; usage: gendoc.lua [--check]\n"):format(arg[2] or arg[1]))
  os.exit(2)
end
local declarations = require 'kvlab.declarations'

local out = {}
local function put(text, ...)
  out[#out + 1] = select('#', ...) > 0 and text:format(...) or text
end

-- Doc lines as Markdown: indented lines are a table in plain text, errors and sources stand by themselves.
local function put_doc(lines)
  local indented = false
  for _, line in ipairs(lines) do
    local now = line:find('^%s%s') ~= nil
    if now and not indented then put('\n```text') end
    if indented and not now then put('```\n') end
    if not now and line:find('^%u%l+: ') then put('') end
    put((line:gsub('^  ', '')))
    indented = now
  end
  put(indented and '```\n' or '')
end

local function put_entry(entry)
  put('### `%s`\n', declarations.signature(entry))
  put_doc(entry.doc)
  for _, param in ipairs(entry.params) do
    local optional = param.optional and ', optional' or ''
    put(('- `%s` (`%s`%s) %s'):format(param.name, param.type, optional, param.text):gsub('%s+$', ''))
  end
  for _, result in ipairs(entry.returns) do
    put(('- returns `%s` %s'):format(result.type, result.text):gsub('%s+$', ''))
  end
  if #entry.params + #entry.returns > 0 then put('') end
  if #entry.examples > 0 then
    put('```lua')
    for _, example in ipairs(entry.examples) do
      put('%s%s', example.code, example.expected and '  --> ' .. example.expected or '')
    end
    put('```\n')
  end
end

put [[
# Reference

Every public function and value of `require 'kvlab'`. The prompt shows the same text: `help(kv.json.encode)`.
This file is written by `scripts/gendoc.lua` from `lua/kvlab/meta/`; edit it there.
]]
for _, place in ipairs(declarations.place_names()) do
  put('## %s\n', place)
  local doc = declarations.index().places[place]
  if #doc > 0 then put_doc(doc) end
  for _, entry in ipairs(declarations.index().entries) do
    if entry.place == place then put_entry(entry) end
  end
end
local text = table.concat(out, '\n'):gsub('\n\n\n+', '\n\n'):gsub('\n+$', '') .. '\n'

local path = root .. '/docs/reference.md'
if arg[1] then
  local file <close> = io.open(path, 'rb')
  if file and file:read('a') == text then os.exit(0) end
  io.stderr:write('docs/reference.md is not up to date: run lua5.4 scripts/gendoc.lua\n')
  os.exit(1)
end
local file <close> = assert(io.open(path, 'wb'))
assert(file:write(text))
