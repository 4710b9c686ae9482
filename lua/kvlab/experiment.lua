-- experiment.lua: what a sweep file returns, checked, and its points.
--
--   name      a word; part of every id
--   point     function(run) -> metrics: does one run; or
--   worker    the name of a module that has point, and may have defaults, resolve, estimate and cost
--   version   1: raised by the author when `point` computes something else; part of every id
--   defaults  every setting there is, with its default (optional; then misspelt settings are found)
--   fixed     settings that all points have
--   vary      a grid { key = { values } }, a list of points and iterators, or an iterator that yields points
--   seeds     a number or a list
--   measure, better, cost    the metrics for a report, 'less' or 'more', and what is paid for them
--   within    settings that rivals of the Pareto front have to share
--   by        settings that name a point, where others follow from them; missing: all that vary
--   timeout   seconds of one run
--   memory    bytes that tensors and caches of one run may take, or a text such as '2GB'
--   estimate  function(config) -> seconds
--   parameters  function(config) -> how many the model has
local config = require 'kvlab.config'
local core = require 'kvlab.core'
local layout = require 'kvlab.layout'
local opts = require 'kvlab.options'
local record = require 'kvlab.record'

local experiment = {}

local KEYS = { 'name', 'point', 'worker', 'version', 'defaults', 'fixed', 'vary', 'seeds', 'measure', 'better', 'cost',
  'within', 'by', 'timeout', 'memory', 'estimate', 'parameters', 'resolve' }
local FROM_WORKER = { 'point', 'defaults', 'resolve', 'estimate', 'parameters' }
local MOST <const> = 100000 -- points: an iterator that never ends is a mistake

local function fail(E, text, ...) error(('experiment %s: %s'):format(E.name or '?', text:format(...)), 0) end

-- --- where points come from -------------------------------------------------------------------------------

local function sorted_keys(t)
  local keys = {}
  for key in pairs(t) do keys[#keys + 1] = key end
  table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
  return keys
end

-- grid { key = { values }, ... } -> an iterator over all combinations; the last key in the alphabet changes fastest.
function experiment.grid(lists)
  local keys = sorted_keys(lists)
  for _, key in ipairs(keys) do
    local list = lists[key]
    if type(key) ~= 'string' then error(('grid: the key %s is no name of a setting'):format(tostring(key)), 0) end
    if type(list) ~= 'table' or layout.is(list) or record.is(list) or #list == 0 then
      error(('grid: %s is %s, expected a list of values'):format(key, tostring(list)), 0)
    end
  end
  return coroutine.wrap(function()
    local point = {}
    local function fill(i)
      local key = keys[i]
      if not key then
        local copy = {}
        for name, value in pairs(point) do copy[name] = value end
        coroutine.yield(copy)
        return
      end
      for _, value in ipairs(lists[key]) do
        point[key] = value
        fill(i + 1)
      end
    end
    fill(1)
  end)
end

-- SplitMix64 (Steele, Lea, Flood 2014): small, and the same on every machine.
local function generator(seed)
  local state = seed
  return function()
    state = state + 0x9E3779B97F4A7C15
    local z = state
    z = (z ~ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ~ (z >> 27)) * 0x94D049BB133111EB
    return ((z ~ (z >> 31)) >> 11) * 0x1p-53
  end
end

-- draws(n, seed, { key = { values } | { from =, to =, log =, whole = } }) -> an iterator over n random points.
function experiment.draws(n, seed, spec)
  opts.whole(n, 1, 'draws: the number of points')
  local keys, uniform = sorted_keys(spec), generator(opts.whole(seed, 0, 'draws: seed'))
  for _, key in ipairs(keys) do
    local s = spec[key]
    if type(s) ~= 'table' or not s.from and #s == 0 then
      error(('draws: %s: expected a list of values or { from =, to = }'):format(key), 0)
    end
    if s.from then
      opts.check(s, { 'from', 'to', 'log', 'whole' }, 'draws: ' .. key)
      if type(s.from) ~= 'number' or type(s.to) ~= 'number' or s.from > s.to or s.log and s.from <= 0 then
        error(('draws: %s: from = %s, to = %s is no range'):format(key, tostring(s.from), tostring(s.to)), 0)
      end
    end
  end
  local count = 0
  return function()
    if count == n then return nil end
    count = count + 1
    local point = {}
    for _, key in ipairs(keys) do
      local s, u = spec[key], uniform()
      if not s.from then point[key] = s[1 + math.floor(u * #s)]
      else
        local x = s.log and s.from * (s.to / s.from) ^ u or s.from + (s.to - s.from) * u
        point[key] = s.whole and math.floor(x + 0.5) or x
      end
    end
    return point
  end
end

-- Calls take(point) for every point of `vary`.
local function each(vary, take)
  if vary == nil then return take {} end
  if type(vary) == 'function' then
    for point in vary do take(point) end
  elseif type(vary) == 'table' and #vary > 0 then
    for _, item in ipairs(vary) do
      if type(item) == 'function' then each(item, take) else take(item) end
    end
  elseif type(vary) == 'table' then
    each(experiment.grid(vary), take)
  else
    error(('vary is a %s, expected a grid, a list or an iterator'):format(type(vary)), 0)
  end
end

-- --- checking -----------------------------------------------------------------------------------------------

local function check_function(E, key)
  if E[key] ~= nil and type(E[key]) ~= 'function' then fail(E, '%s is a %s, expected a function', key, type(E[key])) end
end

local UNITS <const> = { B = 1, kB = 1000, MB = 1000 ^ 2, GB = 1000 ^ 3, KiB = 1024, MiB = 1024 ^ 2, GiB = 1024 ^ 3 }

-- '2GB' -> 2000000000
local function bytes_of(E, value)
  local bytes = value
  if type(value) == 'string' then
    local amount, unit = value:match('^%s*([%d.]+)%s*(%a+)%s*$')
    bytes = tonumber(amount) and UNITS[unit] and tonumber(amount) * UNITS[unit]
  end
  if type(bytes) ~= 'number' or not (bytes >= 1 and bytes < 2 ^ 62) then
    fail(E, "memory is %s, expected bytes, or a text such as '500MB' or '2GB'", tostring(value))
  end
  return math.floor(bytes)
end

-- experiment.check(t) -> the experiment, with what its worker adds.
function experiment.check(t)
  if type(t) ~= 'table' then
    error(('a sweep file returns a table { name =, point =, vary = }, this one returned a %s'):format(type(t)), 0)
  end
  opts.check(t, KEYS, 'experiment')
  local E = {}
  for key, value in pairs(t) do E[key] = value end
  if type(E.name) ~= 'string' or not E.name:find('^[%w._-]+$') or E.name:find('^%.') then
    error(('experiment: name is %s, expected a word such as \'records\''):format(tostring(E.name)), 0)
  end
  if E.worker ~= nil then
    if E.point then fail(E, 'worker and point are both given; one of them does the runs') end
    local ok, module = pcall(require, tostring(E.worker))
    if not ok then fail(E, "the worker '%s' cannot be loaded: %s", tostring(E.worker), module:match('^[^\n]*')) end
    for _, key in ipairs(FROM_WORKER) do
      if E[key] == nil then E[key] = module[key] end
    end
  end
  if type(E.point) ~= 'function' then fail(E, 'point is missing: a function(run) that returns metrics') end
  for _, key in ipairs { 'estimate', 'parameters', 'resolve' } do check_function(E, key) end
  E.version = opts.whole(E.version or 1, 1, 'experiment: version')
  if E.timeout ~= nil and not (type(E.timeout) == 'number' and E.timeout > 0) then
    fail(E, 'timeout is %s, expected seconds above 0', tostring(E.timeout))
  end
  if E.memory ~= nil then E.memory = bytes_of(E, E.memory) end
  if E.better ~= nil then opts.word(E.better, { 'less', 'more' }, 'experiment: better') end
  if type(E.measure) == 'string' then E.measure = { E.measure } end
  local seeds = E.seeds
  if seeds == nil then seeds = { 1 } end
  if type(seeds) == 'number' then
    local n = opts.whole(seeds, 1, 'experiment: seeds')
    seeds = {}
    for i = 1, n do seeds[i] = i end
  end
  if type(seeds) ~= 'table' or #seeds == 0 then
    fail(E, 'seeds is %s, expected a number or a list', tostring(E.seeds))
  end
  E.seeds = seeds
  return E
end

-- A file that returns the settings of a training, and perhaps a name, is an experiment of one point.
local function of_settings(t, path)
  if type(t) ~= 'table' or t.layout == nil or t.point or t.worker or t.fixed or t.vary then return t end
  local settings = {}
  for key, value in pairs(t) do settings[key] = value end
  settings.name = nil
  local folder, file = path:match('([^/]*)/([^/]*)$')
  local name = (file or path):gsub('%.lua$', '')
  if name == 'run' and folder then name = folder end
  return { name = t.name or name:gsub('[^%w._-]', '-'):gsub('^%.+', ''), worker = 'kvlab.trainer', fixed = settings }
end

-- experiment.load(path) -> the experiment of a file, which runs as any Lua does; file, folder and digest noted.
function experiment.load(path)
  local file, problem = io.open(path, 'rb')
  if not file then error('cannot read ' .. problem, 0) end
  local text = file:read('a')
  file:close()
  if not text then error(('cannot read %s'):format(path), 0) end
  local chunk
  chunk, problem = load(text, '@' .. path, 't')
  if not chunk then error(problem, 0) end
  local E = experiment.check(of_settings(chunk(), path))
  E.file, E.digest = core.system.realpath(path), core.system.sha256(text)
  return E
end

-- --- points ---------------------------------------------------------------------------------------------------

local function known_settings(E, settings)
  if E.defaults then return sorted_keys(E.defaults) end
  local known = {}
  for _, one in ipairs(settings) do
    for key in pairs(one) do known[key] = true end
  end
  for key in pairs(E.fixed or {}) do known[key] = true end
  return sorted_keys(known)
end

local function resolved(E, settings)
  if settings.experiment or settings.version then fail(E, "'experiment' and 'version' are no names of settings") end
  local values = settings
  if E.defaults then
    local seed = values.seed
    if E.defaults.seed == nil then values.seed = nil end
    values = config.resolve(values, E.defaults, 'experiment ' .. E.name)
    values.seed = seed
  end
  if E.resolve then values = E.resolve(values) end
  values = config.plain(values, 'experiment ' .. E.name)
  values.experiment = E.name
  values.version = E.version
  return values
end

-- The settings that differ between points, sorted, the seed last; `by`, when given, instead of all but the seed.
local function varying(points, by)
  local first, keys, seen = {}, {}, {}
  for _, point in ipairs(points) do
    for key, value in pairs(config.leaves(point.config)) do
      local text = config.canonical { value }
      if first[key] == nil then first[key] = { text, 1 }
      elseif first[key][1] ~= text then seen[key] = true
      else first[key][2] = first[key][2] + 1 end
    end
  end
  if by then keys, first = table.move(by, 1, #by, 1, {}), {} end
  for key, of in pairs(first) do
    if (seen[key] or of[2] < #points) and key ~= 'seed' then keys[#keys + 1] = key end
  end
  if not by then table.sort(keys) end
  if seen.seed then keys[#keys + 1] = 'seed' end
  return keys
end

-- matches('bf16*seed=1', label): is the text in it? A * stands for anything.
local function matches(pattern, text)
  local lua = pattern:gsub('[%^%$%(%)%%%.%[%]%+%-%?]', '%%%0'):gsub('%*', '.*')
  return text:find(lua) ~= nil
end

-- Puts the settings of `from` into `into`; 'optimiser.lr' is one inside a table.
local function put(into, from)
  local inner = {}
  for key, value in pairs(from) do
    if type(key) == 'string' and key:find('.', 1, true) then inner[#inner + 1] = key else into[key] = value end
  end
  table.sort(inner)
  for _, key in ipairs(inner) do config.set(into, key, from[key]) end
end

-- experiment.points(E [, { set = { 'key=value', ... }, only = pattern }]) -> list of { id =, config =, label = } in the
-- order of the file, and the keys that vary. Points that are the same after resolving stand once.
function experiment.points(E, options)
  options = options or {}
  opts.check(options, { 'set', 'only' }, 'points')
  local settings = {}
  local ok, problem = pcall(each, E.vary, function(point)
    if type(point) ~= 'table' then
      fail(E, 'point %d is a %s, expected a table of settings', #settings + 1, type(point))
    end
    if #settings == MOST then fail(E, 'more than %d points', MOST) end
    local copy = {}
    put(copy, E.fixed or {})
    put(copy, point)
    settings[#settings + 1] = copy
  end)
  if not ok then fail(E, 'after %d points: %s', #settings, tostring(problem)) end
  local known = known_settings(E, settings)
  local seeds = E.seeds
  for _, text in ipairs(options.set or {}) do
    local key, value = config.assignment(text)
    local head = key:match('^[^.]+')
    if head == 'seed' then
      seeds = { value }
    else
      opts.check({ [head] = true }, known, 'experiment ' .. E.name, 'setting')
      for _, one in ipairs(settings) do config.set(one, key, value) end
    end
  end
  local points, seen = {}, {}
  for i, one in ipairs(settings) do
    for _, seed in ipairs(one.seed and { one.seed } or seeds) do
      local copy = {}
      for key, value in pairs(one) do copy[key] = value end
      copy.seed = seed
      local right, values = pcall(resolved, E, copy)
      if not right then
        error(#settings > 1 and ('point %d: %s'):format(i, tostring(values)) or values, 0)
      end
      local id = config.id(values)
      if not seen[id] then
        seen[id] = true
        points[#points + 1] = { id = id, config = values }
      end
    end
  end
  local keys = varying(points, E.by)
  local chosen = {}
  for _, point in ipairs(points) do
    point.label = config.label(point.config, keys)
    if point.label == '' then point.label = E.name end
    if not options.only or matches(options.only, point.label) or point.id:sub(1, #options.only) == options.only then
      chosen[#chosen + 1] = point
    end
  end
  return chosen, keys
end

return experiment
