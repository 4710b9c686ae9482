-- widths.lua: the numbers of a model that its layout does not say, under the names of the released
-- config.json files (semantics of each: docs/layouts.md). A plain table; layers may override some of them.
local json = require 'kvlab.json'
local suggest = require 'kvlab.suggest'

local widths = {}

local function count(value)
  local n = math.type(value) and math.tointeger(value)
  if n and n >= 1 and n <= 2 ^ 31 then return n end
  return nil, 'a whole number, 1 or more'
end

local function real(value)
  if type(value) == 'number' and value > 0 and value < math.huge then return value end
  return nil, 'a number above 0'
end

local function flag(value)
  if type(value) == 'boolean' then return value end
  return nil, 'true or false'
end

local function place(value)
  if value == 'first' or value == 'last' then return value end
  return nil, "'first' or 'last'"
end

local function scaling(value)
  if type(value) ~= 'table' then return nil, 'a table of YaRN settings' end
  local known = { 'factor', 'original_max_position_embeddings', 'beta_fast', 'beta_slow', 'mscale', 'mscale_all_dim' }
  local copy = {}
  for key, x in pairs(value) do
    local found = false
    for _, name in ipairs(known) do found = found or name == key end
    if found then
      if not real(x) then return nil, ('%s to be a number above 0'):format(key) end
      copy[key] = x
    elseif key ~= 'type' and key ~= 'rope_type' then
      return nil, ("known YaRN settings, not '%s'%s"):format(tostring(key), suggest.phrase(tostring(key), known))
    end
  end
  return copy
end

-- name, check, meaning (the line that `kvlab help widths` prints).
widths.FIELDS = {
  { 'hidden_size', count, 'D, width of the residual stream' },
  { 'num_attention_heads', count, 'H, query heads' },
  { 'num_key_value_heads', count, 'key/value heads of gqa layers' },
  { 'head_dim', count, 'width of a head (mha, mqa, gqa) or of a K = V entry (swa, hca, csa, full)' },
  { 'v_head_dim', count, 'width of a value head; head_dim when missing (mha, mqa, gqa, mla)' },
  { 'qk_nope_head_dim', count, 'content part of an mla query/key head' },
  { 'qk_rope_head_dim', count, 'rotated channels: the rotary key of mla, the last channels of an entry' },
  { 'q_lora_rank', count, 'width of the query latent c^Q; missing: queries come from the hidden state' },
  { 'kv_lora_rank', count, 'width of the KV latent of mla' },
  { 'index_n_heads', count, 'indexer heads' },
  { 'index_head_dim', count, 'width of an index key' },
  { 'index_topk', count, 'entries that a top-k layer selects' },
  { 'sliding_window', count, 'tokens of the local KV, the current one included' },
  { 'o_groups', count, 'groups of the output projection (K = V layers); missing: one plain projection' },
  { 'o_lora_rank', count, 'width of each group of the output projection' },
  { 'intermediate_size', count, 'width of a dense FFN' },
  { 'vocab_size', count, 'tokens of the vocabulary' },
  { 'max_position_embeddings', count, 'longest context the model is made for' },
  { 'rope_theta', real, 'RoPE base of layers without compression' },
  { 'compress_rope_theta', real, 'RoPE base of layers with compressed entries' },
  { 'rope_scaling', scaling, 'YaRN: factor, original_max_position_embeddings, beta_fast, beta_slow, ...' },
  { 'rope_interleave', flag, 'rotate adjacent pairs (true, the default) or the two halves of the channels' },
  { 'rms_norm_eps', real, 'epsilon of the norms' },
  { 'query_head_norm', flag, 'RMSNorm without weight on every query head (K = V layers of V4)' },
  { 'index_rope', place, "rotated channels of the indexer: 'last', adjacent pairs (V4) or 'first', halves (V3.2)" },
  { 'index_hadamard', flag, 'Hadamard rotation of index queries and keys (V3.2, V4)' },
}
local BY_NAME = {}
widths.names = {}
for i, field in ipairs(widths.FIELDS) do
  BY_NAME[field[1]] = field
  widths.names[i] = field[1]
end

-- Widths that must divide one another, whatever the layers are.
local function contradictions(w)
  local function divides(part, whole)
    if w[part] and w[whole] and w[whole] % w[part] ~= 0 then
      error(('widths: %s = %d does not divide %s = %d; use a divisor of it'):format(part, w[part], whole, w[whole]), 0)
    end
  end
  divides('o_groups', 'num_attention_heads')
  divides('num_key_value_heads', 'num_attention_heads')
  for _, whole in ipairs { 'head_dim', 'index_head_dim' } do
    -- The rotary key of mla stands beside its heads, so head_dim is compared only where there is no latent.
    if w.qk_rope_head_dim and w[whole] and w.qk_rope_head_dim > w[whole]
      and not (whole == 'head_dim' and w.kv_lora_rank) then
      error(('widths: qk_rope_head_dim = %d rotates more channels than %s = %d has')
        :format(w.qk_rope_head_dim, whole, w[whole]), 0)
    end
  end
  if w.qk_rope_head_dim and w.qk_rope_head_dim % 2 ~= 0 then
    error(('widths: qk_rope_head_dim = %d is odd, but RoPE rotates pairs'):format(w.qk_rope_head_dim), 0)
  end
end

-- widths.merge(base, changes) -> a checked table of its own. 'none' removes a width.
function widths.merge(base, changes)
  if changes ~= nil and type(changes) ~= 'table' then
    error(('widths: expected a table such as { head_dim = 64 }, got a %s'):format(type(changes)), 0)
  end
  local merged = {}
  for name, value in pairs(base or {}) do merged[name] = value end
  for name, value in pairs(changes or {}) do
    local field = BY_NAME[name]
    if not field then
      error(("widths: unknown width '%s'%s"):format(tostring(name), suggest.phrase(tostring(name), widths.names)), 0)
    end
    if value == 'none' then
      merged[name] = nil
    else
      local checked, right = field[2](value)
      if checked == nil then
        error(('widths: %s = %s: expected %s'):format(name, type(value) == 'table' and '{...}' or tostring(value),
          right), 0)
      end
      merged[name] = checked
    end
  end
  contradictions(merged)
  return merged
end

-- widths.of_config(config) -> the changes that a parsed config.json makes. A null takes the width away, what is
-- not ours is left out, and the text part of a multimodal config counts. Heads that are not said follow the
-- convention of these files: hidden_size / num_attention_heads wide, a key/value head for each query head.
function widths.of_config(config)
  if type(config) ~= 'table' then error('widths: expected an object in the config file', 0) end
  if type(config.text_config) == 'table' then config = config.text_config end
  local changes, found = {}, false
  for _, name in ipairs(widths.names) do
    local value = config[name]
    if BY_NAME[name][2] == scaling then
      if type(value) == 'table' and value.factor then
        changes[name] = {}
        for _, key in ipairs { 'factor', 'original_max_position_embeddings', 'beta_fast', 'beta_slow', 'mscale',
          'mscale_all_dim' } do
          if type(value[key]) == 'number' and value[key] > 0 then changes[name][key] = value[key] end
        end
      end
    elseif type(value) == 'number' then
      changes[name], found = value, true
    elseif value == json.null then
      changes[name] = 'none'
    end
  end
  local function number_of(name) return type(changes[name]) == 'number' and changes[name] > 0 and changes[name] end
  local heads, hidden = number_of 'num_attention_heads', number_of 'hidden_size'
  if heads and not number_of 'num_key_value_heads' then changes.num_key_value_heads = heads end
  if heads and hidden and not number_of 'head_dim' and not number_of 'kv_lora_rank' and hidden % heads == 0 then
    changes.head_dim = hidden // heads
  end
  if not found then
    error(('widths: none of the known widths is in this file; expected names such as %s, %s'):format('hidden_size',
      'num_attention_heads'), 0)
  end
  return changes
end

-- widths.of_pairs('a=1,b=2') -> the changes in a table.
function widths.of_pairs(text)
  local changes = {}
  for pair in (text .. ','):gmatch('([^,]*),') do
    local name, value = pair:match('^%s*([%w_]+)%s*=%s*(%S+)%s*$')
    if not name then error(("widths: '%s': expected NAME=NUMBER"):format(pair), 0) end
    if changes[name] ~= nil then error(('widths: %s is given twice'):format(name), 0) end
    if value == 'true' or value == 'false' then changes[name] = value == 'true'
    else changes[name] = math.tointeger(tonumber(value)) or tonumber(value) or value end
  end
  return changes
end

return widths
