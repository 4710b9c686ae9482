---@meta
local number = {}

---@within kv.number
--- The names of all number formats: f32, bf16, fp16, e4m3 (the "fn" kind), e5m2, e2m1, ue8m0, ue4m3 (ggml's
--- unsigned scale), int8, int4 (excess 8), uint4.
---
--- Example:
---   #kv.number.names()  --> 11
---@return string[] names
function number.names() end

--- What is known of a number: name, label (as papers write it), bits, bytes (0.5 for 4 bits), exponent_bits,
--- mantissa_bits, bias, max and min (largest and smallest finite value), min_normal, min_subnormal (0 where there
--- is none), has_inf, has_nan.
---
--- Errors: an unknown name, with the nearest one. Source: docs/records.md, numbers.
--- Example:
---   kv.number.info('e4m3').max  --> 448.0
---   kv.number.info('e2m1').bytes  --> 0.5
---@param name string  one of kv.number.names()
---@return table info
function number.info(name) end

--- The code of the value nearest to x, which is rounded to float32 first. Ties go to the even code; overflow
--- saturates, in f32, bf16 and fp16 it becomes inf. NaN and inf: docs/records.md.
---
--- Options: ties = 'even', 'down' (smaller magnitude, -0 becomes 0), 'away' (C roundf), 'up' (larger value; ggml's
--- floor(x + 0.5)); saturate = false (e4m3, e5m2 and ue8m0 overflow to NaN, inf, NaN); round = 'up' or 'floor'
--- (ue8m0 only: to the next power of two above or below).
---
--- Errors: an unknown name or option, an x that is no number. Source: OCP 8-bit and MX formats, IEEE 754, ggml.
--- Example:
---   kv.number.encode('e4m3', 448)  --> 126
---   kv.number.encode('e4m3', 465, { saturate = false })  --> 127
---   kv.number.encode('e2m1', 3.5, { ties = 'down' })  --> 5
---   kv.number.encode('ue8m0', 3, { round = 'up' })  --> 129
---@param name string  one of kv.number.names()
---@param x number
---@param options? table  ties, saturate, round
---@return integer code  0 to 2^bits - 1
function number.encode(name, x, options) end

--- The value of a code, exactly.
---
--- Errors: an unknown name, a code outside 0 to 2^bits - 1. Source: OCP 8-bit and MX formats, IEEE 754, ggml.
--- Example:
---   kv.number.decode('e4m3', 126)  --> 448.0
---   kv.number.decode('int4', 0)  --> -8.0
---@param name string  one of kv.number.names()
---@param code integer
---@return number x
function number.decode(name, code) end
