-- plot/gnuplot.lua: pictures as files, drawn by gnuplot.
local screen = require 'kvlab.plot.screen'

local gnuplot = {}

-- check_file(path, where): nil, or a name with an ending that we can write.
function gnuplot.check_file(path, where)
  if path == nil then return end
  if type(path) ~= 'string' or not path:lower():find('%.svg$') and not path:lower():find('%.png$')
    and not path:lower():find('%.pdf$') then
    screen.problem(where, 'file = %s: expected a name that ends in .svg, .png or .pdf', tostring(path))
  end
end

return gnuplot
