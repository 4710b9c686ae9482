-- DeepSeek-V3.2: MLA that reads the 2,048 positions its lightning indexer picks (DSA, report 2.1). Stored in
-- FP8 with a bf16 rotary key (656 B), index keys in FP8 (132 B).
local kv = require 'kvlab'

return kv.layout {
  name = 'DeepSeek-V3.2',
  kv.dsa * 61,
  widths = {
    hidden_size = 7168, num_attention_heads = 128, num_key_value_heads = 128, q_lora_rank = 1536,
    kv_lora_rank = 512, qk_nope_head_dim = 128, qk_rope_head_dim = 64, v_head_dim = 128,
    index_n_heads = 64, index_head_dim = 128, index_topk = 2048, index_rope = 'first', index_hadamard = true,
    intermediate_size = 18432, vocab_size = 129280, max_position_embeddings = 163840,
    rope_theta = 10000, rms_norm_eps = 1e-6,
    rope_scaling = { factor = 40, original_max_position_embeddings = 4096, beta_fast = 32, beta_slow = 1,
      mscale = 1.0, mscale_all_dim = 1.0 },
  },
  records = { main = 'v3.2-main', index = 'index-fp8', window = 'mla-bf16' },
}
