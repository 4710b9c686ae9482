-- kernels.lua: norms, RoPE, attention, indexer and compressors on tensors and cache tables, as they appear in kv.
-- Documentation in meta/kernels.lua. The kernels are in core/; here options are checked and put in order.
local core = require 'kvlab.core'
local options = require 'kvlab.options'

local kernels = {}

-- rms_norm(x [, weight [, eps]]), layer_norm(x [, weight [, bias [, eps]]])
function kernels.rms_norm(x, weight, eps) return core.norm.rms_norm(x, weight, eps or 1e-6) end
function kernels.layer_norm(x, weight, bias, eps) return core.norm.layer_norm(x, weight, bias, eps or 1e-6) end
kernels.hadamard = core.norm.hadamard

-- rope_freqs { channels =, theta =, yarn = { factor =, context =, beta_fast =, beta_slow = } }
function kernels.rope_freqs(o)
  options.check(o, { 'channels', 'theta', 'yarn' }, 'rope_freqs')
  local yarn = o.yarn
  if not yarn then return core.norm.rope_freqs(o.channels, o.theta or 10000) end
  options.check(yarn, { 'factor', 'context', 'beta_fast', 'beta_slow' }, 'rope_freqs: yarn')
  return core.norm.rope_freqs(o.channels, o.theta or 10000, yarn.factor, yarn.context, yarn.beta_fast or 32, yarn.beta_slow or 1)
end

-- rope(x, freqs, { pos0 = | positions =, stride =, inverse =, first =, half_split = })
function kernels.rope(x, freqs, o)
  o = o or {}
  options.check(o, { 'pos0', 'positions', 'stride', 'inverse', 'first', 'half_split' }, 'rope')
  return core.norm.rope(x, freqs, o.positions or o.pos0 or 0, o.stride or 1, o.inverse, o.first, o.half_split)
end

local SOURCE = { 'rows', 'table', 'kind', 'counters', 'key_rows', 'value_rows', 'key', 'value', 'kv_heads', 'see',
  'pos0', 'window', 'ratio', 'list' }

-- attend { q =, sources =, sink =, scale =, pos0 =, value_width =, lse = } -> out [, lse]
function kernels.attend(o)
  options.check(o, { 'q', 'sources', 'sink', 'scale', 'pos0', 'value_width', 'lse' }, 'attend')
  if type(o.sources) ~= 'table' then error('attend: sources: expected a list of sources', 0) end
  for i, source in ipairs(o.sources) do options.check(source, SOURCE, ('attend: source %d'):format(i)) end
  return core.attend.attend(o.q, o.sources, o.sink, o.scale or 1, o.pos0 or 0, o.value_width or 0, o.lse)
end

-- index { q =, w =, keys = source, pos0 =, ratio =, k =, pool = list, build = { blocks =, block = }, scores = }
-- -> { top =, pool =, scores = }
function kernels.index(o)
  options.check(o, { 'q', 'w', 'keys', 'pos0', 'ratio', 'k', 'pool', 'build', 'scores' }, 'index')
  options.check(o.keys, { 'rows', 'table', 'kind', 'counters' }, 'index: keys')
  local build = o.build or {}
  options.check(build, { 'blocks', 'block' }, 'index: build')
  return core.attend.index(o.q, o.w, o.keys, { pos0 = o.pos0, ratio = o.ratio, k = o.k, pool = o.pool, scores = o.scores,
    block = build.block, blocks = build.blocks })
end

-- compressor { ratio =, width =, overlap =, bias =, rollback =, batch = } -> Compressor
function kernels.compressor(o)
  options.check(o, { 'ratio', 'width', 'overlap', 'bias', 'rollback', 'batch' }, 'compressor')
  return core.compress.compressor(o.ratio, o.width, o.overlap or false, o.bias, o.rollback or 0, o.batch or 1)
end

return kernels
