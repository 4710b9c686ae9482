-- test_vectors.lua: the golden vectors of tests/golden (made by make.py there) in every way, and what is wrong with
-- vectors that are damaged.
local lu = require 'luaunit'
local check = require 'check'
local kv = require 'kvlab'
local vectors = require 'kvlab.vectors'

local FOLDER <const> = check.root .. '/tests/golden'
local CASES <const> = { 'csa', 'csa-q', 'csa2-pool-q', 'csa2-ratio-2', 'csa2-stack', 'dsa', 'dsa-q', 'gqa', 'hca', 'mla',
  'mla-yarn-no-query-latent', 'swa' }

local function read(name)
  local file <close> = assert(io.open(name, 'rb'))
  return file:read('a')
end

-- A folder of its own with one case, and a function that removes it.
local function copy_of(name, change_json, change_tensors)
  local dir = os.tmpname()
  os.remove(dir)
  assert(os.execute(("mkdir '%s'"):format(dir)))
  for suffix, change in pairs { ['.json'] = change_json or function(text) return text end,
    ['.safetensors'] = change_tensors or function(bytes) return bytes end } do
    local data = change(read(('%s/%s%s'):format(FOLDER, name, suffix)))
    if data then
      local out <close> = assert(io.open(('%s/%s%s'):format(dir, name, suffix), 'wb'))
      out:write(data)
    end
  end
  return dir, setmetatable({}, { __close = function() os.execute(("rm -r '%s'"):format(dir)) end })
end

-- The bytes of a file with one tensor changed: its values (f on a list of numbers), its name or its shape.
local function with_tensor(name, f)
  return function(bytes)
    local size = ('<I8'):unpack(bytes)
    local header = kv.json.decode(bytes:sub(9, 8 + size))
    local entry = header[name]
    local data = bytes:sub(9 + size)
    local new_name, changed = f(entry, data:sub(entry.data_offsets[1] + 1, entry.data_offsets[2]))
    if changed then
      data = data:sub(1, entry.data_offsets[1]) .. changed .. data:sub(entry.data_offsets[2] + 1)
    end
    if new_name then header[name], header[new_name] = nil, entry end
    local text = kv.json.encode(header)
    return ('<I8'):pack(#text) .. text .. data
  end
end

TestVectors = {}

function TestVectors:test_every_case_in_every_way()
  local ways = {}
  for _, name in ipairs(CASES) do
    for _, row in ipairs(vectors.check(FOLDER, name)) do
      local what = ('%s, %s: error %g'):format(name, row.way, row.error)
      local quantised = name:find('%-q$')
      local bound = row.way:find(', records') and 2e-3 or quantised and 1e-4 or 5e-6
      lu.assertTrue(row.error <= bound, what)
      lu.assertEquals(row.bound, bound, what)
      lu.assertTrue(row.selected_equal, what)
      lu.assertTrue(row.ok, what)
      ways[name] = (ways[name] or 0) + 1
    end
  end
  lu.assertEquals(ways, { csa = 5, ['csa-q'] = 9, ['csa2-pool-q'] = 9, ['csa2-ratio-2'] = 5, ['csa2-stack'] = 5,
    dsa = 15, ['dsa-q'] = 27, gqa = 5, hca = 5, mla = 15, ['mla-yarn-no-query-latent'] = 15, swa = 5 })
end

-- Every weight matters: with one of its values changed the case fails.
function TestVectors:test_damaged_weights()
  for _, case in ipairs { { 'gqa', 'k_proj.weight' }, { 'mla', 'kv_b_proj.weight' }, { 'csa', 'compressor.ape' },
    { 'csa', 'attn_sink' }, { 'hca', 'compressor.wgate.weight' }, { 'csa2-stack', 'layers.3.attn_norm.weight' },
    { 'csa2-pool-q', 'layers.0.attn.compressor.wkv.weight' } } do
    local dir, guard = copy_of(case[1], nil, with_tensor(case[2], function(_, data)
      return nil, ('<f'):pack(('<f'):unpack(data) + 0.5) .. data:sub(5)
    end))
    local remove <close> = guard
    for _, row in ipairs(vectors.check(dir, case[1])) do
      lu.assertFalse(row.ok, ('%s with a damaged %s, %s: error %g'):format(case[1], case[2], row.way, row.error))
    end
  end
end

-- Damage that moves the selection is seen as such, also where y would hardly tell.
function TestVectors:test_other_selections()
  local dir, guard = copy_of('dsa', nil, with_tensor('selected', function(_, data)
    local last = #data - 7
    local id = ('<i8'):unpack(data, last)
    return nil, data:sub(1, last - 1) .. ('<i8'):pack(id - 1)
  end))
  local remove <close> = guard
  for _, row in ipairs(vectors.check(dir, 'dsa')) do
    lu.assertFalse(row.selected_equal)
    lu.assertFalse(row.ok)
    lu.assertTrue(row.error <= row.bound)
  end
end

function TestVectors:test_a_nan_is_a_failure()
  local dir, guard = copy_of('gqa', nil, with_tensor('q_proj.weight', function(_, data)
    return nil, ('<f'):pack(0 / 0) .. data:sub(5)
  end))
  local remove <close> = guard
  for _, row in ipairs(vectors.check(dir, 'gqa')) do lu.assertFalse(row.ok) end
end

TestBroken = {}

local function fails(parts, name, change_json, change_tensors)
  local dir, guard = copy_of(name, change_json, change_tensors)
  local remove <close> = guard
  check.fails(parts, vectors.check, dir, name)
end

function TestBroken:test_what_is_missing_or_wrong_is_named()
  local function without(tensor) return with_tensor(tensor, function() return 'elsewhere' end) end
  local function reshaped(tensor, shape) return with_tensor(tensor, function(entry) entry.shape = shape end) end
  fails("case 'gqa'", 'gqa', function() return '{' end)
  fails("case 'gqa': expected an object", 'gqa', function() return '7' end)
  fails({ "case 'gqa'", 'kind' }, 'gqa', function() return '{}' end)
  fails({ "unknown kind 'gka'" }, 'gqa', function(text) return (text:gsub('"gqa"', '"gka"')) end)
  fails({ 'num_attention_heads' }, 'gqa', function(text) return (text:gsub('"heads": 6', '"heads": 0')) end)
  fails({ "case 'gqa'", 'heads', 'six' }, 'gqa', function(text) return (text:gsub('"heads": 6', '"heads": "six"')) end)
  fails({ 'gqa.safetensors' }, 'gqa', nil, function() return nil end)
  fails({ 'gqa.safetensors' }, 'gqa', nil, function(bytes) return bytes:sub(1, 100) end)
  fails({ 'v_proj.weight is missing' }, 'gqa', nil, without 'v_proj.weight')
  fails({ 'v_proj.weight is {32, 30}, expected {30, 32}' }, 'gqa', nil, reshaped('v_proj.weight', { 32, 30 }))
  fails("no tensor 'x'", 'gqa', nil, without 'x')
  fails("no tensor 'y'", 'gqa', nil, without 'y')
  fails({ 'x is {32, 26}, expected {T, 32}' }, 'gqa', nil, reshaped('x', { 32, 26 }))
  fails({ 'y', '{32, 26}' }, 'gqa', nil, reshaped('y', { 32, 26 }))
  fails({ 'x.1' }, 'csa2-ratio-2', nil, without 'x.1')
  fails({ 'layers.1.attn.wkv.weight is missing' }, 'csa2-ratio-2', nil, without 'layers.1.attn.wkv.weight')
  fails({ "unknown mode 'fool'" }, 'csa2-ratio-2', function(text) return (text:gsub('"full"', '"fool"')) end)
  fails({ "amax_floor 'low'" }, 'dsa-q', function(text)
    return (text:gsub('"amax_floor": 0.0001', '"amax_floor": "low"'))
  end)
end

TestCommand = {}

local function run(words) return check.sh('scripts/kvlab check ' .. words .. ' </dev/null') end

function TestCommand:test_exit_status_and_json()
  local code, out = run(("'%s' --json --only csa2-ratio"):format(FOLDER))
  local result = kv.json.decode(out)
  lu.assertEquals(code, 0)
  lu.assertEquals({ result.passed, result.failed, #result.cases }, { 5, 0, 5 })
  local row = result.cases[1]
  lu.assertEquals({ row.name, row.selected_equal, row.ok, type(row.error), type(row.way) },
    { 'csa2-ratio-2', true, true, 'number', 'string' })

  local dir, guard = copy_of('mla', nil, with_tensor('o_proj.weight', function(_, data)
    return nil, ('<f'):pack(9) .. data:sub(5)
  end))
  local remove <close> = guard
  code, out = run(("'%s'"):format(dir))
  lu.assertEquals(code, 1)
  lu.assertStrContains(out, 'FAILED')
  lu.assertStrContains(out, '0 passed, 15 failed')

  local broken, second = copy_of('gqa', function() return '{' end)
  local remove_too <close> = second
  code, out = run(("'%s' --json"):format(broken))
  result = kv.json.decode(out)
  lu.assertEquals({ code, result.passed, result.failed, result.cases[1].ok }, { 1, 0, 1, false })
end

check.main()
