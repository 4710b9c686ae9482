-- weights.lua: the parameters of one layer's attention block: names, shapes, and how often each is multiplied.
--
-- Names and shapes are those of the released checkpoints (semantics: V2/V3 `self_attn.*`, V4/V4.1 `attn.*`),
-- matrices [out, in], so that a released file, a golden vector and our own checkpoint read alike. The list is
-- also what flops.lua counts: a weight that is missing here is neither made nor counted.
local options = require 'kvlab.options'
local standin = require 'kvlab.standin'
local tensor = require 'kvlab.tensor'

local weights = {}

-- weights.of(s) -> a list of { name, shape } for the layer with shape s (kvlab.shape). A matrix also says what
-- it is multiplied with:
--   per     'token' (each token of the input), 'entry' (each finished entry), 'up' (MLA's up-projection of the
--           latent, whose cost depends on the order of computation)
--   merged  multiply-adds for one token when MLA's up-projections are merged into this matrix
function weights.of(s)
  local get, l = s.get, s.layer
  local D, H = get 'hidden_size', get 'num_attention_heads'
  local list = {}
  local function vector(name, size) list[#list + 1] = { name = name, shape = { size } } end
  local function matrix(name, outputs, inputs, per, merged)
    list[#list + 1] = { name = name, shape = { outputs, inputs }, per = per or 'token', merged = merged }
  end

  local rank = get('q_lora_rank', true)
  local latent = rank or D -- what queries per head, and the indexer's, are projected from
  local own_window = s.owns and 'window.' or '' -- local KV beside an own cache needs a name of its own

  if s.form == 'heads' then
    local row = s.main or s.local_kv
    local d_k, d_v = get 'head_dim', get('v_head_dim', true) or get 'head_dim'
    latent = D
    matrix('q_proj.weight', H * d_k, D)
    if s.owns then
      matrix('k_proj.weight', row.key, D)
      matrix('v_proj.weight', row.value, D)
    end
    if s.window > 0 then
      matrix(own_window .. 'k_proj.weight', s.local_kv.key, D)
      matrix(own_window .. 'v_proj.weight', s.local_kv.value, D)
    end
    matrix('o_proj.weight', D, H * d_v)
  elseif s.form == 'latent' then
    local nope, rope, d_v = get 'qk_nope_head_dim', get 'qk_rope_head_dim', get 'v_head_dim'
    local kv_rank = get 'kv_lora_rank'
    if rank then
      matrix('q_a_proj.weight', rank, D)
      vector('q_a_layernorm.weight', rank)
    end
    matrix(rank and 'q_b_proj.weight' or 'q_proj.weight', H * (nope + rope), latent, 'token',
      latent * H * (kv_rank + rope))
    if s.owns then
      matrix('kv_a_proj_with_mqa.weight', kv_rank + rope, D)
      vector('kv_a_layernorm.weight', kv_rank)
    end
    if s.window > 0 then
      matrix(own_window .. 'kv_a_proj_with_mqa.weight', kv_rank + rope, D)
      vector(own_window .. 'kv_a_layernorm.weight', kv_rank)
    end
    matrix('kv_b_proj.weight', H * (nope + d_v), kv_rank, 'up')
    matrix('o_proj.weight', D, H * d_v, 'token', H * kv_rank * D)
  else
    local c = get 'head_dim'
    vector('attn_sink', H)
    if rank then
      matrix('wq_a.weight', rank, D)
      vector('q_norm.weight', rank)
    end
    matrix(rank and 'wq_b.weight' or 'wq.weight', H * c, latent)
    if s.window > 0 then
      matrix('wkv.weight', c, D)
      vector('kv_norm.weight', c)
    end
    local groups, rank_o = get('o_groups', true), get('o_lora_rank', true)
    if groups and rank_o then
      matrix('wo_a.weight', groups * rank_o, H * c // groups)
      matrix('wo_b.weight', D, groups * rank_o)
    else
      matrix('wo.weight', D, H * c)
    end
  end

  local function compressor(prefix, width, candidates)
    local columns = width * (l.overlap and 2 or 1)
    if candidates then matrix(prefix .. 'wkv.weight', columns, D) end
    if l.ratio > 1 then
      matrix(prefix .. 'wgate.weight', columns, D)
      if l.bias then list[#list + 1] = { name = prefix .. 'ape', shape = { l.ratio, columns } } end
    end
    if candidates then vector(prefix .. 'norm.weight', width) end
  end
  -- Per-head rows and latents are pooled from their own projections; only the gate is extra.
  if s.owns then compressor('compressor.', s.main.channels, s.form == 'entry') end

  if s.topk then
    local heads, d = get 'index_n_heads', s.index.channels
    matrix('indexer.wq_b.weight', heads * d, latent)
    matrix('indexer.weights_proj.weight', heads, D)
    if l.keys == 'input' then
      matrix('indexer.wk.weight', d, D)
      vector('indexer.k_norm.weight', d)
      vector('indexer.k_norm.bias', d)
    elseif l.keys == 'compressor' then
      compressor('indexer.compressor.', d, true)
    elseif l.keys == 'entry' then
      matrix('indexer.wk.weight', d, s.form == 'latent' and get 'kv_lora_rank' or s.main.channels, 'entry')
      vector('indexer.k_norm.weight', d)
    end
  end
  return list
end

-- weights.check(value, spec, where): value is a float32 tensor of the shape of spec { name, shape }.
function weights.check(value, spec, where)
  if value == nil then error(('%s: the weight %s is missing'):format(where, spec.name), 0) end
  local want = table.concat(spec.shape, ', ')
  if standin.is(value) then return end -- a measurement's: only its shape counts, and that came from `spec`
  if not tensor.is_tensor(value) then
    error(('%s: the weight %s is a %s, expected a tensor {%s}'):format(where, spec.name, type(value), want), 0)
  end
  local have = table.concat(value.shape, ', ')
  if have ~= want or value.dtype ~= 'float32' then
    error(('%s: the weight %s is {%s}, expected {%s}%s'):format(where, spec.name, have, want,
      value.dtype ~= 'float32' and (' in float32, not %s'):format(value.dtype) or ''), 0)
  end
end

weights.inits = { 'default', 'normal', 'nanogpt' }

-- weights.init(given, where) -> { kind =, std = }, checked:
--   default  matrices normal with a deviation of 1 / sqrt(inputs)
--   normal   matrices normal with a deviation of `std` (0.02)
--   nanogpt  the same, and what is added to the residual stream by 1 / sqrt(2 layers) less (GPT-2)
-- Indexers are as by default in all of them.
function weights.init(given, where)
  if type(given) == 'string' then given = { kind = given } end
  options.check(given, { 'kind', 'std' }, where)
  local init = { kind = given and given.kind or 'default', std = given and given.std or 0.02 }
  options.word(init.kind, weights.inits, where .. ': kind')
  if type(init.std) ~= 'number' or not (init.std > 0 and init.std < math.huge) then
    error(('%s: std is %s, expected a number above 0'):format(where, tostring(init.std)), 0)
  end
  return init
end

-- The projections whose result is added to the residual stream.
local RESIDUAL = { 'o_proj%.weight$', 'wo%.weight$', 'wo_b%.weight$', 'down_proj%.weight$', 'ffn%.w2%.weight$' }

local function deviation(spec, init, layers)
  local name = spec.name
  if #spec.shape ~= 2 or name:find('ape$') then return 0.1 end
  if not init or init.kind == 'default' or name:find('indexer', 1, true) then return spec.shape[2] ^ -0.5 end
  if init.kind == 'nanogpt' then
    for _, pattern in ipairs(RESIDUAL) do
      if name:find(pattern) then return init.std * (2 * layers) ^ -0.5 end
    end
  end
  return init.std
end

-- weights.random({ name, shape }, seed, init, layers) -> a tensor: matrices by `init` (weights.init; nil: default) in a
-- model of so many layers, norms one, sinks and biases small. Every name draws from a stream of its own, so that a
-- model that gains a layer keeps the others.
function weights.random(spec, seed, init, layers)
  if spec.name:find('norm%.weight$') then return tensor.ones(spec.shape) end
  local hash = 0
  for at = 1, #spec.name do hash = (hash * 31 + spec.name:byte(at)) % 2147483647 end
  local drawn = { seed = seed * 2147483647 + hash, std = deviation(spec, init, layers) }
  return tensor.random(table.move(spec.shape, 1, #spec.shape, 1, drawn))
end

-- weights.prefix(s, i) -> what stands before the names of layer i (1-based) in a checkpoint.
function weights.prefix(s, i)
  return (s.form == 'entry' and 'layers.%d.attn.' or 'model.layers.%d.self_attn.'):format(i - 1)
end

-- The number of values in a shape.
function weights.size(shape)
  local n = 1
  for _, size in ipairs(shape) do n = n * size end
  return n
end

-- weights.count(s) -> parameters of the layer's attention block, norms, sinks and biases included.
function weights.count(s)
  local sum = 0
  for _, w in ipairs(weights.of(s)) do sum = sum + weights.size(w.shape) end
  return sum
end

return weights
