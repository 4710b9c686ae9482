-- primitives.lua: norms, rope, attend, compress and the indexer on tensors. Options are checked here,
-- shapes in C. Documentation in meta/primitives.lua.
local core = require 'kvlab.core'
local options = require 'kvlab.options'

local M = { hadamard = core.norm.hadamard }

local DEFAULT_EPS <const> = 1e-6

function M.rms_norm(x, weight, eps)
  return core.norm.rms_norm(x, weight, eps or DEFAULT_EPS)
end

function M.layer_norm(x, weight, bias, eps)
  return core.norm.layer_norm(x, weight, bias, eps or DEFAULT_EPS)
end

local rope_keys = { 'theta', 'n', 'first', 'half_split', 'inverse', 'pos', 'pos0', 'stride', 'yarn' }
local yarn_keys = { 'factor', 'context', 'beta_fast', 'beta_slow' }

function M.rope(x, opts)
  opts = opts or {}
  options.check(opts, rope_keys, 'rope')
  if opts.yarn ~= nil then options.check(opts.yarn, yarn_keys, 'rope: yarn') end
  return core.norm.rope(x, opts)
end

local attend_keys = { 'q', 'sources', 'sink', 'scale', 'pos0', 'lse' }
local source_keys = { 'key', 'value', 'see', 'window', 'ratio', 'list', 'pos0', 'ring' }

function M.attend(opts)
  options.check(opts, attend_keys, 'attend')
  if type(opts.sources) == 'table' then
    for i, source in ipairs(opts.sources) do
      options.check(source, source_keys, ('attend: source %d'):format(i))
    end
  end
  return core.attend.attend(opts)
end

function M.compress(c, z, opts)
  options.check(opts, { 'ratio', 'overlap', 'bias' }, 'compress')
  return core.compress.compress(c, z, opts)
end

function M.compressor(opts)
  options.check(opts, { 'ratio', 'width', 'overlap', 'bias', 'rollback' }, 'compressor')
  return core.compress.compressor(opts)
end

M.index = {}
local index_keys = { 'q', 'w', 'key', 'pos0', 'ratio' }

local function index_function(want, more)
  local keys = { table.unpack(index_keys) }
  for _, key in ipairs(more) do keys[#keys + 1] = key end
  return function(opts)
    options.check(opts, keys, 'index.' .. want)
    return core.attend.index(want, opts)
  end
end

M.index.scores = index_function('scores', { 'pool' })
M.index.select = index_function('select', { 'k', 'pool' })
M.index.pool = index_function('pool', { 'block', 'blocks' })

return M
