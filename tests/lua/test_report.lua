-- Pictures and pages of reports, from folders of runs that are made here: seeds, curves, torn lines, what is missing.
local lu = require 'luaunit'
local check = require 'check'
local gnuplot = require 'kvlab.plot.gnuplot'
local html = require 'kvlab.report.html'
local kv = require 'kvlab'
local pictures = require 'kvlab.report.pictures'
local plot = require 'kvlab.plot'

local root, fresh = check.folder()
local function put(path, text) return check.put(path, text, 'ab') end

-- A run in `dir`: its settings, what it logs, and its result; without one it goes on.
local function made(dir, settings, logged, result)
  local r = kv.run.create { dir = ('%s/%s'):format(dir, kv.config.id(settings)), config = settings }
  lu.assertTrue(r:claim())
  r:begin()
  for _, record in ipairs(logged) do r:log(record) end
  if result then r:finish(result) end
  r:release()
  return r
end

-- Two layouts and no layout, three seeds, a loss of 8 / step plus 0, 1 or 5.
local LAYOUTS = { 'full/2 reuse', 'full/1 full/1' }
local function sweep(dir)
  for i, layout in ipairs(LAYOUTS) do
    for seed, extra in ipairs { 0, 1, 5 } do
      local logged = {}
      for step = 1, 4 do logged[step] = { step = step, loss = 8 / step + extra, tokens = step * 10 } end
      made(dir, { layout = layout, seed = seed, context = 64 }, logged, { accuracy = i + seed, loss = 1.0 })
    end
  end
  return dir
end
local main = sweep(fresh())

local function report(words)
  local code, out, err = check.sh('COLUMNS=80 LC_ALL=C.UTF-8 scripts/kvlab report ' .. words)
  lu.assertEquals(code, 0, err)
  return out, err
end

TestCurves = {}

function TestCurves:test_over_seeds()
  local all, names = pictures.curves(kv.report(main))
  lu.assertEquals(names, { 'loss', 'tokens' })
  lu.assertEquals(#pictures.metric_curves(kv.report(main), 6), 1) -- tokens only when they are asked for
  lu.assertEquals(#pictures.metric_curves(kv.report(main), { 'tokens', 'loss' }), 2)
  lu.assertEquals(#all.loss, 2)
  lu.assertEquals(all.loss[1].label, 'layout=[full/1 full/1]')
  lu.assertEquals(all.loss[2].runs, 3)
  for step = 1, 4 do -- mean, lowest and highest of 0, 1, 5
    local p = all.loss[2].points[step]
    lu.assertAlmostEquals(p[2], 8 / step + 2, 1e-12)
    lu.assertEquals({ p[1], p[3], p[4] }, { step, 8 / step, 8 / step + 5 })
  end
end

-- Runs that go on, torn lines, records without a step, a run that logged nothing, one whose metric is no number.
function TestCurves:test_while_it_runs()
  local dir = sweep(fresh())
  local r = made(dir, { layout = LAYOUTS[1], seed = 4, context = 64 }, { { loss = 100 }, { loss = 'nothing' } })
  put(r.dir .. '/metrics.jsonl', '{"step": 3, "loss": 7')
  made(dir, { layout = LAYOUTS[1], seed = 5, context = 64 }, {})
  local result = kv.report(dir)
  local all = pictures.curves(result)
  local curve = all.loss[2]
  lu.assertEquals({ curve.runs, #curve.points, curve.points[1][4], curve.points[3][4] }, { 4, 4, 100, 8 / 3 + 5 })
  lu.assertAlmostEquals(curve.points[1][2], (3 * 8 + 6 + 100) / 4, 1e-12)
  local text = plot.line(pictures.metric_curves(result, 1)[1])
  lu.assertStrContains(text:gsub('%s+', ' '), '2 runs are not done')
  local out = report(dir .. ' --curves loss')
  lu.assertStrContains(out, 'loss over steps')
  lu.assertStrContains(out, 'runs: 6 done, 2 stopped')
end

function TestCurves:test_many()
  local dir = fresh()
  for a = 1, 12 do
    local logged = {}
    for step = 1, a == 1 and 1000 or 2 do logged[step] = { step = step, x = a } end
    made(dir, { a = a, seed = 1 }, logged, { x = a })
  end
  local result = kv.report(dir)
  local options = pictures.metric_curves(result, 1)[1]
  lu.assertEquals(#options.series, 8) -- the best
  lu.assertEquals({ options.series[1][1], options.series[8][1] }, { 'a=5', 'a=12' })
  lu.assertStrContains(options.note, '4 settings left out')
  local all = pictures.curves(result)
  lu.assertEquals({ #all.x[1].points, all.x[1].each, all.x[1].points[1][1] }, { 250, 4, 2.5 })
  lu.assertNil(options.series[1].error) -- one seed
end

TestQuality = {}

function TestQuality:test_letters_and_front()
  local options = pictures.quality_plot(kv.report(main))
  local bytes = {}
  for i, layout in ipairs(LAYOUTS) do bytes[i] = kv.count(kv.layout(layout)).store.bytes_per_token:tonumber() end
  lu.assertEquals({ options.series[1].mark, options.series[2].mark }, { 'A', 'B' }) -- more bytes, better
  lu.assertEquals(options.series[2][2], { { bytes[1], 3.0 } })
  lu.assertEquals(options.series[1][2], { { bytes[2], 4.0 } })
  lu.assertEquals(options.series[1].error, { 1.0 })
  lu.assertEquals(options.series[3][1], 'front')
  lu.assertEquals(options.series[3][2], { { bytes[1], 3.0 }, { bytes[2], 3.0 }, { bytes[2], 4.0 } })
  options = pictures.quality_plot(kv.report(main, { better = 'less' }))
  lu.assertEquals({ options.series[1].mark, options.series[2].mark, #options.series }, { 'a', 'B', 2 })
end

function TestQuality:test_what_is_missing()
  local dir = fresh()
  made(dir, { a = 1, layout = 'swa', context = 8 }, {}, { q = 1 })
  made(dir, { a = 2, layout = 'full/1', context = 8 }, {}, { other = 1 })
  made(dir, { a = 3 }, {}, { q = 2 })
  local options = pictures.quality_plot(kv.report(dir, { quality = 'q' }))
  lu.assertEquals(#options.series, 1) -- one seed: no bar
  lu.assertNil(options.series[1].error)
  lu.assertStrContains(options.note, '2 rows are without q or bytes_per_token')
  local nothing, why = pictures.quality_plot(kv.report(dir, { quality = 'q', cost = 'nothing' }))
  lu.assertNil(nothing)
  lu.assertStrContains(why, 'no row has both q and nothing')
  lu.assertEquals(#pictures.quality_plot(kv.report(dir, { quality = 'q', cost = 'a' })).series, 3) -- both are on the front
  local out, err = report(dir .. ' --plot --cost nothing')
  lu.assertStrContains(err, 'no picture of quality and cost')
  lu.assertNil(out:find 'over steps')
end

-- More rows than letters: the front has them, the rest is a crowd.
function TestQuality:test_crowd()
  local dir = fresh()
  for a = 1, 30 do made(dir, { a = a, b = a % 2 }, {}, { q = a % 2 == 0 and a or -a, cost = a }) end
  local options = pictures.quality_plot(kv.report(dir, { quality = 'q', cost = 'cost' }))
  lu.assertEquals(#options.series, 18) -- 1 and the even ones, the crowd, the line
  lu.assertEquals({ options.series[17][1], #options.series[17][2] }, { '14 others, not on the front', 14 })
  lu.assertEquals(options.xscale, 'log')
  options = pictures.quality_plot(kv.report(dir, { quality = 'q', cost = 'cost', within = { 'b' } }))
  lu.assertEquals({ options.series[#options.series][1] }, { 'front, b=0' })
end

TestCommand = {}

function TestCommand:test_text_and_files()
  local out = report(main .. ' --plot')
  lu.assertStrContains(out, 'accuracy against bytes_per_token')
  lu.assertStrContains(out, 'loss over steps')
  lu.assertStrContains(out, 'A layout=[full/1 full/1]')
  for line in out:match('accuracy against.*'):gmatch('[^\n]+') do lu.assertTrue(utf8.len(line) <= 80, line) end
  local path = check.write('', '.svg')
  if gnuplot.installed() then
    lu.assertEquals(report(('%s --file %s'):format(main, path)), path .. '\n')
    lu.assertStrContains(io.open(path):read 'a', 'bytes stored per token (B)')
    report(('%s --file %s --curves loss'):format(main, path))
    lu.assertStrContains(io.open(path):read 'a', 'loss over steps')
  end
  os.remove(path)
  for words, part in pairs { ['--curves los'] = "'loss'", ['--plot --json'] = 'do not go together',
    ['--file x.svg --plot'] = '--file or --plot', ['--file x.svg --curves a,b'] = 'one metric', ['--html --md'] = 'one of',
    ['--file x.gif'] = '.svg, .png or .pdf' } do
    local code, text, err = check.sh(('scripts/kvlab report %s %s'):format(main, words))
    lu.assertTrue(code > 0 and text == '' and err:find(part, 1, true) ~= nil, words .. ': ' .. err)
  end
  local code, _, err = check.sh(('lua=$(command -v lua5.4); PATH=/nowhere $lua %s/scripts/kvlab report %s --file x.svg')
    :format(check.root, main))
  lu.assertEquals(code, 1)
  lu.assertStrContains(err, 'apt-get install gnuplot-nox')
end

-- A single run is a report, too, and an empty folder none.
function TestCommand:test_one_run_and_none()
  local dir = fresh()
  local r = made(dir, { a = 1 }, { { step = 1, loss = 2 }, { step = 2, loss = 1 } }, { loss = 1 })
  lu.assertEquals(#kv.report(r.dir).rows, 1)
  lu.assertStrContains(report(r.dir .. ' --curves loss'), 'loss over steps')
  local empty = fresh()
  os.execute(('mkdir %q'):format(empty))
  lu.assertStrContains(report(empty), 'runs: none')
  lu.assertStrContains(report(empty .. ' --html'), '</html>')
  put(r.dir .. '/done.json', '{"torn') -- damaged: said, and left out
  local out, err = report(dir)
  lu.assertStrContains(out, 'runs: none')
  lu.assertStrContains(err, 'damaged')
end

TestHtml = {}

-- Elements that are open must be closed, in order; what stands alone stands alone.
local function well_formed(text)
  local open = {}
  local alone = { meta = true, ['!DOCTYPE'] = true }
  text = text:gsub('<style>.-</style>', ''):gsub('<script>.-</script>', ''):gsub('<!%-%-.-%-%->', '')
    :gsub('<!%[CDATA%[.-%]%]>', '')
  for close, name, rest in text:gmatch('<(/?)([%a!][%w:]*)([^>]*)>') do
    if close == '/' then
      lu.assertEquals(table.remove(open), name)
    elseif not alone[name] and rest:sub(-1) ~= '/' then
      open[#open + 1] = name
    end
  end
  lu.assertEquals(open, {})
end

function TestHtml:test_page()
  local dir = sweep(fresh())
  put(dir .. '/evil.sweep.json', kv.json.encode { name = '<script>alert(1)</script>', file = "a b'.lua", measure = { 'accuracy' } })
  made(dir, { layout = 'swa', seed = 1, context = 64, ['<b>'] = '"&\'' }, {}, { accuracy = 0, ['<i>'] = 1 })
  local failed = made(dir, { layout = 'swa*2', seed = 1, context = 64 }, {})
  failed:claim()
  failed:fail('<b>NaN</b>\nin the loss')
  failed:release()
  local page = report(dir .. ' --html --against full/2')
  well_formed(page)
  for _, part in ipairs { '&lt;script&gt;alert(1)', '&lt;b&gt;NaN&lt;/b&gt;', '&lt;i&gt;', '&quot;&amp;&#39;', 'full/2 reuse',
    '4 ± 1', 'accuracy, difference', 'data-value="4"', 'loss over steps', 'accuracy against bytes_per_token',
    'kvlab sweep &#39;a b&#39;\\&#39;&#39;.lua&#39; --dir ' .. dir, '--against full/2 --html', '7 done, 1 failed' } do
    lu.assertStrContains(page, part)
  end
  lu.assertNil(page:find('<b>', 1, true))
  lu.assertNil(page:find('https?://[^w]')) -- nothing is loaded; names of XML begin with www
  lu.assertEquals(select(2, page:gsub('<svg', '')), gnuplot.installed() and 2 or 0)
  local seen = {}
  for id in page:gmatch('<[^>]* id=["\']([^"\']+)') do
    lu.assertNil(seen[id], id)
    seen[id] = true
  end
end

function TestHtml:test_without_gnuplot()
  local code, page = check.sh(('lua=$(command -v lua5.4); PATH=/nowhere $lua %s/scripts/kvlab report %s --html')
    :format(check.root, main))
  lu.assertEquals(code, 0)
  well_formed(page)
  lu.assertStrContains(page, 'apt-get install gnuplot-nox')
  lu.assertStrContains(page, '<pre>accuracy against bytes_per_token')
  lu.assertNil(page:find('<svg', 1, true))
end

-- From Lua: the metrics of the curves may be chosen.
function TestHtml:test_curves()
  local page = html(kv.report(main), { curves = { 'loss' } })
  lu.assertStrContains(page, 'loss over steps')
  check.fails({ 'curves', "'loss'" }, html, kv.report(main), { curves = { 'lass' } })
end

TestZ = {}
function TestZ:test_remove() lu.assertTrue(os.execute(('rm -rf %q'):format(root))) end

check.main()
