-- selective_copy.lua: say the symbols again that lie scattered among noise (as in MAD, Poli et al.: Mechanistic
-- design and scaling of hybrid architectures, arXiv 2403.17844).
--
--   . s1 . . s2 . .. sn . . | separator s1 .. s(n-1)                   targets: s1 .. sn from the separator on
--
-- Ids: the noise (one id, or several), the separator, then the symbols.
local draw = require 'kvlab.tasks.draw'
local settings = require 'kvlab.tasks.settings'
local task = require 'kvlab.tasks.task'

local WHERE = 'kv.tasks.selective_copy'
local SPEC = { vocab = { 16, 3 }, length = { 64, 2 }, items = { 8, 1 }, noise = { 1, 1 } }

return function(given)
  local o = settings.read(WHERE, given, SPEC)
  settings.at_most(WHERE, 'noise', o.noise, o.vocab - 2,
    ('vocab = %d also needs a separator and a symbol'):format(o.vocab))
  settings.at_least(WHERE, 'length', o.length, 2 * o.items, ('%d items twice need more'):format(o.items))
  local hay = o.length - o.items -- positions among which the items lie

  local function row(below, tokens, targets)
    if o.noise > 1 then
      for i = 1, hay do tokens[i] = below(o.noise) end
    end
    local places = draw.distinct(below, hay, o.items)
    table.sort(places)
    tokens[hay + 1] = o.noise
    for i, place in ipairs(places) do
      local symbol = o.noise + 1 + below(o.vocab - o.noise - 1)
      tokens[place + 1] = symbol
      targets[hay + i] = symbol
      if i < o.items then tokens[hay + i + 1] = symbol end
    end
  end

  return task.new {
    name = 'selective_copy', vocab = o.vocab, length = o.length, answers = { o.noise + 1, o.vocab - 1 },
    options = o, row = row,
    about = ('%d symbols in order, out of %d positions with %d kinds of noise'):format(o.items, hay, o.noise),
  }
end
