-- kernels.lua: norms, RoPE, attention, indexer and compressors on tensors and cache tables, as they appear in kv.
-- Documentation in meta/kernels.lua. The kernels are in core/; here options are checked and put in order.
local core = require 'kvlab.core'
local options = require 'kvlab.options'

local kernels = {}

-- A table of options that is not optional.
local function check(o, allowed, where)
  if o == nil then error(where .. ': expected a table', 0) end
  options.check(o, allowed, where)
end

-- done(where, names, pcall(f, ...)): the results of f. When it failed, the error says what f was called for, and
-- of argument n that it was names[n].
local function done(where, names, ok, ...)
  if ok then return ... end
  local problem = ...
  if type(problem) ~= 'string' or problem == 'interrupted' then error(problem, 0) end
  local n, what = problem:match("^bad argument #(%d+) to '[^']*' (%b())$")
  if n then
    local name = names[tonumber(n)] -- nil: a field of a source, which the text names
    problem = (name and name .. ': ' or '') .. what:sub(2, -2)
  end
  local begins = problem:match('^(%a+):') -- the core may have said it already: 'rope: ...' in rope_freqs
  if not begins or where:sub(1, #begins) ~= begins then problem = ('%s: %s'):format(where, problem) end
  error(problem, 0)
end

-- rms_norm(x [, weight [, eps]]), layer_norm(x [, weight [, bias [, eps]]]), hadamard(x)
function kernels.rms_norm(x, weight, eps)
  return done('rms_norm', { 'x', 'weight', 'eps' }, pcall(core.norm.rms_norm, x, weight, eps or 1e-6))
end

function kernels.layer_norm(x, weight, bias, eps)
  return done('layer_norm', { 'x', 'weight', 'bias', 'eps' }, pcall(core.norm.layer_norm, x, weight, bias, eps or 1e-6))
end

function kernels.hadamard(x) return done('hadamard', { 'x' }, pcall(core.norm.hadamard, x)) end

local FREQS = { 'channels', 'theta', 'yarn.factor', 'yarn.context', 'yarn.beta_fast', 'yarn.beta_slow' }

-- rope_freqs { channels =, theta =, yarn = { factor =, context =, beta_fast =, beta_slow = } }
function kernels.rope_freqs(o)
  check(o, { 'channels', 'theta', 'yarn' }, 'rope_freqs')
  local theta, yarn = o.theta or 10000, o.yarn
  if not yarn then return done('rope_freqs', FREQS, pcall(core.norm.rope_freqs, o.channels, theta)) end
  options.check(yarn, { 'factor', 'context', 'beta_fast', 'beta_slow' }, 'rope_freqs: yarn')
  if not yarn.factor then error('rope_freqs: yarn.factor is missing', 0) end
  return done('rope_freqs', FREQS, pcall(core.norm.rope_freqs, o.channels, theta, yarn.factor, yarn.context,
    yarn.beta_fast or 32, yarn.beta_slow or 1))
end

local ROPE = { 'x', 'freqs', 'pos0 or positions', 'stride' }

-- rope(x, freqs, { pos0 = | positions =, stride =, inverse =, first =, half_split = })
function kernels.rope(x, freqs, o)
  o = o or {}
  options.check(o, { 'pos0', 'positions', 'stride', 'inverse', 'first', 'half_split' }, 'rope')
  return done('rope', ROPE, pcall(core.norm.rope, x, freqs, o.positions or o.pos0 or 0, o.stride or 1, o.inverse,
    o.first, o.half_split))
end

local SOURCE = { 'rows', 'table', 'kind', 'counters', 'key_rows', 'value_rows', 'key', 'value', 'kv_heads', 'see',
  'pos0', 'window', 'ratio', 'list' }
local ATTEND = { 'q', 'sources', 'sink', 'scale', 'pos0', 'value_width', 'lse' }

-- attend { q =, sources =, sink =, scale =, pos0 =, value_width =, lse = } -> out [, lse]
function kernels.attend(o)
  check(o, ATTEND, 'attend')
  if type(o.sources) ~= 'table' then
    error(('attend: sources is %s, expected a list of sources'):format(tostring(o.sources)), 0)
  end
  for i, source in ipairs(o.sources) do check(source, SOURCE, ('attend: source %d'):format(i)) end
  return done('attend', ATTEND, pcall(core.attend.attend, o.q, o.sources, o.sink, o.scale or 1, o.pos0 or 0,
    o.value_width or 0, o.lse))
end

-- index { q =, w =, keys = source, pos0 =, ratio =, k =, pool = list, build = { blocks =, block = }, scores = }
-- -> { top =, pool =, scores = }
function kernels.index(o)
  check(o, { 'q', 'w', 'keys', 'pos0', 'ratio', 'k', 'pool', 'build', 'scores' }, 'index')
  check(o.keys, { 'rows', 'table', 'kind', 'counters' }, 'index: keys')
  local build = o.build or {}
  options.check(build, { 'blocks', 'block' }, 'index: build')
  return done('index', { 'q', 'w' }, pcall(core.attend.index, o.q, o.w, o.keys, { pos0 = o.pos0, ratio = o.ratio,
    k = o.k, pool = o.pool, scores = o.scores, block = build.block, blocks = build.blocks }))
end

local COMPRESSOR = { 'ratio', 'width', 'overlap', 'bias', 'rollback', 'batch' }

-- compressor { ratio =, width =, overlap =, bias =, rollback =, batch = } -> Compressor
function kernels.compressor(o)
  check(o, COMPRESSOR, 'compressor')
  return done('compressor', COMPRESSOR, pcall(core.compress.compressor, o.ratio, o.width, o.overlap or false, o.bias,
    o.rollback or 0, o.batch or 1))
end

return kernels
