-- DeepSeek-V4-Pro: two HCA layers, then CSA (top-1024) and HCA in turn, wider than Flash (config.json).
local kv = require 'kvlab'

return kv.layout {
  name = 'DeepSeek-V4-Pro',
  kv.hca * 2, kv.group { kv.csa, kv.hca } * 29, kv.csa,
  widths = {
    hidden_size = 7168, num_attention_heads = 128, num_key_value_heads = 1, head_dim = 512, qk_rope_head_dim = 64,
    q_lora_rank = 1536, o_groups = 16, o_lora_rank = 1024, sliding_window = 128,
    index_n_heads = 64, index_head_dim = 128, index_topk = 1024, index_hadamard = true, query_head_norm = true,
    vocab_size = 129280, max_position_embeddings = 1048576,
    rope_theta = 10000, compress_rope_theta = 160000, rms_norm_eps = 1e-6,
    rope_scaling = { factor = 16, original_max_position_embeddings = 65536, beta_fast = 32, beta_slow = 1 },
  },
  records = { main = 'v4-main', index = 'index-fp4', window = 'v4-main' },
}
