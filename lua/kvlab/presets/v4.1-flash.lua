-- DeepSeek-V4.1-Flash: four Full layers own the global KV of all 40 layers (report 2.2-2.4, 4.2.1). The decoder
-- has one owner whose entries are projected from the encoder's output; its Reindex layers search only the
-- candidate pool that the owner builds. Entries in FP4 (288 B), local KV in FP8 (528 B), keys in FP4 (68 B).
local kv = require 'kvlab'
local swa, full, reindex, reuse, group = kv.swa, kv.full, kv.reindex, kv.reuse, kv.group

return kv.layout {
  name = 'DeepSeek-V4.1-Flash',
  encoder = { swa * 2, group { full { ratio = 2 }, reuse * 5 } * 3 },
  decoder = {
    group { full { ratio = 1, pool = { blocks = 2048, block = 8 } }, reuse * 3 },
    group { reindex, reuse * 3 } * 4,
  },
  widths = {
    hidden_size = 5120, num_attention_heads = 64, num_key_value_heads = 1, head_dim = 512, qk_rope_head_dim = 64,
    q_lora_rank = 1280, o_groups = 8, o_lora_rank = 1024, sliding_window = 128,
    index_n_heads = 32, index_head_dim = 128, index_topk = 512,
    vocab_size = 129280, max_position_embeddings = 1048576,
    rope_theta = 10000, compress_rope_theta = 160000, rms_norm_eps = 1e-20,
    rope_scaling = { factor = 16, original_max_position_embeddings = 65536, beta_fast = 32, beta_slow = 1 },
  },
  records = { main = 'v4.1-main', index = 'index-fp4', window = 'v4.1-local' },
}
