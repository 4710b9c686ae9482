-- The article's reference: a hypothetical MHA with the dimensions of DeepSeek-V2 (DeepSeek-V2 report 2.1,
-- Table 1), which stores every head's Key and Value in bf16.
local kv = require 'kvlab'

return kv.layout {
  name = 'MHA',
  kv.mha * 60,
  widths = {
    hidden_size = 5120, num_attention_heads = 128, num_key_value_heads = 128, head_dim = 128, v_head_dim = 128,
    intermediate_size = 12288, vocab_size = 102400, rope_theta = 10000, rms_norm_eps = 1e-6,
  },
  records = { main = 'heads-bf16', index = 'index-bf16', window = 'heads-bf16' },
}
