-- presets.lua: the layouts that come with kvlab, one readable Lua file each in presets/.
local suggest = require 'kvlab.suggest'

local presets = {}

-- In the order of the story that they tell.
presets.names = { 'mha', 'v2', 'v2-lite', 'v3', 'v3.2', 'v4-flash', 'v4-pro', 'v4.1-flash' }

local folder = debug.getinfo(1, 'S').source:match('^@(.*)%.lua$')
local loaded = {}

function presets.has(name)
  for _, known in ipairs(presets.names) do
    if known == name then return true end
  end
  return false
end

function presets.path(name) return ('%s/%s.lua'):format(folder, name) end

-- presets.load(name) -> layout. Raises with the nearest name for an unknown one.
function presets.load(name)
  if not presets.has(name) then
    error(("unknown preset '%s'%s; presets: %s"):format(tostring(name), suggest.phrase(tostring(name), presets.names),
      table.concat(presets.names, ', ')), 0)
  end
  if not loaded[name] then loaded[name] = dofile(presets.path(name)) end
  return loaded[name]
end

return presets
