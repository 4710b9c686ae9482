-- copy.lua: say a string again.
--
--   fillers | s1 s2 .. sn | gap fillers | separator s1 .. s(n-1)       targets: s1 .. sn from the separator on
--
-- Ids: 0 filler, 1 separator, then the symbols.
local settings = require 'kvlab.tasks.settings'
local task = require 'kvlab.tasks.task'

local WHERE = 'kv.tasks.copy'
local SPEC = { vocab = { 16, 3 }, length = { 32, 2 }, span = { false, 1 }, gap = { 0, 0 } }

return function(given)
  local o = settings.read(WHERE, given, SPEC)
  o.span = o.span or math.max(1, (o.length - o.gap) // 2)
  settings.at_least(WHERE, 'length', o.length, 2 * o.span + o.gap,
    ('a span of %d twice and a gap of %d need more'):format(o.span, o.gap))
  local start = o.length - 2 * o.span - o.gap

  local function row(below, tokens, targets)
    local separator = start + o.span + o.gap + 1
    tokens[separator] = 1
    for i = 1, o.span do
      local symbol = 2 + below(o.vocab - 2)
      tokens[start + i] = symbol
      targets[separator + i - 1] = symbol
      if i < o.span then tokens[separator + i] = symbol end
    end
  end

  return task.new {
    name = 'copy', vocab = o.vocab, length = o.length, answers = { 2, o.vocab - 1 }, options = o, row = row,
    about = ('%d symbols again, after a gap of %d'):format(o.span, o.gap),
  }
end
