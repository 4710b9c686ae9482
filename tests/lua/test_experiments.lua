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
  ['indexer-training/run.lua'] = 'indexer-training/results.json' }

local function rows(name)
  local file <close> = assert(io.open(FOLDER .. name))
  return kv.json.decode(file:read('a')).rows
end

-- The settings of a row, from a configuration: those keys.
local function key_of(values, keys)
  local setting = {}
  for _, key in ipairs(keys) do setting[key] = values[key] end
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
