-- calls.lua: makes calls from bytes, for fuzz_api.c. Returns run(data); every error of a call is fine, a fault
-- of the process is not. The state and some of its objects live on from one input to the next.
--
-- Two kinds of calls: `wild` ones to any function of the core with any arguments, and `near` ones that would be
-- right if now and then a field were not replaced (odd). Poison is a finalizer that frees objects in the middle
-- of whatever call allocates next. Some calls run out of memory.
local core = require 'kvlab.core'
local kv = require 'kvlab'

-- The bytes of the input; after its end those of a generator that they have set, so that short inputs make many
-- calls as well.
local data, at, state = '', 1, 1
local function byte()
  local next_byte = data:byte(at)
  at = at + 1
  if next_byte then
    state = (state * 31 + next_byte) & 0x7fffffff
    return next_byte
  end
  state = (state * 1103515245 + 12345) & 0x7fffffff
  return state >> 15 & 255
end
local function below(n) return byte() % n end
local function pick(list) return list[byte() % #list + 1] end

-- --- values -----------------------------------------------------------------------------------------

local KEPT <const> = 32
local objects, newest = {}, 0
local function keep(x)
  if type(x) == 'userdata' then
    newest = newest % KEPT + 1
    objects[newest] = x
  end
  return x
end

local self_containing = {}
self_containing[1] = self_containing
local angry = setmetatable({}, { __index = function() error('no field') end, __len = function() return 1 << 60 end })

local scalars = {
  0, 1, 2, 3, 4, 5, 7, 8, 16, 100, -1, -2, -9, 255, 65536, 1 << 31, (1 << 31) - 1, -(1 << 31), 1 << 40, 1 << 53,
  1 << 60, 1000000000000, math.maxinteger, math.mininteger, 0.5, -0.0, 1e308, -1e308, 2.0 ^ 63, 1e-40, 3.0,
  0 / 0, 1 / 0, -1 / 0, true, false, '', 'x', '3', '1e999', 'float32', 'int32', 'bf16', 'list', 'causal', 'window',
  'selected', 'index', 'score', ('a'):rep(1000), 'a\0b', print, io.stdout, coroutine.create(print),
}
local tables = { {}, { 1 }, { 2, 3 }, { 0 }, { -1 }, { 1 << 40, 1 << 40 }, { 1, 2, { 3 } }, { {}, {} }, { { 1, 2 }, { 3, 4 } },
  { 1, 2, 3, 4, 5, 6, 7, 8, 9 }, { 0, 1 << 57 }, { 'x' }, { x = 1 }, self_containing, angry }

local function any()
  local kind = byte() % 8
  if kind < 3 then return pick(scalars) end
  if kind == 3 then return pick(tables) end
  if kind == 4 then return nil end
  return objects[byte() % KEPT + 1]
end

-- The value, or sometimes another one.
local function odd(value)
  if byte() >= 12 then return value end
  return any()
end

local function try(f, ...)
  local starve = byte() % 16 == 0
  if starve then core.base.fail_after(below(8)) end
  local ok, a, b = pcall(f, ...)
  if starve then core.base.fail_after(-1) end
  if not ok then return nil end
  keep(b)
  return keep(a)
end

-- --- tensors of about a shape -----------------------------------------------------------------------

local function size() return odd(pick { 1, 2, 3, 4, 5, 8, 16, 0, 33 }) end

-- A tensor of the shape: plain, int32, transposed, expanded, sliced, with NaN, freed - or anything.
local function tensor(...)
  local shape = { ... }
  for i = 1, #shape do
    if math.type(shape[i]) ~= 'integer' or shape[i] < 0 or shape[i] > 1000 then shape[i] = 1 end
  end
  local n, kind = #shape, byte() % 16
  if kind == 0 then return any() end
  if kind == 1 then return try(core.tensor.zeros, shape, 'int32') end
  if kind == 2 and n >= 2 then
    shape[n], shape[n - 1] = shape[n - 1], shape[n]
    local t = try(core.tensor.full, shape, 0.5)
    return t and keep(t:transpose())
  end
  if kind == 3 then
    local one = {}
    for i = 1, n do one[i] = byte() % 2 == 0 and 1 or shape[i] end
    local t = try(core.tensor.full, one, 0.25)
    return t and keep(t:expand(shape))
  end
  if kind == 4 and n >= 1 then
    shape[n] = shape[n] * 2
    local t = try(core.tensor.full, shape, -1)
    return t and keep(t:slice(n, 1, -1, 2))
  end
  if kind == 5 then return try(core.tensor.full, shape, pick { 0 / 0, 1 / 0, -1 / 0, 1e38, -1e38, 1e-45 }) end
  local t = try(core.ops.random, 'normal', shape, byte(), 0.0, 1.0)
  if kind == 6 and t then t:free() end
  return t
end

local function ids(n, ...) return try(core.ops.random, 'integer', { ... }, byte(), odd(-1), odd(n)) end

-- --- calls that are nearly right --------------------------------------------------------------------

local near = {}

function near.make()
  try(pick { core.tensor.zeros, core.tensor.eye, core.tensor.arange, core.tensor.tril, core.tensor.tensor }, size(), size(),
    odd(size()))
  try(core.tensor.full, { size(), size() }, odd(1), odd('int32'))
  try(pick { core.tensor.cat, core.tensor.stack }, { tensor(2, 3), odd(tensor(2, 3)), tensor(2, 3) }, odd(1))
  try(core.tensor.tensor, odd { { 1, 2 }, { 3, odd(4) } }, odd('float32'))
end

function near.view()
  local t = tensor(size(), size(), size())
  if not core.tensor.is_tensor(t) then return end
  for _ = 1, 4 do
    local name = pick { 'slice', 'select', 'transpose', 'permute', 'expand', 'reshape', 'flatten', 'squeeze',
      'unsqueeze', 'contiguous', 'clone', 'to' }
    local a, b, c, d = odd(below(5)), odd(below(9)), odd(below(9)), odd(below(4))
    if name == 'permute' then a, b, c, d = odd(2), odd(1), odd(3), nil end
    if name == 'to' then a = pick { 'float32', 'int32' } end
    t = try(core.tensor.methods[name], t, a, b, c, d) or t
    try(tostring, t)
    try(core.tensor.methods.totable, t)
  end
end

function near.operate()
  local n, m = size(), size()
  local t, u = tensor(n, m), tensor(odd(n), m)
  local method = core.tensor.methods
  local name = pick { 'add', 'sub', 'mul', 'div', 'pow', 'minimum', 'maximum', 'eq', 'lt', 'add_', 'mul_', 'copy_' }
  try(method[name], t, odd(u))
  try(method[pick { 'sum', 'mean', 'var', 'max', 'argmax', 'any', 'softmax', 'logsumexp', 'cumsum', 'log_softmax' }], t,
    odd(1), odd(nil))
  try(method[pick { 'exp', 'neg', 'abs', 'silu', 'gelu', 'rsqrt' }], t)
  try(method.topk, t, odd(3), odd('index'))
  try(method.matmul, t, odd(tensor(m, 4)))
  try(core.ops.matmul, tensor(2, n, m), tensor(odd(2), m, 3))
  try(method.gather, t, odd(2), ids(3, n, 2))
  try(method.scatter_add, t, odd(2), ids(3, n, m), u)
  try(method.index_select, t, odd(1), ids(3, 4))
  try(core.ops.embedding, t, ids(n, 2, 2))
  try(core.ops.where, odd(t), u, odd(1.5))
  try(method.set, t, odd(1), odd(1), odd(2.5))
  try(function() t[odd(1)] = odd(u) end)
end

function near.norm()
  local n = pick { 1, 2, 4, 8, 16, 64, 3 }
  local x = tensor(size(), size(), n)
  try(core.norm.rms_norm, x, odd(tensor(n)), odd(1e-6))
  try(core.norm.layer_norm, x, odd(tensor(n)), odd(nil), odd(1e-6))
  try(core.norm.hadamard, x)
  local freqs = try(core.norm.rope_freqs, odd(n), odd(1e4), odd(nil), odd(4096), odd(32), odd(1))
  try(core.norm.rope, x, odd(freqs), odd(byte()), odd(1), odd(false), odd(true), odd(false))
  local one = tensor(2, 1, n)
  try(core.norm.rope, one, freqs, odd { odd(3), odd(5) }, odd(4), true)
end

local function plan(channels)
  local group = pick { 1, 2, 4, 8, 16 }
  local number = pick { 'bf16', 'fp16', 'e4m3', 'e2m1', 'int8', 'int4', 'uint4', 'f32', 'ue8m0' }
  local field = { channels = odd(channels), number = odd(number), block = odd(nil), pad = odd(0),
    order = odd('adjacent') }
  if byte() % 2 == 0 then
    field.scale = odd { number = odd(pick { 'ue8m0', 'f32', 'fp16' }), rule = odd(pick { 'pow2_up', 'nearest', 'raw' }),
      group = odd(group), floor = odd(nil) }
  end
  return try(core.record.compile, { field, odd(nil) }, odd(pick { 1, 2, 4, 64 }), odd(pick { 1, 16, 100 }), odd('r'))
end

function near.record()
  local p = plan(16)
  if not p then return end
  try(p.roundtrip, p, tensor(size(), 16))
  local row = {}
  for i = 1, 16 do row[i] = odd(i * 0.3) end
  local ok, bytes, scale = pcall(p.encode, p, odd(row))
  if ok then try(p.decode, p, odd(bytes), odd(scale)) end
  ok, bytes = pcall(p.encode_page, p, odd { [odd(1)] = row })
  if ok then try(p.decode_page, p, odd(bytes), odd(1)) end
end

-- A cache table of `channels` with some entries.
local function cache(channels, n, ring)
  local p = plan(channels)
  local pool = p and try(core.pool.new, p, odd(nil))
  local t = pool and try(pool.table, pool, ring and odd(ring) or odd(nil), ring and odd(2) or odd(nil))
  if t then try(t.append, t, tensor(n, channels)) end
  return t
end

function near.pool()
  local t = cache(8, below(40), byte() % 3 == 0 and 5 or nil)
  if not t then return end
  local counters = keep(core.pool.counters())
  for _ = 1, 6 do
    try(t[pick { 'append', 'reserve', 'fork', 'share', 'truncate', 'rows', 'bytes', 'poke', 'count', 'first', 'pages',
      'stats' }], t, odd(below(20)), odd(1), odd(255))
    try(t.append, t, tensor(below(9), 8))
    try(t.read, t, odd(1), odd(4), odd('window'), odd(counters))
    try(t.read, t, ids(6, 3), odd('selected'), odd(counters))
    try(counters.get, counters)
  end
end

local sees = { 'all', 'causal', 'window', 'blocks', 'list' }

function near.attend()
  local B, T, heads, kv_heads = pick { 1, 1, 2, 3 }, pick { 1, 2, 5, 20 }, pick { 1, 2, 8, 16 }, pick { 1, 1, 2 }
  local width, value = pick { 1, 4, 8, 16 }, pick { 1, 4, 8 }
  local counters, pos0, sources = keep(core.pool.counters()), below(60), {}
  for i = 1, below(4) do
    local S, see = below(70), pick(sees)
    local s = { see = odd(see), pos0 = odd(byte() % 2 == 0 and 0 or below(9)), window = odd(pick { 1, 3, 8, 128 }),
      ratio = odd(pick { 1, 2, 4 }), kv_heads = odd(kv_heads) }
    local channels = kv_heads * (width + value)
    s.key = odd { 1, odd(kv_heads * width) }
    s.value = odd { odd(kv_heads * width + 1), odd(channels) }
    if see == 'list' then s.list = odd(ids(S - 1, B, T, pick { 1, 4, 33, 0 })) end
    local kind = byte() % 4
    if kind == 0 then
      s.key_rows, s.value_rows = tensor(B, S, kv_heads, width), tensor(B, S, kv_heads, value)
    elseif kind == 1 then
      local list, ring = {}, see == 'window' and 9 or nil
      for b = 1, B do list[b] = cache(channels, S, ring) end
      s.table, s.kind, s.counters = odd(#list == 1 and list[1] or list), odd('selected'), odd(counters)
    else
      s.rows = tensor(B, S, channels)
    end
    sources[i] = odd(s)
  end
  try(core.attend.attend, tensor(B, T, heads, width), sources, odd(byte() % 2 == 0 and tensor(heads) or nil), odd(0.3),
    odd(pos0), odd(value), odd(byte() % 2 == 0))
end

function near.index()
  local B, T, heads, width = pick { 1, 1, 2 }, pick { 1, 2, 7 }, pick { 1, 2, 64 }, pick { 1, 4, 8 }
  local n, o = below(90), { pos0 = odd(byte()), ratio = odd(pick { 1, 2, 4 }), k = odd(pick { 0, 1, 5, 512 }) }
  if byte() % 3 == 0 then o.block, o.blocks = odd(pick { 1, 3, 8 }), odd(pick { 1, 2, 100 }) end
  if byte() % 3 == 0 then o.pool = odd(ids(n - 1, B, T, pick { 1, 9, 0, 40 })) end
  if byte() % 2 == 0 then o.scores = true end
  local keys = { rows = tensor(B, n, width) }
  if byte() % 3 == 0 then
    local list = {}
    for b = 1, B do list[b] = cache(width, n) end
    keys = { table = odd(list), kind = odd('index'), counters = odd(keep(core.pool.counters())) }
  end
  local ok, found = pcall(core.attend.index, tensor(B, T, heads, width), tensor(B, T, heads), odd(keys), odd(o))
  if ok then keep(found.top) keep(found.pool) keep(found.scores) end
end

function near.compress()
  local m, w, B, overlap = pick { 1, 2, 4 }, pick { 1, 3, 8 }, pick { 1, 2, 3 }, byte() % 2 == 0
  local row = overlap and 2 * w or w
  local bias = byte() % 2 == 0 and tensor(m, row) or nil
  local c = try(core.compress.compressor, odd(m), odd(w), odd(overlap), odd(bias), odd(below(4)), odd(B))
  if not c then return end
  for _ = 1, 5 do
    local T = below(12)
    try(c.push, c, tensor(B, T, row), odd(byte() % 2 == 0 and tensor(B, T, row) or nil))
    if byte() % 3 == 0 then try(c.rollback, c, odd(1)) end
    if byte() % 4 == 0 then c = try(c.copy, c) or c end
    if byte() % 30 == 0 then try(c.free, c) end
    try(c.state_bytes, c) try(c.rollback_bytes, c) try(c.position, c) try(tostring, c)
  end
end

-- --- text and files ---------------------------------------------------------------------------------

-- The text with a few bytes changed, cut or doubled.
local function damage(text)
  for _ = 1, below(4) do
    local place = (byte() * 256 + byte()) % (#text + 1)
    local kind = byte() % 4
    if kind == 0 then text = text:sub(1, place) .. string.char(byte()) .. text:sub(place + 2)
    elseif kind == 1 then text = text:sub(1, place)
    elseif kind == 2 then text = text:sub(1, place) .. text:sub(math.max(place - 6, 1))
    else text = text:sub(1, place) .. pick { '9', '99999999999', '-', '{', '[', '"', '\\u0000', '\\ud800', '*', '{}' } ..
      text:sub(place + 1) end
  end
  return text
end

local path = os.tmpname()

function near.file()
  local header = damage('{"__metadata__":{"a":"b"},"x":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},' ..
    '"y":{"dtype":"BF16","shape":[3],"data_offsets":[16,22]},"z":{"dtype":"I64","shape":[0,7],"data_offsets":[22,22]}}')
  local length = byte() >= 8 and #header or (any() or 0)
  if math.type(length) ~= 'integer' then length = 1 << 62 end
  local out = io.open(path, 'wb')
  out:write(('<i8'):pack(length), header, ('\1'):rep(odd(22) == 22 and 22 or byte()))
  out:close()
  local file = try(core.safetensors.open, path)
  if file then
    local ok, names = pcall(file.names, file)
    for _, name in ipairs(ok and names or {}) do
      try(file.info, file, odd(name)) try(file.load, file, odd(name)) try(file.compare, file, name, tensor(2, 2))
      if byte() < 4 then io.open(path, 'wb'):close() end
    end
    try(file.metadata, file) try(file.has, file, odd(3))
  end
  if byte() % 16 > 0 then return end -- saving waits for the disk
  try(core.safetensors.save, path, odd { x = tensor(2, 3), [odd('y')] = odd { tensor(3), odd('BF16') } }, odd { a = odd('b') })
end

local texts = { 'swa*2 [full/2 reuse*5]*3 | [full/1{pool=2048x8} reuse*3] [reindex reuse*3]*4', 'mha*3', 'gqa{kv_heads=2}',
  '[csa/4{k=512} hca/128]*20', 'mla*3 dsa{k=2048}*2' }

function near.text()
  local ok, layout = pcall(kv.layout, damage(pick(texts)))
  if ok and #layout < 300 then try(kv.count, layout, odd(1000)) try(tostring, layout) end
  local read, value = pcall(kv.json.decode, damage('{"a":[1,2.5e3,"x\\u00e9",null,true],"b":{"c":-0}}'))
  if read then try(kv.json.encode, value) end
  local name = pick(core.number.names())
  try(core.number.encode, odd(name), odd(1.5), odd('even'), odd(true))
  try(core.number.decode, odd(name), odd(byte()))
  try(core.number.info, odd(name))
end

-- --- anything with anything -------------------------------------------------------------------------

local functions = {}
for _, part in ipairs { 'number', 'record', 'tensor', 'ops', 'norm', 'attend', 'compress', 'pool' } do
  for _, f in pairs(core[part]) do
    if type(f) == 'function' then functions[#functions + 1] = f end
  end
end
functions[#functions + 1] = core.safetensors.open
for _, methods in pairs(kv.classes) do
  for _, f in pairs(methods) do
    if type(f) == 'function' then functions[#functions + 1] = f end
  end
end

local function wild()
  local f = functions[(byte() * 256 + byte()) % #functions + 1]
  try(f, any(), any(), any(), any(), any(), any(), any())
  local object = objects[byte() % KEPT + 1]
  try(function() return object[odd('push')](object, any(), any()) end)
  try(function() return -object, object + any(), #object, tostring(object), object[any()] end)
  try(function() object[any()] = any() end)
end

-- What is made now dies soon, and takes others along from inside of a finalizer.
local function poison()
  local victims = { objects[byte() % KEPT + 1], objects[byte() % KEPT + 1], objects[newest] }
  local truncate = byte() % 2 == 0
  setmetatable({}, { __gc = function()
    for _, victim in pairs(victims) do
      pcall(function()
        if truncate then victim:truncate(0) else victim:free() end
      end)
      pcall(function() victim:close() end)
    end
  end })
end

local kinds = {}
for name in pairs(near) do kinds[#kinds + 1] = name end
table.sort(kinds)

return function(bytes)
  data, at, state = bytes, 1, 1
  local nervous = byte() % 12 == 0
  if nervous then
    collectgarbage('incremental', 10, 1000, 10)
    collectgarbage() -- forgets what the mode before wanted to wait for
  end
  for _ = 0, byte() % 24 do
    local what = byte() % 16
    if nervous or what == 0 then poison() end
    if what <= 2 then wild() else try(near[pick(kinds)]) end
  end
  collectgarbage('incremental', 200, 100, 13)
  if byte() % 4 == 0 then collectgarbage('generational') end
  if byte() % 8 == 0 then objects = {} end
  if byte() % 16 == 0 then collectgarbage() end
end
