-- shape.lua: one layer with its numbers filled in: what a row is, who owns it, which record holds it.
-- The place where layer, widths and records meet; counting, reports and running all ask here.
local layer = require 'kvlab.layer'
local opts = require 'kvlab.options'
local record = require 'kvlab.record'

local shape = {}

-- What a row is made of. A layer joins the rows of a shared cache with those of its own window in one softmax,
-- so where it says nothing itself, these are its owner's.
local OF_ROW = { num_key_value_heads = true, head_dim = true, v_head_dim = true, qk_rope_head_dim = true,
  kv_lora_rank = true }

-- get(name): the layer's own width or the model's; raises with the layer and what to give.
local function reader(L, i, widths)
  local l = L[i]
  local owner = l.cache == 'share' and L[L:owner(i)]
  return function(name, optional)
    local value = layer.get(l, name)
    if value == nil and owner and OF_ROW[name] then value = layer.get(owner, name) end
    if value == nil then value = widths[name] end
    if value == nil and not optional then
      error(('%s: the width %s is missing; give it with --widths %s=NUMBER or in the widths of the layout')
        :format(L:called(i), name, name), 0)
    end
    return value
  end
end

-- The columns of one row, in values: { channels =, rotary =, key =, value = } (semantics: MHA K and V of every
-- kv head; MLA latent and rotary key; V4 one K = V entry whose last channels are rotated).
local function row(form, get, at)
  if form == 'heads' then
    local heads = get 'num_attention_heads'
    local kv_heads = get 'num_key_value_heads'
    if kv_heads == 'all' then kv_heads = heads end
    if heads % kv_heads ~= 0 then
      error(('%s: num_key_value_heads = %d does not divide num_attention_heads = %d'):format(at, kv_heads, heads), 0)
    end
    local key = kv_heads * get 'head_dim'
    local value = kv_heads * (get('v_head_dim', true) or get 'head_dim')
    return { channels = key + value, rotary = 0, key = key, value = value, kv_heads = kv_heads }
  elseif form == 'latent' then
    local latent, rotary = get 'kv_lora_rank', get 'qk_rope_head_dim'
    return { channels = latent + rotary, rotary = rotary, key = latent + rotary, value = latent, kv_heads = 1 }
  end
  local width = get 'head_dim'
  local rotary = get('qk_rope_head_dim', true) or 0
  if rotary > width then
    error(('%s: qk_rope_head_dim = %d rotates more channels than head_dim = %d has'):format(at, rotary, width), 0)
  end
  return { channels = width, rotary = rotary, key = width, value = width, kv_heads = 1 }
end

local function check_groups(get, at)
  local groups, heads = get('o_groups', true), get('num_attention_heads', true)
  if groups and heads and heads % groups ~= 0 then
    error(('%s: o_groups = %d does not divide num_attention_heads = %d'):format(at, groups, heads), 0)
  end
end

-- shape.of(L, i, widths) -> what layer i is:
--   form, ratio, window (tokens, 0 = none), topk, pool
--   main   the row of the cache it reads, with owner = index; nil without a global cache
--   index  the key that it scores, when it selects for itself
--   local_kv the row of its window
function shape.of(L, i, widths)
  local l = L[i]
  local at = L:called(i)
  local get = reader(L, i, widths)
  local owner = L:owner(i)
  local out = { layer = l, at = at, get = get, form = L:form(i), owner = owner, owns = owner == i,
    window = L:window(i, widths), selector = L:selector(i), pool = L:pool(i) }
  check_groups(get, at)
  if owner then
    local own = L[owner]
    local of_owner = owner == i and get or reader(L, owner, widths)
    out.ratio = own.ratio
    out.main = row(L:form(owner), of_owner, L:called(owner))
    if own.keys then out.index = { channels = of_owner 'index_head_dim' } end
    local mine = owner == i and out.main or row(out.form, get, at)
    if mine.key ~= out.main.key or mine.value ~= out.main.value then
      error(('%s: its rows would be %d values wide, but it reads those of %s, which are %d; leave out the fields that '
        .. 'change them'):format(at, mine.channels, L:called(owner), out.main.channels), 0)
    end
    if mine.kv_heads ~= out.main.kv_heads then
      error(('%s: num_key_value_heads = %d, but the rows of %s have %d; leave it out'):format(at, mine.kv_heads,
        L:called(owner), out.main.kv_heads), 0)
    end
  end
  if out.index then
    out.index.rotary = math.min(get('qk_rope_head_dim', true) or 0, out.index.channels)
  end
  if l.select == 'topk' then out.topk = l.topk or get 'index_topk' end
  if out.window > 0 then out.local_kv = row(out.form, get, at) end
  return out
end

-- --- records ------------------------------------------------------------------------------------------
local ROLES = { main = 'record', index = 'index_record', window = 'window_record' }

-- shape.deployed(L, asked) -> what L is stored in unless somebody asks for something else: its own records, or those of
-- V4.1, with per-head rows and latents in bf16. `asked`: the option `records`; 'own' leaves V4.1's out.
function shape.deployed(L, asked)
  if L.records then return L.records end
  if asked == 'own' then return {} end -- bf16
  local r = require('kvlab.presets').load('v4.1-flash').records
  return { main = r.main, index = r.index, window = r.window, heads = 'bf16', latent = 'bf16' }
end

-- shape.asked(value) -> { main =, index =, window = }, or nil for 'deployed' and 'own': the option `records` of
-- counting and running, in which one record, or its name, stands for all three.
function shape.asked(value)
  if value == nil or value == 'deployed' or value == 'own' then return nil end
  if type(value) == 'string' or record.is(value) then return { main = value, index = value, window = value } end
  if type(value) ~= 'table' then
    error(("records = %s: expected 'deployed', 'own', a record or its name, or a table { main =, index =, window = }")
      :format(tostring(value)), 0)
  end
  opts.check(value, { 'main', 'index', 'window' }, 'records', 'role')
  return value
end

-- The record in which layer `i` (an owner for main and index) stores `role`. What was asked for comes first, then
-- the layer's own field, then the form's, then the role's.
local function record_of(s, role, asked, deployed)
  return record.of(asked and asked[role] or s.layer[ROLES[role]] or role ~= 'index' and deployed[s.form]
    or deployed[role] or 'bf16')
end

-- shape.plan(s, role, asked, deployed) -> the compiled record of one row: bytes, pages, encode and decode.
function shape.plan(s, role, asked, deployed)
  local dims = role == 'main' and s.main or role == 'index' and s.index or s.local_kv
  local found = record_of(s, role, asked, deployed)
  local ok, plan = pcall(found.plan, found, { channels = dims.channels, rotary = dims.rotary, key = dims.key,
    value = dims.value })
  if not ok then error(('%s: %s'):format(s.at, plan), 0) end
  return plan, found
end

-- shape.plans(s, asked, deployed) -> { main =, index =, window = } of what the layer keeps itself.
function shape.plans(s, asked, deployed)
  return { main = s.owns and (shape.plan(s, 'main', asked, deployed)) or nil,
    index = s.owns and s.index and (shape.plan(s, 'index', asked, deployed)) or nil,
    window = s.local_kv and (shape.plan(s, 'window', asked, deployed)) or nil }
end

return shape
