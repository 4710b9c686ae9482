---@meta
local kv = {}

---@within kv

--- Fills real caches of a layout at its real widths, runs the cache side of one decode step, and compares with kv.count.
---
--- Random rows stand in for what the projections would give; they go through pooling, norms, RoPE, Hadamard and record
--- encoders into pages, and through scoring, selection and attention (docs/measure.md). The result:
---   computed, measured   bytes by kv.count and by the caches: store_bytes, kv_bytes, index_bytes
---   equal                are they the same, in total and in every layer?
---   differing            a list of { layer =, figure =, computed =, measured = }
---   allocated_bytes      of pages: what is stored, unused slots and alignment
---   seconds              fill; select (scoring, pools, top-k), attention, and step, the sum of these two
---   name, context, count (the result of kv.count)
--- Options: context = 131072, records and widths as for kv.count; memory = the bytes it may use (15/16 of what the
--- machine or its control group has).
--- Errors: those of kv.count; a width that running needs; caches that do not fit, with what they need and which context
--- would fit, before anything is filled.
--- Example:
---   kv.measure(kv.preset 'v4.1-flash', { context = 33 }).equal  --> true
---   kv.measure(kv.layout 'swa', { context = 1000 }).measured.store_bytes  --> 67584
---   pcall(kv.measure, kv.preset 'mha', { context = 1000000000 })  --> false
---@param layout Layout|string
---@param options? table  { context =, records =, widths =, memory = }
---@return table result
function kv.measure(layout, options) end
