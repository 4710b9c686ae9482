-- source.lua: where a command's layouts, widths and record sets come from: names, files, or text.
local json = require 'kvlab.json'
local layer = require 'kvlab.layer'
local layout = require 'kvlab.layout'
local opts = require 'kvlab.options'
local parse = require 'kvlab.parse'
local presets = require 'kvlab.presets'
local record = require 'kvlab.record'
local sandbox = require 'kvlab.sandbox'
local suggest = require 'kvlab.suggest'
local widths = require 'kvlab.widths'

local source = {}

-- What a file from a stranger may use: values and pure functions, nothing that reaches the machine.
local function facade()
  local kv = require 'kvlab'
  local allowed = { layout = kv.layout, group = kv.group, layer = kv.layer, record = kv.record, preset = kv.preset }
  for name, value in pairs(layer.kinds) do allowed[name] = value end
  return allowed
end

local function exists(path)
  local file = io.open(path)
  if file then file:close() end
  return file ~= nil
end

local function looks_like_path(word) return word:find('%.lua$') or word:find('%.json$') or word:find('^[%w_.~-]*/') end

-- source.layout(word) -> layout, 'preset' | 'file' | 'text'. A preset name, a Lua file, or layout text, in
-- this order.
function source.layout(word)
  if presets.has(word) then return presets.load(word), 'preset' end
  local kind = layer.KINDS[word:lower()] -- `swa` is a layer, also beside a folder of that name
  if not kind and exists(word)
    or looks_like_path(word) and not word:find('[%[%]|*%s]') and not layer.KINDS[word:match('^%a*')] then
    local result = sandbox.run(word, facade())
    if not layout.is(result) then
      error(("layout file '%s': it returns %s, not a layout; end it with: return kv.layout { ... }")
        :format(word, result == nil and 'nothing' or type(result)), 0)
    end
    return result, 'file'
  end
  -- A single word that is no kind of layer is more likely a misspelt preset than a text.
  if word:find('^[%w.-]+$') and not layer.KINDS[word:lower()] and not layer.KINDS[word:lower():match('^%a+')] then
    local names = table.move(presets.names, 1, #presets.names, 1, {})
    table.move(layer.kind_names, 1, #layer.kind_names, #names + 1, names)
    error(("'%s' is no preset, file or layer kind%s; presets: %s"):format(word, suggest.phrase(word, names),
      table.concat(presets.names, ', ')), 0)
  end
  return parse.layout(word), 'text'
end

-- source.widths(word) -> changes, whole: NAME=VALUE,..., or the widths of a whole model: a preset, a config.json, or
-- a Lua file that returns a table or a layout.
function source.widths(word)
  if word:find('=') then return widths.of_pairs(word) end
  if presets.has(word) then return presets.load(word).widths, true end
  if word:find('%.lua$') then
    local result = sandbox.run(word, facade())
    if layout.is(result) then return result.widths or {}, true end
    if type(result) ~= 'table' then error(("widths file '%s': it returns no table"):format(word), 0) end
    return result, true
  end
  local file, problem = io.open(word)
  if not file then
    error(("widths '%s': expected NAME=VALUE,..., a preset (%s) or a file (%s)"):format(word,
      table.concat(presets.names, ', '), problem), 0)
  end
  local text = file:read('a')
  file:close()
  if not text then error(("widths file '%s' cannot be read"):format(word), 0) end
  local ok, config = pcall(json.decode, text)
  if not ok then error(("widths file '%s': %s"):format(word, config), 0) end
  return widths.of_config(config), true
end

-- source.records(word) -> 'deployed', 'own', 'bf16' or a table by role.
function source.records(word)
  if word == 'deployed' or word == 'own' or word == 'bf16' then return word end
  local set = {}
  for pair in (word .. ','):gmatch('([^,]*),') do
    local role, name = pair:match('^%s*(%a+)%s*=%s*(%S+)%s*$')
    if not role then
      error(("records '%s': expected deployed, own, bf16 or main=NAME,index=NAME,window=NAME%s"):format(word,
        suggest.phrase(word, { 'deployed', 'own', 'bf16' })), 0)
    end
    opts.check({ [role] = name }, { 'main', 'index', 'window' }, 'records', 'role')
    record.named(name)
    set[role] = name
  end
  return set
end

return source
