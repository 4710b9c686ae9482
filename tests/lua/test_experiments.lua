-- The shipped experiments: every sweep file loads, its points are those of its committed results, and the smallest
-- cells come out again.
local lu = require 'luaunit'
local check = require 'check'
local kv = require 'kvlab'
local experiment = require 'kvlab.experiment'

local FOLDER <const> = check.root .. '/experiments/'
local SWEEPS <const> = { ['records/run.lua'] = 'records/results.json', ['replay/run.lua'] = 'replay/results.json',
  ['records/trained.lua'] = 'records/trained.json', ['where-full/run.lua'] = 'where-full/results.json',
  ['ratio-overlap/run.lua'] = 'ratio-overlap/results.json', ['nanogpt-char/run.lua'] = 'nanogpt-char/results.json',
  ['indexer-training/run.lua'] = 'indexer-training/results.json', ['sharing/run.lua'] = 'sharing/results.json',
  ['sharing/hops.lua'] = 'sharing/hops.json' }

local function rows(name)
  local file <close> = assert(io.open(FOLDER .. name))
  return kv.json.decode(file:read('a')).rows
end

-- The settings of a row, from a configuration: those keys; `a.b` is b inside a.
local function key_of(values, keys)
  local setting = {}
  for _, key in ipairs(keys) do
    local value = values[key]
    if value == nil then
      value = values
      for name in key:gmatch '[^.]+' do value = value[name] end
    end
    setting[key] = value
  end
  return kv.config.canonical(setting)
end

TestExperiments = {}

function TestExperiments:test_points_are_those_of_the_results()
  local text = check.write(('to be or not to be, '):rep(200))
  for sweep, results in pairs(SWEEPS) do
    local set = sweep:find('nanogpt', 1, true) and { 'task.files=' .. text } or nil
    local points = experiment.points(experiment.load(FOLDER .. sweep), { set = set })
    local runs = 0
    for _, row in ipairs(rows(results)) do
      local keys, found = {}, 0
      for key in pairs(row.setting) do keys[#keys + 1] = key end
      for _, point in ipairs(points) do
        if key_of(point.config, keys) == key_of(row.setting, keys) then found = found + 1 end
      end
      lu.assertEquals(found, row.n, sweep .. ': ' .. kv.json.encode(row.setting))
      runs = runs + row.n
    end
    lu.assertEquals(runs, #points, sweep)
  end
  os.remove(text)
  for _, name in ipairs { 'recipe', 'trainer', 'extend' } do package.loaded['kvlab.' .. name] = nil end -- they keep tasks
end

-- Whether `mean ± sd` as a README prints it is some metric of the rows, rounded to the digits that are shown; values may be
-- shown times 1,000.
local function is_among(list, mean, sd)
  local function same(text, value)
    local digits, power = #(text:match '%.(%d+)' or ''), tonumber(text:match 'e(.*)') or 0
    return math.abs(tonumber(text) - value) <= 0.5001 * 10.0 ^ (power - digits)
  end
  for _, row in ipairs(list) do
    for _, metric in pairs(row.metrics) do
      for _, factor in ipairs { 1, 1000 } do
        if same(mean, metric.mean * factor) and same(sd, (metric.sd or 0) * factor) then return true end
      end
    end
  end
  return false
end

function TestExperiments:test_tables_are_those_of_the_results()
  local numbers = 0
  for readme, files in pairs { ['where-full'] = { 'results' }, ['ratio-overlap'] = { 'results' },
    ['indexer-training'] = { 'results' }, ['nanogpt-char'] = { 'results' }, replay = { 'results' },
    sharing = { 'results', 'hops' },
    records = { 'results', 'trained' } } do
    local list = {}
    for _, name in ipairs(files) do
      for _, row in ipairs(rows(('%s/%s.json'):format(readme, name))) do list[#list + 1] = row end
    end
    for line in io.lines(('%s%s/README.md'):format(FOLDER, readme)) do
      if line:find '^|' then
        for mean, sd in line:gmatch '([%d.e-]+) ± ([%d.e-]+)' do
          lu.assertTrue(is_among(list, mean, sd), ('%s: %s ± %s is in no row of results'):format(readme, mean, sd))
          numbers = numbers + 1
        end
      end
    end
  end
  lu.assertTrue(numbers > 100)
end

-- Cells of ratio-overlap that take seconds: one seed, within three deviations of the committed accuracy.
function TestExperiments:test_cells_come_out_again()
  local dir = check.write('')
  os.remove(dir)
  local pattern = "'ratio=2*overlap=true offset=*seed=1'"
  local code, _, err = check.sh(('scripts/kvlab sweep experiments/ratio-overlap/run.lua -j 1 --only %s --dir %s')
    :format(pattern, dir))
  lu.assertEquals(code, 0, err)
  local again = kv.report(dir, { by = { 'below', 'ratio', 'overlap', 'offset' } }).rows
  lu.assertEquals(#again, 2)
  for _, row in ipairs(again) do
    local compared
    for _, want in ipairs(rows 'ratio-overlap/results.json') do
      if kv.json.encode(want.setting) == kv.json.encode(row.setting) then
        local old = want.metrics.accuracy
        lu.assertAlmostEquals(row.metrics.accuracy.mean, old.mean, 3 * old.sd + 0.005)
        compared = true
      end
    end
    lu.assertTrue(compared, kv.json.encode(row.setting))
  end
  os.execute(("rm -r '%s'"):format(dir))
end

check.main()
