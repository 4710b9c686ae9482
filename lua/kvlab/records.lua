-- records.lua: the records of real engines, as data. A user's record is written the same way.
--
-- channels: a count, or 'rest' (what the other fields leave), 'rotary', 'key', 'value' (widths of the layer).
-- natural: the widths that plan() takes when it is given none. Bytes are nowhere: they are derived.
-- Sources are named in docs/records.md, which also says where engines differ.

local bf16 = { channels = 'rest', number = 'bf16' }
local rotary_bf16 = { channels = 'rotary', number = 'bf16' }

return {
  { name = 'f32', about = 'plain float32', source = 'IEEE 754 binary32',
    fields = { { channels = 'rest', number = 'f32' } } },
  { name = 'bf16', about = 'plain bfloat16', source = 'bfloat16',
    fields = { bf16 } },
  { name = 'fp16', about = 'plain half precision', source = 'IEEE 754 binary16',
    fields = { { channels = 'rest', number = 'fp16' } } },

  { name = 'heads-bf16', about = 'keys, then values of all KV heads', source = 'MHA, MQA and GQA caches',
    natural = { key = 128 * 128, value = 128 * 128 },
    fields = { { channels = 'key', number = 'bf16' }, { channels = 'value', number = 'bf16' } } },
  { name = 'mla-bf16', about = 'latent, then rotary key', source = 'DeepSeek-V2, V3',
    natural = { channels = 576, rotary = 64 },
    fields = { bf16, rotary_bf16 } },
  { name = 'v4-bf16', about = 'one K = V vector', source = 'DeepSeek-V4 in BF16',
    natural = { channels = 512, rotary = 64 },
    fields = { bf16 } },
  { name = 'index-bf16', about = 'index key', source = 'DeepSeek-V3.2 and V4 in BF16',
    natural = { channels = 128 },
    fields = { bf16 } },

  { name = 'v3.2-main', about = 'latent in FP8 with raw FP32 scales, rotary key in BF16',
    source = 'vLLM fp8_ds_mla, FlashMLA',
    natural = { channels = 576, rotary = 64 },
    fields = {
      { channels = 'rest', number = 'e4m3', place = 'after',
        scale = { number = 'f32', group = 128, rule = 'raw', floor = { scale = 0x1p-126 } } },
      rotary_bf16,
    } },
  { name = 'v3.2-main-pow2', about = 'v3.2-main with powers of two as scales, safe for every reader',
    source = 'FlashMLA tests',
    natural = { channels = 576, rotary = 64 },
    fields = {
      { channels = 'rest', number = 'e4m3', place = 'after',
        scale = { number = 'f32', group = 128, rule = 'pow2_up', floor = { scale = 1e-4 } } },
      rotary_bf16,
    } },
  { name = 'index-fp8', about = 'index key in FP8 with one FP32 scale', source = 'DeepGEMM, SGLang, vLLM',
    natural = { channels = 128 },
    fields = {
      { channels = 'rest', number = 'e4m3',
        scale = { number = 'f32', rule = 'raw', floor = { amax = 1e-4 } } },
    } },

  { name = 'v4-main', about = 'FP8 with a scale per 64, rotated part in BF16',
    source = 'FlashMLA, SGLang, vLLM',
    natural = { channels = 512, rotary = 64 },
    fields = {
      { channels = 'rest', number = 'e4m3', scale_pad = 1,
        scale = { number = 'ue8m0', group = 64, rule = 'pow2_up', floor = { amax = 1e-4 } } },
      rotary_bf16,
    },
    page = { entries = 64, align = 576 } },
  { name = 'v4-main-fp8', about = 'everything in FP8, the rotated part too, scale 1',
    source = 'TensorRT-LLM and the SGLang trtllm backend',
    natural = { channels = 512, rotary = 64 },
    fields = { { channels = 'rest', number = 'e4m3' } } },
  { name = 'v4.1-local', about = 'FP8 with a scale per 32, the rotated part too', source = 'SGLang',
    natural = { channels = 512, rotary = 64 },
    fields = {
      { channels = 'rest', number = 'e4m3',
        scale = { number = 'ue8m0', group = 32, rule = 'pow2_up', floor = { scale = 1e-4 } } },
    },
    page = { entries = 64, align = 512 } },
  { name = 'v4.1-main', about = 'FP4 with an FP8 scale per 16, the rotated part too',
    source = 'SGLang, vLLM nvfp4_ds_mla',
    natural = { channels = 512, rotary = 64 },
    fields = {
      { channels = 'rest', number = 'e2m1',
        scale = { number = 'e4m3', group = 16, rule = 'nearest', floor = { scale = 0x1p-9 } } },
    },
    page = { entries = 64, align = 256 } },
  { name = 'index-fp4', about = 'index key in FP4 with a scale per 32',
    source = 'DeepGEMM; floor of the reference code and vLLM',
    natural = { channels = 128 },
    fields = {
      { channels = 'rest', number = 'e2m1',
        scale = { number = 'ue8m0', group = 32, rule = 'pow2_up', floor = { amax = 6 * 0x1p-126 } } },
    } },

  { name = 'q8_0', about = '32 signed bytes and an FP16 scale', source = 'ggml',
    fields = {
      { channels = 'rest', number = 'int8', ties = 'away', place = 'before', block = 32,
        scale = { number = 'fp16', group = 32, rule = 'raw', quotient = 'reciprocal' } },
    } },
  { name = 'q4_0', about = '32 signed nibbles and an FP16 scale', source = 'ggml',
    fields = {
      { channels = 'rest', number = 'int4', ties = 'up', place = 'before', block = 32, order = 'halves',
        scale = { number = 'fp16', group = 32, rule = 'signed', quotient = 'reciprocal' } },
    } },
  { name = 'q4_1', about = '32 nibbles, an FP16 scale and an FP16 minimum', source = 'ggml',
    fields = {
      { channels = 'rest', number = 'uint4', ties = 'up', place = 'before', block = 32, order = 'halves',
        scale = { number = 'fp16', group = 32, rule = 'range', quotient = 'reciprocal' } },
    } },
  { name = 'mxfp4', about = '32 FP4 values and a power of two', source = 'ggml, OCP MX',
    fields = {
      { channels = 'rest', number = 'e2m1', ties = 'down', place = 'before', block = 32, order = 'halves',
        scale = { number = 'ue8m0', group = 32, rule = 'ocp_floor' } },
    } },
  { name = 'nvfp4', about = '64 FP4 values and four unsigned FP8 scales', source = 'ggml',
    fields = {
      { channels = 'rest', number = 'e2m1', ties = 'down', place = 'before', block = 64, order = 'halves',
        scale = { number = 'ue4m3', group = 16, rule = 'nearest' } },
    } },
}
