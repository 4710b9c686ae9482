-- extend.lua: trainings with settings of their own, for sweep files.
local config = require 'kvlab.config'
local recipe = require 'kvlab.recipe'

local extend = {}

-- extend.with(own, complete) -> defaults, resolve: for an experiment of which some settings are its own. `own` has
-- their defaults; complete(c, own) fills the settings of the training in from them. Both are in the configuration of a
-- run.
function extend.with(own, complete)
  local defaults = {}
  for key, value in pairs(recipe.defaults) do defaults[key] = value ~= config.required and value end
  for key, value in pairs(own) do
    if recipe.defaults[key] ~= nil then error(("extend: '%s' is a setting of every training"):format(key), 0) end
    defaults[key] = value
  end
  return defaults, function(settings)
    local c, mine = {}, {}
    for key, value in pairs(settings) do
      if own[key] == nil then c[key] = value else mine[key] = value end
    end
    complete(c, mine)
    for key in pairs(recipe.defaults) do
      if c[key] == false and recipe.defaults[key] == config.required then c[key] = nil end
    end
    c = recipe.resolve(c)
    for key, value in pairs(mine) do c[key] = value end
    return c
  end
end

return extend
