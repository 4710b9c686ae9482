-- random_layouts.lua: random valid layouts at toy widths, for tests that run them.
--
-- draw() -> a layout with records, widths. Every field of a layer may differ: kinds, ratios, windows, k, pools,
-- sharing by nearest or named owner, own and shared selections, records of each role, sources after the cut.
-- Numbers are drawn from math.random, so a test seeds it and prints the text of what fails.
local kv = require 'kvlab'

local random_layouts = {}

-- Records small enough for toy rows: a power of two for 2 values with the rotated ones in bf16, and FP4.
kv.record { name = 'toy-fp8', page = { entries = 3, align = 16 }, fields = {
  { channels = 'rest', number = 'e4m3',
    scale = { number = 'ue8m0', group = 2, rule = 'pow2_up', floor = { amax = 1e-4 } } },
  { channels = 'rotary', number = 'bf16' } } }
kv.record { name = 'toy-fp4', page = { entries = 5, align = 8 }, fields = {
  { channels = 'rest', number = 'e2m1',
    scale = { number = 'e4m3', group = 2, rule = 'nearest', floor = { scale = 2 ^ -9 } } } } }
kv.record { name = 'toy-f32', page = { entries = 2 }, fields = { { channels = 'rest', number = 'f32' } } }
random_layouts.records = { 'toy-f32', 'bf16', 'toy-fp8', 'toy-fp4' }

local function one(list) return list[math.random(#list)] end
local function maybe(p) return math.random() < p end
random_layouts.one, random_layouts.maybe = one, maybe

local function widths()
  local w = { hidden_size = 16, num_attention_heads = 4, num_key_value_heads = one { 1, 2, 4 }, head_dim = 8,
    v_head_dim = one { 4, 8 }, qk_nope_head_dim = 8, qk_rope_head_dim = one { 2, 4 }, kv_lora_rank = 8,
    index_n_heads = one { 1, 2, 8 }, index_head_dim = one { 4, 8 }, index_topk = math.random(1, 6),
    sliding_window = math.random(1, 6), vocab_size = 16, intermediate_size = 8, rms_norm_eps = one { 1e-6, 1e-20 },
    query_head_norm = maybe(0.5), index_hadamard = maybe(0.5), index_rope = one { 'first', 'last' },
    rope_interleave = maybe(0.7), compress_rope_theta = one { 160000, 100 } }
  if maybe(0.6) then w.q_lora_rank = 12 end
  if maybe(0.6) then w.o_groups, w.o_lora_rank = one { 1, 2, 4 }, 4 end
  if maybe(0.4) then
    w.rope_scaling = { factor = 16, original_max_position_embeddings = 64, beta_fast = 32, beta_slow = 1,
      mscale_all_dim = one { 0.707, 1 } }
  end
  return w
end

local OWNERS = { 'mha', 'mqa', 'gqa', 'mla', 'dsa', 'hca', 'csa', 'csa', 'full', 'full', 'full', 'swa', 'swa' }
local FORM = { mha = 'heads', mqa = 'heads', gqa = 'heads', mla = 'latent', dsa = 'latent' }

-- draw(records) -> layout, widths. `records`: names to draw the records of rows from; what a layer leaves open
-- is among the records of the layout.
function random_layouts.draw(records)
  records = records or random_layouts.records
  local w = widths()
  local n = math.random(1, 5)
  local cut = n > 1 and maybe(0.35) and math.random(1, n - 1) or nil
  local texts, owners, latest = {}, {}, {}
  local last_owner
  for i = 1, n do
    local kind, ratio, fields = nil, nil, {}
    local function put(...) fields[#fields + 1] = (...):format(select(2, ...)) end
    local function window(chance)
      if maybe(chance) then put('window=%s', one { 1, 2, 3, 5, 8 }) return true end
    end
    if last_owner and maybe(0.5) then -- a sharing layer
      local o = last_owner
      local named = one(owners)
      if named.name and maybe(0.4) then
        o = named
        put('of=%s', o.name)
      end
      if o.keys and maybe(0.5) then
        kind = 'reindex'
        if maybe(0.5) then put('topk=%d', math.random(1, 8)) end
        if o.pool and maybe(0.2) then put 'pool=none' end
        latest[o.ratio] = true
      elseif latest[o.ratio] then
        kind = 'reuse'
        if maybe(0.15) then put 'select=all' end
      end
      if kind then
        local own_window = maybe(0.15) and o.window and 'none' or window(0.25) and 'own' or nil
        if own_window == 'none' then put 'window=none' end
        if (own_window == 'own' or o.window and own_window ~= 'none') and maybe(0.5) then
          put('window_record=%s', one(records))
        end
      else
        fields = {}
      end
    end
    if not kind then
      kind = one(OWNERS)
      local form = FORM[kind] or 'entry'
      local o = { window = form == 'entry' }
      if kind == 'swa' then
        if maybe(0.4) then put('form=%s', one { 'heads', 'latent' }) end
        window(0.4)
      else
        ratio = kind == 'hca' and one { 2, 3, 5, 8 } or kind == 'csa' and one { 2, 3, 4 } or kind == 'full'
          and one { 1, 1, 2, 3 } or kind ~= 'dsa' and maybe(0.25) and one { 2, 3 } or 1
        o.ratio = ratio
        if window(0.3) then o.window = true end
        local topk = kind == 'dsa' or kind == 'csa' or kind == 'full'
        if not topk and maybe(0.25) then
          topk = true
          put 'select=topk'
          put('keys=%s', ratio > 1 and one(form == 'heads' and { 'compressor' } or { 'compressor', 'entry' })
            or one(form == 'heads' and { 'input', 'compressor' } or { 'input', 'compressor', 'entry' }))
        elseif kind == 'full' and maybe(0.3) then
          put('keys=%s', ratio == 1 and one { 'input', 'compressor' } or 'compressor')
        elseif topk and latest[ratio] and maybe(0.15) then
          topk = false
          put 'select=share'
        end
        if topk then
          o.keys = true
          if maybe(0.4) then put('topk=%d', math.random(1, 8)) end
          if maybe(0.4) then
            o.pool = true
            put('pool=%dx%d', math.random(1, 3), math.random(1, 4))
          end
          if maybe(0.7) then put('index_record=%s', one(records)) end
        end
        if form == 'entry' and ratio > 1 and kind ~= 'csa' and maybe(0.3) then put 'overlap=true' end
        if ratio > 1 and maybe(0.3) then put('bias=%s', one { 'true', 'false' }) end
        put('record=%s', one(records))
        if maybe(0.3) then
          o.name = 'n' .. i
          put('name=%s', o.name)
        end
        if cut and i > cut and maybe(0.4) then put('source=%s', one { 'encoder', 'input' }) end
        latest[ratio] = true
        last_owner = o
        owners[#owners + 1] = o
      end
      if kind == 'swa' or o.window then put('window_record=%s', one(records)) end
    end
    local slash = ratio and '/' .. ratio or ''
    texts[i] = kind .. slash .. (#fields > 0 and '{' .. table.concat(fields, ',') .. '}' or '')
    if i == cut then texts[i] = texts[i] .. ' |' end
  end
  local L = kv.layout(table.concat(texts, ' '))
  return L:labelled { widths = w, records = { main = one(records), index = one(records), window = one(records) } }, w
end

return random_layouts
