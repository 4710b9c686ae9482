-- What a layer is stored in is decided in one place: counting and running agree for layouts without records,
-- for records that were asked for, and for the records of single layers.
local lu = require 'luaunit'
local check = require 'check'
local kv = require 'kvlab'

local widths = { hidden_size = 16, num_attention_heads = 2, num_key_value_heads = 1, head_dim = 32, v_head_dim = 32,
  qk_nope_head_dim = 16, qk_rope_head_dim = 16, kv_lora_rank = 32, sliding_window = 4, vocab_size = 10,
  index_n_heads = 2, index_head_dim = 32, index_topk = 3 }

TestShape = {}

-- counted(text, records) = what sequences hold and read, in bytes.
local function agrees(text, records)
  local L = kv.layout { kv.layout(text), widths = widths }
  local seq <close> = kv.model(L):sequence { records = records }
  seq:prefill { 1, 2, 3, 4, 5, 6, 7, 8, 9 }
  seq:reset()
  seq:decode(0)
  local c, reads = kv.count(L, { context = 10, records = records }), seq:reads()
  local about = text .. ' ' .. tostring(records)
  lu.assertEquals(seq:stats().stored_bytes, c.store.total_bytes:tonumber(), about)
  for _, name in ipairs { 'selected_bytes', 'window_bytes', 'index_bytes' } do
    lu.assertEquals(reads[name], c.read[name]:tonumber(), about .. ' ' .. name)
  end
end

function TestShape:test_records_of_counting_and_running()
  for _, text in ipairs { 'mla reuse', 'gqa*2', 'mha{window=3} swa', 'dsa', 'full/2 reindex reuse',
    'hca/4{record=bf16} swa{window_record=f32}' } do
    for _, records in ipairs { 'deployed', 'bf16', kv.record_named 'f32', { main = 'f32' } } do
      agrees(text, records)
    end
    agrees(text, nil)
  end
end

function TestShape:test_records_that_are_none()
  local m = kv.model(kv.layout { kv.mla, widths = widths })
  local function fails(parts, records) check.fails(parts, m.sequence, m, { records = records }) end
  fails({ 'records = 3', 'deployed' }, 3)
  fails({ "'mian'", "'main'" }, { mian = 'bf16' })
  fails({ "'bf17'", 'kv.records()' }, 'bf17')
  fails({ 'layer 1', "'v3.2-main'" }, { main = 'v3.2-main' })
end

check.main()
