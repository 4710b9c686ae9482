-- test_damage.lua: the counters are real. Each stored byte is damaged in turn before a decode step: bytes of rows
-- that were counted as read must reach what the step computes, bytes of other rows must not.
--
-- What a step computes is listened to where the cache ends: the outputs of attention and the scores of the indexer.
-- (A damaged key may leave the selection as it was, and must not be asked to change the logits.)
local lu = require 'luaunit'
local check = require 'check'
local kv = require 'kvlab'
local kernels = require 'kvlab.kernels'

-- Records whose padding is known by its place. Bytes count from 1, the data row first, then the scale row.
kv.record { name = 'damage-fp8', page = { entries = 3, align = 32 }, fields = {
  { channels = 'rest', number = 'e4m3', scale_pad = 1,
    scale = { number = 'ue8m0', group = 2, rule = 'pow2_up', floor = { amax = 1e-4 } } },
  { channels = 'rotary', number = 'bf16' } } }
kv.record { name = 'damage-fp4', page = { entries = 2 }, fields = {
  { channels = 'rest', number = 'e2m1', pad = 2,
    scale = { number = 'e4m3', group = 4, rule = 'nearest', floor = { scale = 2 ^ -9 } } } } }

local WIDTHS <const> = { hidden_size = 16, num_attention_heads = 4, num_key_value_heads = 2, head_dim = 8,
  qk_nope_head_dim = 8, qk_rope_head_dim = 4, v_head_dim = 8, kv_lora_rank = 8, index_n_heads = 16, index_head_dim = 8,
  index_topk = 2, sliding_window = 3, vocab_size = 16, o_groups = 2, o_lora_rank = 4, q_lora_rank = 12 }

-- The bytes of an entry that are padding, by record and number of channels: the last of the scale row of damage-fp8
-- (6 or 8 of e4m3, bf16, scales, 1), the last two of the data row of damage-fp4.
local PADDING <const> = {
  ['damage-fp8'] = function(bytes) return { [bytes] = true } end,
  ['damage-fp4'] = function(_, channels) return { [channels // 2 + 1] = true, [channels // 2 + 2] = true } end,
}

-- Runs one step -> what was computed, a list of tensors, and which entries (from 1) of which layer's store each
-- layer read: read[role][layer] = { [entry] = true }, rows = how many, for each kind of counter.
local function listen(seq, token)
  local heard, read = {}, { main = {}, index = {}, window = {} }
  local rows = { selected = 0, window = 0, index = 0 }
  local layers = seq.model.layers
  local attend, index = kernels.attend, kernels.index
  local at = 1 -- the layer that computes: each attends once, after it has selected

  local function note(role, layer, kind, first, last, list)
    local own = read[role][layer] or {}
    read[role][layer] = own
    local ids = list and list:reshape(-1):totable() or {}
    if not list then
      for id = first, last do ids[#ids + 1] = id - 1 end
    end
    for _, id in ipairs(ids) do
      if id >= 0 then
        own[id + 1] = true
        rows[kind] = rows[kind] + 1
      end
    end
  end

  function kernels.attend(o)
    local s = layers[at].shape
    for _, source in ipairs(o.sources) do
      local last = #source.table
      if source.kind == 'window' then note('window', at, 'window', math.max(1, last - s.window + 1), last)
      else note('main', s.owner, 'selected', 1, last, source.list) end
    end
    heard[#heard + 1] = attend(o)
    at = at + 1
    return heard[#heard]
  end
  function kernels.index(o)
    note('index', layers[at].shape.owner, 'index', 1, #o.keys.table, o.pool)
    o.scores = true
    local found = index(o)
    heard[#heard + 1] = found.scores
    return found
  end
  local ok, problem = pcall(seq.decode, seq, token)
  kernels.attend, kernels.index = attend, index
  if not ok then error(problem, 0) end
  return heard, read, rows
end

local function same(a, b)
  for i, t in ipairs(a) do
    if not t:equal(b[i]) then return false end
  end
  return true
end

-- Damages every byte that a sequence of N tokens holds, before the step that follows -> rows read, rows not read.
local function damage_all(text, records, N)
  local m = kv.model(kv.layout(text), WIDTHS, { seed = 3 })
  local seq <close> = m:sequence { records = records, rollback = 1 }
  local ids = {}
  for t = 1, N do ids[t] = (7 * t + t * t) % 16 end
  seq:prefill(ids)
  local undamaged <close> = seq:fork()
  local expected, read, rows = listen(undamaged, 5)
  local counted = undamaged:reads()
  for kind, n in pairs(rows) do lu.assertEquals(counted[kind .. '_rows'], n, text .. ': rows of kind ' .. kind) end

  local touched, untouched = 0, 0
  local function damage(i, role, store)
    local table = store.table
    local bytes, channels = #table:bytes(table:first()), table:rows().shape[2]
    local padding = PADDING[records[role]] and PADDING[records[role]](bytes, channels) or {}
    for entry = table:first(), #table do
      local is_read = read[role][i] and read[role][i][entry] or false
      for byte = 1, bytes do
        table:poke(entry, byte, 0xff)
        local fork <close> = seq:fork()
        local changed = not same(expected, (listen(fork, 5)))
        table:poke(entry, byte, 0xff)
        lu.assertEquals(changed, is_read and not padding[byte], ('%s: layer %d, %s, entry %d of %d, byte %d of %d')
          :format(text, i, role, entry, #table, byte, bytes))
      end
      if is_read then touched = touched + 1 else untouched = untouched + 1 end
    end
  end
  for i, one in ipairs(seq.cells) do
    for _, role in ipairs { 'main', 'index', 'window' } do
      if one[role] and #one[role].table > 0 then damage(i, role, one[role]) end
    end
  end
  lu.assertTrue(same(expected, (listen(seq, 5))), 'every damage was undone')
  return touched, untouched
end

TestDamage = {}

local FP8 <const> = { main = 'damage-fp8', index = 'bf16', window = 'damage-fp8' }
local FP4 <const> = { main = 'damage-fp4', index = 'damage-fp4', window = 'bf16' }
local FP16 <const> = { main = 'fp16', index = 'fp16', window = 'fp16' } -- damage to a float32 may drown in rounding

function TestDamage:test_rows_that_are_read_and_only_these()
  for _, case in ipairs {
    { 'gqa', FP16, 5 }, { 'mla', FP8, 5 }, { 'dsa', FP8, 7 },
    { 'swa', FP8, 6 }, { 'hca/2', FP8, 7 }, { 'csa/2', FP4, 11 }, { 'csa/2', FP8, 8 },
    { 'full/1{pool=2x2,topk=3} reuse reindex{topk=2} reuse{window=none}', FP4, 8 },
    { 'full/2 | reuse full/1 reindex{topk=1}', FP8, 9 },
  } do
    local touched, untouched = damage_all(case[1], case[2], case[3])
    if os.getenv 'KVLAB_TEST_VERBOSE' then print(case[1], touched, untouched) end
    lu.assertTrue(touched > 0)
    if not case[1]:find('^gqa') and not case[1]:find('^mla') then lu.assertTrue(untouched > 0, case[1]) end
  end
end

check.main()
