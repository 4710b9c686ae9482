-- variables.lua: chains of assignments (after RULER's variable tracking, arXiv 2404.06654).
--
--   b = a .. statements of 3 tokens: name = source | fillers | ? name  ? name  ...     targets: the value, at the name
--
-- The first statement of a chain gives a value to a variable, each further one copies the variable before it; a
-- variable that is h statements from its value takes h hops to look up. Slices hop1, hop2, ... report them apart.
-- Chains lie interleaved; with order = 'chained' a source is assigned before it is used, with 'shuffled' perhaps
-- after. Ids: 0 filler, 1 `=`, 2 `?`, then the names, then the values. Chains of a row have different values.
local draw = require 'kvlab.tasks.draw'
local settings = require 'kvlab.tasks.settings'
local task = require 'kvlab.tasks.task'

local WHERE = 'kv.tasks.variables'
local SPEC = { vocab = { 64, 5 }, length = { 32, 1 }, names = { false, 1 }, chains = { 2, 1 }, hops = { 2, 1 },
  queries = { false, 1 }, order = { 'chained', { 'chained', 'shuffled' } } }

local function check(given)
  local o = settings.read(WHERE, given, SPEC)
  o.names = o.names or (o.vocab - 3) // 2
  settings.at_most(WHERE, 'names', o.names, o.vocab - 4,
    ('vocab = %d also needs a filler, two signs and a value'):format(o.vocab))
  local variables = o.chains * o.hops
  o.queries = o.queries or variables
  settings.at_most(WHERE, 'queries', o.queries, variables, 'each variable is asked once')
  settings.at_least(WHERE, 'names', o.names, variables,
    ('%d chains of %d variables need more'):format(o.chains, o.hops))
  local values = o.vocab - 3 - o.names
  if values < o.chains then
    error(('%s: vocab = %d with %d names leaves %d values, but %d chains need as many')
      :format(WHERE, o.vocab, o.names, values, o.chains), 0)
  end
  settings.at_least(WHERE, 'length', o.length, 3 * variables + 2 * o.queries,
    ('%d statements of 3 tokens and %d queries of 2 need more'):format(variables, o.queries))
  return o, variables, values
end

return function(given)
  local o, variables, values = check(given)
  local slices = {}
  for h = 1, o.hops do slices[h] = 'hop' .. h end

  local function row(below, tokens, targets, note)
    local names = draw.distinct(below, o.names, variables) -- chain c's depth h: number (c - 1) * hops + h
    local bound = draw.distinct(below, values, o.chains)
    for c, value in ipairs(bound) do bound[c] = 3 + o.names + value end
    -- Each chain is in the list once for every statement: its next one is meant, so its own order stays.
    local statements, next_depth = {}, {}
    for i = 1, variables do statements[i] = (i - 1) // o.hops + 1 end
    draw.shuffle(below, statements)
    for i, c in ipairs(statements) do
      next_depth[c] = (next_depth[c] or 0) + 1
      statements[i] = (c - 1) * o.hops + next_depth[c]
    end
    if o.order == 'shuffled' then draw.shuffle(below, statements) end
    for i, which in ipairs(statements) do
      local first = (which - 1) % o.hops == 0
      tokens[3 * i - 2], tokens[3 * i - 1] = 3 + names[which], 1
      tokens[3 * i] = first and bound[(which - 1) // o.hops + 1] or 3 + names[which - 1]
    end
    local at = o.length - 2 * o.queries
    for _, h in ipairs(slices) do note[h] = {} end
    for _, which in ipairs(draw.distinct(below, variables, o.queries)) do
      tokens[at + 1], tokens[at + 2] = 2, 3 + names[which + 1]
      targets[at + 2] = bound[which // o.hops + 1]
      local marks = note[slices[which % o.hops + 1]]
      marks[#marks + 1] = at + 2
      at = at + 2
    end
    note.candidates = bound
  end

  return task.new {
    name = 'variables', vocab = o.vocab, length = o.length, answers = { 3 + o.names, o.vocab - 1 },
    candidate_chance = 1 / o.chains, options = o, row = row, fields = { 'candidates' }, slices = slices,
    about = ('%d chains of %d assignments, %s; %d variables asked'):format(o.chains, o.hops, o.order, o.queries),
  }
end
