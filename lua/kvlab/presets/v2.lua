-- DeepSeek-V2: MLA in every layer. One latent of 512 and one rotary key of 64 per token (report 2.1).
local kv = require 'kvlab'

return kv.layout {
  name = 'DeepSeek-V2',
  kv.mla * 60,
  widths = {
    hidden_size = 5120, num_attention_heads = 128, num_key_value_heads = 128, q_lora_rank = 1536,
    kv_lora_rank = 512, qk_nope_head_dim = 128, qk_rope_head_dim = 64, v_head_dim = 128,
    intermediate_size = 12288, vocab_size = 102400, max_position_embeddings = 163840,
    rope_theta = 10000, rms_norm_eps = 1e-6,
    rope_scaling = { factor = 40, original_max_position_embeddings = 4096, beta_fast = 32, beta_slow = 1,
      mscale = 0.707, mscale_all_dim = 0.707 },
  },
  records = { main = 'mla-bf16', index = 'index-bf16', window = 'mla-bf16' },
}
