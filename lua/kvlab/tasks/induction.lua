-- induction.lua: k-hop induction (Sanford, Hsu, Telgarsky: Transformers, parallel computation, and logarithmic depth,
-- arXiv 2402.09268).
--
-- Tokens are drawn evenly. One hop from position i goes to the position after the last earlier occurrence of token i
-- (find); the target of position i is the token where `hops` hops end. Where an occurrence is missing on the way,
-- there is no target. hops = 1 is the induction head: what followed this token the last time? All ids are symbols.
local settings = require 'kvlab.tasks.settings'
local task = require 'kvlab.tasks.task'

local WHERE = 'kv.tasks.induction'
local SPEC = { vocab = { 16, 2 }, length = { 64, 2 }, hops = { 1, 1 } }

return function(given)
  local o = settings.read(WHERE, given, SPEC)
  settings.at_least(WHERE, 'length', o.length, o.hops + 1, ('%d hops need a place to start from'):format(o.hops))

  local function row(below, tokens, targets)
    local last, find = {}, {} -- last[token]: where it was; find[i]: where one hop from i ends
    for i = 1, o.length do
      local token = below(o.vocab)
      tokens[i] = token
      find[i] = last[token] and last[token] + 1
      last[token] = i
      local at = i
      for _ = 1, o.hops do at = at and find[at] end
      if at then targets[i] = tokens[at] end
    end
  end

  return task.new {
    name = 'induction', vocab = o.vocab, length = o.length, answers = { 0, o.vocab - 1 }, options = o, row = row,
    about = ('what stands %d hops away, a hop leading behind the last earlier occurrence'):format(o.hops),
  }
end
