-- DeepSeek-V2-Lite: MLA without query compression (queries come straight from the hidden state).
local kv = require 'kvlab'

return kv.layout {
  name = 'DeepSeek-V2-Lite',
  kv.mla * 27,
  widths = {
    hidden_size = 2048, num_attention_heads = 16, num_key_value_heads = 16,
    kv_lora_rank = 512, qk_nope_head_dim = 128, qk_rope_head_dim = 64, v_head_dim = 128,
    intermediate_size = 10944, vocab_size = 102400, max_position_embeddings = 163840,
    rope_theta = 10000, rms_norm_eps = 1e-6,
    rope_scaling = { factor = 40, original_max_position_embeddings = 4096, beta_fast = 32, beta_slow = 1,
      mscale = 0.707, mscale_all_dim = 0.707 },
  },
  records = { main = 'mla-bf16', index = 'index-bf16', window = 'mla-bf16' },
}
