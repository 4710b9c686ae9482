-- kv_cases.lua: KV-cache sizes that engines, calculators and papers have published, with the facts behind them.
--
-- Each row: id, url, the layout, its widths (heads = query heads; the number of key/value heads when it is not
-- given, which the bytes do not depend on), the record of all its rows, the context, and what was published:
--   total    bytes of one request      slope  bytes per token      fixed  bytes of the windows
--   keys     bytes of all index keys   read   bytes that one step reads      positions  rows that one step reads
--   ratio    the slope of `against` over this slope, rounded to `digits`
-- `times` multiplies (requests of a batch). Windows in cells are what the engine allocates, padded as it prints.
--
-- Not expressible, because it is no KV cache of tokens: recurrent and convolution state (Mamba, gated delta net,
-- KDA, LFM2: state of a fixed size that no token adds to), a second transposed copy of the latent (ik_llama.cpp
-- mla=1), rows of local KV that several layers share (Gemma-3n's windows), and pages or pools of an engine.
-- luacheck: no max line length
local function gqa(n_layer, kv_heads, head_dim, more)
  local widths = { num_attention_heads = kv_heads, num_key_value_heads = kv_heads, head_dim = head_dim }
  for name, value in pairs(more or {}) do widths[name] = value end
  return ('gqa*%d'):format(n_layer), widths
end

local MLA = { kv_lora_rank = 512, qk_rope_head_dim = 64 }
local DSA = { kv_lora_rank = 512, qk_rope_head_dim = 64, index_head_dim = 128, index_topk = 2048 }

local cases = {}
local function dense(id, url, n_layer, kv_heads, head_dim, record, context, total, more)
  local layout, widths = gqa(n_layer, kv_heads, head_dim, more)
  cases[#cases + 1] = { id = id, url = url, layout = layout, widths = widths, record = record, context = context,
    total = total }
end
local function case(row) cases[#cases + 1] = row end

local IK, LC = 'https://github.com/ikawrakow/ik_llama.cpp/', 'https://github.com/ggml-org/llama.cpp/'

-- --- dense attention: MHA, GQA, MQA ------------------------------------------------------------------------
dense('bitnet-2b', IK .. 'issues/388', 30, 5, 128, 'fp16', 4096, 314572800)
dense('falcon-40b-f32', 'https://github.com/ggml-org/ggml/pull/231', 60, 8, 64, 'f32', 2048, 503316480)
dense('gemma3-27b-without-swa', IK .. 'discussions/334', 62, 16, 128, 'fp16', 32768, 16642998272)
dense('gemma3-27b-without-swa-128k', IK .. 'issues/539', 62, 16, 128, 'fp16', 131072, 66571993088)
dense('glm4.5-air-with-mtp', LC .. 'pull/14939', 47, 8, 128, 'fp16', 4096, 788529152)
dense('glm-z1-rumination', IK .. 'pull/333', 61, 8, 128, 'fp16', 8192, 2046820352)
dense('granite4-1b-speech', LC .. 'pull/22101', 40, 4, 128, 'fp16', 4096, 335544320)
dense('llama2-13b', IK .. 'issues/328', 40, 40, 128, 'fp16', 512, 419430400)
dense('llama2-7b-class', 'https://github.com/NVIDIA/TensorRT-LLM/issues/1400', 32, 32, 128, 'fp16', 132608, 69524783104)
dense('llama3.1-8b', IK .. 'discussions/562', 32, 8, 128, 'fp16', 16384, 2147483648)
dense('minimax-m2-fp8', 'https://github.com/alvarobartt/hf-mem/blob/main/README.md', 62, 8, 128, 'v4-main-fp8', 196608,
  24964497408)
dense('phi3-mini-128k', LC .. 'issues/6849', 32, 32, 96, 'fp16', 131328, 51640270848)
dense('qwen2.5-1.5b', 'https://github.com/GeniePod/genie-claw/issues/410', 28, 2, 128, 'fp16', 32768, 939524096)
dense('qwen2.5-3b', 'https://github.com/SciSharp/LLamaSharp/issues/1099', 36, 2, 128, 'fp16', 4096, 150994944)
dense('qwen3-32b', IK .. 'issues/539', 64, 8, 128, 'fp16', 40960, 10737418240)
dense('qwen3-30b-fp8', 'https://github.com/vllm-project/vllm/issues/25350', 48, 4, 128, 'v4-main-fp8', 230528, 11330912256)
dense('qwen3.6-27b-attention-layers', 'https://github.com/lmstudio-ai/lmstudio-bug-tracker/issues/1862', 16, 4, 256,
  'fp16', 262144, 17179869184)
case { id = 'gpt2-xl', url = 'https://paper-digest.app/en/papers/hn_47558733', layout = 'mha*48',
  widths = { num_attention_heads = 25, head_dim = 64 }, record = 'fp16', context = 1, slope = '307200' }

-- --- keys and values of different width --------------------------------------------------------------------
case { id = 'deepseek-v2-lite-per-head', url = IK .. 'issues/230', layout = 'mha*27',
  widths = { num_attention_heads = 16, head_dim = 192, v_head_dim = 128 }, record = 'fp16', context = 512,
  total = 141557760 }
case { id = 'deepseek-r1-per-head', url = IK .. 'discussions/285', layout = 'mha*61',
  widths = { num_attention_heads = 128, head_dim = 192, v_head_dim = 128 }, record = 'fp16', context = 512,
  total = 2558525440 }
dense('mimo-v2-flash-window-pool-tp4', 'https://github.com/sgl-project/sglang/pull/15464', 39, 2, 192, 'bf16', 1496958,
  74728143360, { v_head_dim = 128 })

-- --- quantised rows (ggml) ---------------------------------------------------------------------------------
dense('magidonia-24b-q8_0', LC .. 'pull/21551', 40, 8, 128, 'q8_0', 6656, 579338240)
dense('qwen2.5-32b-q8_0', LC .. 'issues/11200', 64, 8, 128, 'q8_0', 32768, 4563402752)
dense('qwen3-0.6b-q8_0', IK .. 'blob/main/docs/parameters.md', 28, 8, 128, 'q8_0', 1024, 62390272)
dense('qwen3-235b-q8_0', IK .. 'discussions/357', 94, 4, 128, 'q8_0', 32768, 3351248896)
dense('qwen3-235b-q4_0', IK .. 'issues/425', 94, 4, 128, 'q4_0', 32768, 1774190592)
-- K and V in different formats: records of the user's own (test_cases.lua makes them).
dense('qwen3-235b-q8_0-f16', IK .. 'issues/389', 94, 4, 128, 'k-q8_0-v-fp16', 8192, 1207435264)
dense('qwen3-30b-q8_0-q4_0', IK .. 'blob/main/docs/build.md', 48, 4, 128, 'k-q8_0-v-q4_0', 64000, 2555904000)
case { id = 'deepseek-r1-per-head-q8_0-f16', url = IK .. 'issues/389', layout = 'mha*61',
  widths = { num_attention_heads = 128, head_dim = 192, v_head_dim = 128 }, record = 'k-q8_0-v-fp16', context = 8192,
  total = 29423042560 }
case { id = 'deepseek-v2-lite-q8_KV', url = IK .. 'pull/240', layout = 'mha*27',
  widths = { num_attention_heads = 16, head_dim = 192, v_head_dim = 128 }, record = 'k-q8_KV-v-fp16', context = 65536,
  total = 12910067712 }

-- --- sliding windows beside full layers --------------------------------------------------------------------
local GPT_OSS = { num_attention_heads = 64, num_key_value_heads = 8, head_dim = 64 }
case { id = 'gpt-oss-20b-batch-32', url = 'https://github.com/alvarobartt/hf-mem/pull/70',
  layout = '[swa{form=heads,window=128} gqa]*12', widths = GPT_OSS, record = 'bf16', context = 8192, times = 32,
  total = 6543114240 }
case { id = 'gpt-oss-20b-full-batch-32', url = 'https://github.com/alvarobartt/hf-mem/pull/70',
  layout = 'gqa*24', widths = GPT_OSS, record = 'bf16', context = 8192, times = 32, total = 12884901888 }
case { id = 'gpt-oss-20b-768-cells', url = IK .. 'issues/822', layout = '[swa{form=heads,window=768} gqa]*12',
  widths = GPT_OSS, record = 'fp16', context = 131072, total = 3240099840 }
case { id = 'gpt-oss-20b-mlx-16k', url = 'https://github.com/sgl-project/sglang/pull/30091',
  layout = '[swa{form=heads,window=256} gqa]*12', widths = GPT_OSS, record = 'bf16', context = 16384, total = 408944640 }
case { id = 'gpt-oss-20b-mlx-4k', url = 'https://github.com/sgl-project/sglang/pull/30091',
  layout = '[swa{form=heads,window=256} gqa]*12', widths = GPT_OSS, record = 'bf16', context = 4096, total = 106954752 }
case { id = 'gpt-oss-20b-windows', url = 'unit tests of another calculator', layout = '[swa{form=heads,window=128} gqa]*12',
  widths = GPT_OSS, record = 'fp16', context = 4096, fixed = 3145728 }
case { id = 'gemma3-1b', url = 'https://github.com/lablup/mlxcel/pull/172',
  layout = '[swa{form=heads,window=512}*5 gqa]*4 swa{form=heads,window=512}*2',
  widths = { num_attention_heads = 4, num_key_value_heads = 1, head_dim = 256 }, record = 'bf16', context = 32768,
  total = 145752064 }
case { id = 'gemma3-27b', url = 'https://github.com/unslothai/unsloth/pull/4757',
  layout = '[swa{form=heads,window=1024}*5 gqa]*10 swa{form=heads,window=1024}*2',
  widths = { num_attention_heads = 32, num_key_value_heads = 16, head_dim = 128 }, record = 'fp16', context = 131072,
  total = 11173625856, slope = '81920' }
case { id = 'gemma3-270m-1024-cells', url = 'https://github.com/unslothai/unsloth/blob/main/studio/backend/tests/test_kv_cache_estimation.py',
  layout = '[swa{form=heads,window=1024}*5 gqa]*3', widths = { num_attention_heads = 4, num_key_value_heads = 1, head_dim = 256 },
  record = 'fp16', context = 8192, total = 40894464 }
case { id = 'gemma4-26b-1536-cells', url = 'https://github.com/ollama/ollama/pull/16958',
  layout = '[swa{form=heads,window=1536,num_key_value_heads=8,head_dim=256}*5 gqa{num_key_value_heads=2,head_dim=512}]*5',
  widths = { num_attention_heads = 16 }, record = 'fp16', context = 8192, total = 482344960 }
case { id = 'gemma4-31b-one-token', url = 'https://github.com/redhat-performance/configiq/issues/112',
  layout = '[swa{form=heads,window=1024,num_key_value_heads=16,head_dim=256}*5 gqa{num_key_value_heads=4,head_dim=512}]*10',
  widths = { num_attention_heads = 32 }, record = 'bf16', context = 1, total = 901120 }
case { id = 'trinity-nano', url = 'unit tests of another calculator', layout = '[swa{form=heads,window=2048}*3 gqa]*14',
  widths = { num_attention_heads = 8, num_key_value_heads = 2, head_dim = 128 }, record = 'fp16', context = 4096,
  fixed = 88080384, slope = '14336' }
case { id = 'gpt-oss-overcharge', url = 'https://github.com/ai-dynamo/aiconfigurator/pull/1539',
  layout = '[swa{form=heads,window=128} gqa]*18', widths = GPT_OSS, record = 'bf16', context = 65536,
  ratio = '1.9961', digits = 4, against = 'gqa*36', by = 'total' }

-- --- layers that share ------------------------------------------------------------------------------------
case { id = 'hunyuan-large-cla', url = 'self-test of another calculator', layout = '[gqa reuse]*32',
  widths = { num_attention_heads = 80, num_key_value_heads = 8, head_dim = 80 }, record = 'fp16', context = 4096,
  total = 335544320 }
case { id = 'gemma3n-e4b-global-layers', url = LC .. 'issues/14604', layout = '[swa{form=heads,window=512}*4 gqa]*4 reuse*3',
  widths = { num_attention_heads = 8, num_key_value_heads = 2, head_dim = 256 }, record = 'fp16', context = 32768,
  slope = tostring(268435456 // 32768) }
case { id = 'glm5.2-shared-indexers', url = 'https://github.com/sgl-project/sglang/pull/30310',
  layout = 'dsa*3 [mla{select=share}*3 dsa]*18 mla{select=share}*3', widths = DSA,
  records = { main = 'v4-main-fp8', index = 'index-fp8' }, context = 1, slope = tostring(78 * 576 + 21 * 132),
  ratio = '1.157736', digits = 6, against = 'dsa*78' }
case { id = 'glm5.2-index-keys', url = IK .. 'pull/2093', layout = 'dsa*3 [mla{select=share}*3 dsa]*18 mla{select=share}*3',
  widths = DSA, record = 'fp16', context = 131072, keys = 704643072 }

-- --- latents and selection ----------------------------------------------------------------------------------
case { id = 'deepseek-v2.5', url = IK .. 'pull/386', layout = 'mla*60', widths = MLA, record = 'fp16', context = 32768,
  total = 2264924160 }
case { id = 'deepseek-v2.5-q8_0', url = IK .. 'pull/400', layout = 'mla*60', widths = MLA, record = 'q8_0',
  context = 32768, total = 1203240960 }
case { id = 'deepseek-v3.1', url = 'https://github.com/unslothai/unsloth/pull/4757', layout = 'mla*61', widths = MLA,
  record = 'fp16', context = 163840, total = 11513364480 }
case { id = 'glm-5-with-mtp', url = 'https://github.com/unslothai/unsloth/pull/4757', layout = 'mla*79', widths = MLA,
  record = 'fp16', context = 202752, total = 18452054016 }
case { id = 'glm4.7-flash', url = 'public log of SGLang', layout = 'mla*47', widths = MLA, record = 'bf16',
  context = 383872, total = 20784365568 }
case { id = 'kimi-k2-thinking', url = 'https://github.com/vllm-project/recipes/blob/main/moonshotai/Kimi-K2-Think.md',
  layout = 'mla*61', widths = MLA, record = 'bf16', context = 715072, total = 50249539584 }
case { id = 'kimi-k3-latent-layers', url = 'https://github.com/CambrianTech/continuum/pull/2107', layout = 'mla*24',
  widths = MLA, record = 'bf16', context = 1, slope = '27648' }
case { id = 'deepseek-v3.2-bf16-1m', url = 'https://24-ai.news/en/vijest/2026-04-24/vllm-deepseek-v4-kv-cache-kompresija/',
  preset = 'v3.2', record = 'bf16', context = 1048576, total = 90060095488 }
case { id = 'deepseek-v3.2-pool', url = 'https://github.com/sgl-project/sglang/pull/11309', preset = 'v3.2',
  context = 1462784 + 64, total = 70316177664 }
case { id = 'glm5-fp4-index', url = 'https://github.com/sgl-project/sglang/pull/30546', layout = 'dsa*78', widths = DSA,
  records = { main = 'v4-main-fp8', index = 'index-fp4' }, context = 1, slope = tostring(78 * (576 + 68)) }
case { id = 'deepseek-v2-reads', url = 'article', preset = 'v2', context = 131072, read = 9059696640 }

-- --- compressed entries -------------------------------------------------------------------------------------
case { id = 'deepseek-v4-pro-bf16-1m', url = 'https://24-ai.news/en/vijest/2026-04-24/vllm-deepseek-v4-kv-cache-kompresija/',
  preset = 'v4-pro', record = 'bf16', context = 1048576, total = 10334371840 }
case { id = 'deepseek-v4-flash', url = 'article', preset = 'v4-flash', context = 131072, slope = '14057/4', read = 68246528 }
case { id = 'deepseek-v4-flash-positions', url = 'https://github.com/GitM-Labs/runtime/pull/81', preset = 'v4-flash',
  context = 65536, positions = 26496 }
case { id = 'deepseek-v4-flash-4352-cells', url = LC .. 'issues/27680', layout = 'swa{window=4352}*43',
  widths = { head_dim = 512 }, record = 'bf16', context = 64000, fixed = 191627264, total = 191627264 }
case { id = 'deepseek-v4.1-flash', url = 'https://github.com/vllm-project/recipes/pull/959', preset = 'v4.1-flash',
  context = 131072, slope = '890', read = 35045376 }

return cases
