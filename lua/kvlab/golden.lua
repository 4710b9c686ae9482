-- golden.lua: reads a golden case (NAME.json + NAME.safetensors) as a layout, widths and quantisers.
--
-- A case's json speaks of one attention kind or of a list of modes; here it becomes an ordinary layout, so that
-- checking a vector runs the very code that a user's layout runs. Its quantisers become records: one that keeps
-- the unquantised channels in float32 (what the vectors were made with), and one that stores them in bf16, as
-- deployed records do.
local json = require 'kvlab.json'
local layer = require 'kvlab.layer'
local layout = require 'kvlab.layout'
local record = require 'kvlab.record'

local golden = {}

local function fail(name, message, ...)
  error(("case '%s': " .. message):format(name, ...), 0)
end

-- A field of the json; `kind` is its Lua type. nil stands for null and for what is missing when `optional`.
local function take(name, t, key, kind, optional)
  local value = t[key]
  if value == json.null then value = nil end
  if value == nil and optional then return nil end
  if type(value) ~= kind then
    fail(name, '%s is %s, expected a %s', key, value == nil and 'missing' or tostring(value), kind)
  end
  return value
end

local KINDS = { gqa = true, mla = true, dsa = true, swa = true, hca = true, csa = true, ['csa2-group'] = true,
  ['csa2-stack'] = true }

-- --- the layout ---------------------------------------------------------------------------------------
local function csa2_layers(name, t)
  local pool = take(name, t, 'candidate_pool', 'table', true)
  local list = take(name, t, 'layers', 'table')
  local layers = {}
  for i, l in ipairs(list) do
    local mode, ratio = take(name, l, 'mode', 'string'), take(name, l, 'ratio', 'number')
    if mode == 'swa' then layers[i] = layer.kinds.swa
    elseif mode == 'full' then
      local built
      if pool and pool.source == i - 1 then built = { blocks = pool.blocks, block = pool.block } end
      layers[i] = layer.new('full', { ratio = ratio, pool = built })
    elseif mode == 'reindex' or mode == 'reuse' then layers[i] = layer.kinds[mode]
    else fail(name, "layers[%d]: unknown mode '%s'; expected swa, full, reindex or reuse", i - 1, mode) end
  end
  return layers
end

local function layout_of(name, t, kind)
  if kind == 'csa2-group' or kind == 'csa2-stack' then
    local layers = csa2_layers(name, t)
    local cut = take(name, t, 'encoder_layers', 'number', true)
    if kind == 'csa2-stack' and cut and cut > 0 and cut < #layers then
      return layout.new { encoder = table.move(layers, 1, cut, 1, {}),
        decoder = table.move(layers, cut + 1, #layers, 1, {}) }
    end
    return layout.new(layers)
  end
  local changes = {}
  if kind == 'hca' or kind == 'csa' then changes.ratio = take(name, t, 'ratio', 'number') end
  if kind == 'csa' then changes.overlap = take(name, t, 'overlap', 'boolean') end
  return layout.new { layer.new(kind, changes) }
end

-- --- the widths ---------------------------------------------------------------------------------------
local function yarn_of(t, mscale)
  if not t or t == json.null then return nil end
  return { factor = t.factor, original_max_position_embeddings = t.orig, beta_fast = t.beta_fast,
    beta_slow = t.beta_slow, mscale_all_dim = mscale and mscale > 0 and mscale or nil }
end

local function widths_of(name, t)
  local rope = take(name, t, 'rope', 'table')
  local index = take(name, t, 'index', 'table', true)
  local function number(key, from) return take(name, from or t, key, 'number', true) end
  local w = {
    hidden_size = number 'hidden', num_attention_heads = number 'heads', num_key_value_heads = number 'kv_heads',
    head_dim = number 'head_dim', v_head_dim = number 'v_head_dim', qk_nope_head_dim = number 'qk_nope_head_dim',
    qk_rope_head_dim = number 'qk_rope_head_dim' or number 'rope_dims', kv_lora_rank = number 'kv_lora_rank',
    q_lora_rank = number 'q_lora_rank', o_groups = number 'o_groups', o_lora_rank = number 'o_lora_rank',
    sliding_window = number 'window', rms_norm_eps = number 'rms_eps', rope_theta = number('theta', rope),
    compress_rope_theta = number('compress_theta', rope), rope_interleave = rope.layout ~= 'half-split',
    query_head_norm = take(name, t, 'q_head_norm', 'boolean', true),
    rope_scaling = yarn_of(rope.yarn or rope.yarn_if_ratio, number('mscale_all_dim', rope)),
  }
  if w.q_lora_rank == 0 then w.q_lora_rank = nil end
  if index then
    w.index_n_heads, w.index_head_dim = number('heads', index), number('head_dim', index)
    w.index_topk, w.index_hadamard = number('topk', index), index.hadamard == true
    local rotated = take(name, index, 'rope', 'string', true)
    w.index_rope = rotated and rotated:find('first') and 'first' or 'last'
  end
  return w
end

-- --- the quantisers -----------------------------------------------------------------------------------
-- '6*2^-126' or a number.
local function floor_of(name, value)
  if type(value) == 'number' then return value end
  local factor, power = tostring(value):match('^(%d+)%*2%^(%-?%d+)$')
  if not factor then fail(name, "amax_floor '%s': expected a number or a*2^b", tostring(value)) end
  return tonumber(factor) * 2.0 ^ tonumber(power)
end

-- A record for the quantiser q, with `tail` for the channels that it leaves alone (rotary ones).
local function record_of(name, q, role, tail)
  local field = { channels = 'rest', number = take(name, q, 'number', 'string'), place = 'split',
    scale = { number = take(name, q, 'scale', 'string'), group = take(name, q, 'group', 'number'),
      rule = take(name, q, 'rule', 'string'), floor = { amax = floor_of(name, q.amax_floor) } } }
  local fields = { field }
  if tail then fields[2] = { channels = 'rotary', number = tail } end
  return record.unnamed { name = ('%s-%s-%s'):format(name:gsub('[^%w._-]', '-'), role, tail or 'all'), fields = fields }
end

-- -> what the vectors were made with, what deployed records do: tables main, index, window, index_query.
local function quantisers_of(name, t)
  local q = take(name, t, 'quantisers', 'table', true)
  if not q then return nil end
  local made, deployed = {}, {}
  for role, key in pairs { main = 'entry', index = 'index_key', window = 'local', index_query = 'index_query' } do
    local one = take(name, q, key, 'table', true) or key == 'entry' and take(name, q, 'latent', 'table', true)
    if one then
      local tail = key == 'entry' and not q.entry or one.channels == 'all but the rotated tail'
      made[role] = record_of(name, one, role, tail and 'f32')
      deployed[role] = record_of(name, one, role, tail and 'bf16')
    end
  end
  return made, deployed
end

-- golden.read(json_text, name) -> { name, kind, layout, widths, quantisers, deployed }
function golden.read(text, name)
  local ok, t = pcall(json.decode, text)
  if not ok then fail(name, '%s', t) end
  if type(t) ~= 'table' then fail(name, 'expected an object') end
  local kind = take(name, t, 'kind', 'string')
  if not KINDS[kind] then fail(name, "unknown kind '%s'", kind) end
  local made, deployed = quantisers_of(name, t)
  return { name = name, kind = kind, layout = layout_of(name, t, kind), widths = widths_of(name, t),
    quantisers = made, deployed = deployed }
end

return golden
