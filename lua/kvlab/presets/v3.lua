-- DeepSeek-V3: the MLA of V2 in 61 layers of width 7168.
local kv = require 'kvlab'

return kv.layout {
  name = 'DeepSeek-V3',
  kv.mla * 61,
  widths = {
    hidden_size = 7168, num_attention_heads = 128, num_key_value_heads = 128, q_lora_rank = 1536,
    kv_lora_rank = 512, qk_nope_head_dim = 128, qk_rope_head_dim = 64, v_head_dim = 128,
    intermediate_size = 18432, vocab_size = 129280, max_position_embeddings = 163840,
    rope_theta = 10000, rms_norm_eps = 1e-6,
    rope_scaling = { factor = 40, original_max_position_embeddings = 4096, beta_fast = 32, beta_slow = 1,
      mscale = 1.0, mscale_all_dim = 1.0 },
  },
  records = { main = 'mla-bf16', index = 'index-bf16', window = 'mla-bf16' },
}
