-- Pictures: text to the character, widths, values that are odd, and files by gnuplot with labels that are hostile.
local lu = require 'luaunit'
local axis = require 'kvlab.plot.axis'
local check = require 'check'
local gnuplot = require 'kvlab.plot.gnuplot'
local kv = require 'kvlab'

local plot = kv.plot

local function lines_of(text)
  local list = {}
  for line in (text .. '\n'):gmatch('(.-)\n') do list[#list + 1] = line end
  return list
end

-- Every line is valid UTF-8 of at most `width` characters, and none ends in a blank that matters to a diff.
local function fits(text, width, what)
  for _, line in ipairs(lines_of(text)) do
    local length = utf8.len(line)
    lu.assertTrue(length ~= nil and length <= width, ('%s: %s characters in %s'):format(what, length, line))
  end
end

-- --- axes -------------------------------------------------------------------------------------------------
TestAxis = {}

function TestAxis:test_ticks_of_any_range()
  local draw = kv.random { 600, seed = 5 }:totable()
  for i = 1, 600, 2 do
    local low = draw[i] * 10.0 ^ (i % 41 - 20)
    local high = low + math.abs(draw[i + 1]) * 10.0 ^ ((i * 7) % 31 - 15)
    for _, scale in ipairs { 'linear', 'log' } do
      for _, ends in ipairs { 'round', 'exact' } do
        local l, h = low, high
        if scale == 'log' then l, h = math.abs(low), math.abs(low) * (1 + math.abs(high)) end
        local a = axis.new { low = l, high = h, scale = scale, ends = ends }
        local little = (h - l) * 1e-8 + math.abs(l) * 1e-9
        lu.assertTrue(a.low <= l + little and a.high >= h - little, ("%s %g..%g"):format(scale, l, h))
        local ticks, power = a:ticks(6)
        lu.assertTrue(#ticks <= 14, #ticks)
        local before = -math.huge
        for _, tick in ipairs(ticks) do
          local place = a:at(tick[1])
          lu.assertTrue(tick[1] > before and place > -1e-6 and place < 1 + 1e-6)
          before = tick[1]
          lu.assertAlmostEquals(a:value(place), tick[1], math.abs(tick[1]) * 1e-6 + math.abs(a.high - a.low) * 1e-9)
          -- the text is the value
          local base, exponent = tick[2]:match('^(10)%^(%-?%d+)$')
          local said = base and 10.0 ^ tonumber(exponent) or tonumber((tick[2]:gsub(',', '')))
          lu.assertAlmostEquals(said * 10.0 ^ power, tick[1], math.max(math.abs(tick[1]), (a.high - a.low) / 20) * 2e-3)
        end
      end
    end
  end
end

function TestAxis:test_texts()
  local function texts(low, high, scale, count)
    local out = {}
    local ticks, power = axis.new { low = low, high = high, scale = scale, ends = 'exact' }:ticks(count or 5)
    for i, tick in ipairs(ticks) do out[i] = tick[2] end
    return table.concat(out, ' '), power
  end
  lu.assertEquals(texts(0, 1), '0.0 0.2 0.4 0.6 0.8 1.0')
  lu.assertEquals(texts(-1, 1, nil, 4), '-1.0 -0.5 0.0 0.5 1.0')
  lu.assertEquals({ texts(0, 3e6, nil, 3) }, { '0 1 2 3', 6 })
  lu.assertEquals({ texts(0, 2e-5, nil, 2) }, { '0 10 20', -6 })
  lu.assertEquals(texts(1e3, 1e5, 'log'), '1,000 10,000 100,000')
  lu.assertEquals(texts(1, 1e9, 'log', 3), '10^0 10^3 10^6 10^9')
  lu.assertEquals(texts(1, 10, 'log'), '1 2 5 10')
  lu.assertEquals(axis.new { low = 1, high = 10, scale = 'log', label = 'bytes (B)' }:caption(0), 'bytes (B), log scale')
  lu.assertEquals(axis.new { low = 1, high = 1e7, label = 'B' }:caption(6), 'B, in 10^6')
end

-- --- lines ------------------------------------------------------------------------------------------------
TestLine = {}

local function text(...) return table.concat({ ... }, '\n') end

function TestLine:test_to_the_character()
  lu.assertEquals(plot.line { title = 'a title', x = 'step', y = 'loss (nats)', ascii = true, width = 30, height = 5,
    series = { { 'one', { { 0, 4 }, { 5, 2 }, { 10, 0 } } }, { 'two', { { 0, 4 }, { 10, 4 } } } } }, text(
    'a title',
    '  loss (nats)',
    '  4 +&.......................o',
    '    |    ......',
    '  2 +          ..*...',
    '    |                ......',
    '  0 +                      ..*',
    '    +-------------------------',
    '     0           5          10',
    '     step',
    '     * one  o two  & several'))
end

function TestLine:test_logarithms_gaps_and_bars()
  local drawn = plot.line { ascii = true, width = 30, height = 7, scale = 'log', x = 'n', y = 'B',
    series = { { 'a', { 1, 10, 0 / 0, 100, 1000 }, error = { 0, { 1, 100 }, 0, 0, 0 } }, { 'b', { -1, 0 } } } }
  lu.assertStrContains(drawn, text( -- two decades every four rows; an error bar from 1 to 100; a gap after 10
    '  B, log scale',
    '      |                     .*',
    '      |                   ..',
    '  100 +      :          *.',
    '      |      :',
    '      |     .*',
    '      |  ... :',
    '    1 +*.    :',
    '      +'))
  lu.assertStrContains(drawn:gsub('%s+', ' '), '1 point is not drawn: nan or infinite 2 points are not drawn: at 0')
  fits(drawn, 30, 'line')
end

-- The same from lists, pairs and tensors.
function TestLine:test_forms_of_data()
  local function drawn(one) return plot.line { ascii = true, width = 40, series = { one } } end
  local want = drawn { 'a', { { 1, 5 }, { 2, 6 }, { 3, 9 } } }
  lu.assertEquals(drawn { 'a', { 5, 6, 9 } }, want)
  lu.assertEquals(drawn { 'a', kv.tensor { 5, 6, 9 } }, want)
  lu.assertEquals(drawn { 'a', kv.tensor { { 1, 5 }, { 2, 6 }, { 3, 9 } } }, want)
  lu.assertEquals(drawn { 'a', { 5, 6, 9 }, x = kv.tensor { 1, 2, 3 } }, want)
  lu.assertEquals(drawn { 'a', kv.tape():var(kv.tensor { 5, 6, 9 }) }, want)
  lu.assertNotEquals(drawn { 'a', { 5, 6, 9 }, style = 'points' }, want)
end

function TestLine:test_refusals()
  local bad = {
    { { series = {} }, 'series is empty' }, { { series = 3 }, 'series is empty' }, { { serie = {} }, "'series'" },
    { { series = { { 'a' } } }, 'series 1' }, { { series = { { 'a', 'x' } } }, 'got x' },
    { { series = { { 'a', { 1, 'y' } } } }, 'series 1 (a), point 2: expected a number, got y' },
    { { series = { { 'a', { { 1 } } } } }, 'got nil' }, { { series = { { 'a', { 0 / 0 } } } }, 'no series has a point' },
    { { series = { { 'a', { 0 } } }, scale = 'log' }, 'no series has a point' },
    { { series = { { 'a', { 1 } } }, scale = 'lag' }, "'log'" },
    { { series = { { 'a', { 1, 2 }, error = { 1 } } } }, '1 values for 2 points' },
    { { series = { { 'a', { 1 }, error = { -1 } } } }, '0 or more' },
    { { series = { { 'a', { 1 }, error = { { 2, 1 } } } } }, '{ low, high }' },
    { { series = { { 'a', { 1 }, errors = {} } } }, "'error'" },
    { { series = { { 'a', kv.zeros(2, 3) } } }, '{n, 2}' }, { { series = { { 'a', { 1 } } }, width = 3 }, 'got 3' },
    { { series = { { 'a', { 1 } } }, height = 2.5 }, 'got 2.5' },
    { { series = { { 'a', { 1 } } }, file = 'x.jpg' }, '.svg, .png or .pdf' },
  }
  for _, case in ipairs(bad) do check.fails({ 'plot.line', case[2] }, plot.line, case[1]) end
end

-- --- heat maps --------------------------------------------------------------------------------------------
TestHeat = {}

function TestHeat:test_to_the_character()
  lu.assertEquals(plot.heat { title = 'scores', x = 'key', y = 'query', ascii = true, unit = 'nats',
    values = { { 0, 0 / 0, -math.huge }, { 4, 9, 0 }, { 1, 2, 3 } }, marks = { { 2, 2, 'x' } },
    legend = { { 'x', 'selected' } }, width = 60 }, text(
    'scores',
    '  query',
    '  1 |..    |',
    '  2 |++x@..|',
    '  3 |::--==|',
    '    +------+',
    '     1 2 3',
    '     key',
    '     from  . 0  : 1  - 2  = 3  + 4  * 5  # 6  % 7',
    '     @ 8 to 9 nats',
    '     x selected  blank: no value'))
  lu.assertEquals(plot.heat { digits = true, from = 0, upto = 1, values = kv.tensor { { 0, 0.15, 1 }, { 0.5, 0.999, 2 } },
    rows = { 'a', 'bcd' }, columns = { 'KV', 'keys', 'x' } }, text(
    '  a   |000001111199999|',
    '  bcd |555559999999999|',
    '      +---------------+',
    '       KV   keys x',
    '       0 to 9: 0 to 1, in ten equal steps',
    '       values outside are shown as the nearest shade'))
end

-- A matrix that does not fit is drawn as the means of its blocks: the same picture as of these means.
function TestHeat:test_large()
  local big = kv.random { 60, 90, seed = 3 }
  local small = big:reshape { 20, 3, 30, 3 }:mean(4):mean(2)
  local function body(options)
    options.width, options.height, options.ascii = 37, 20, true
    return (plot.heat(options):gsub('%s+%d+ |', '\n'):gsub('+%-.*', ''))
  end
  lu.assertEquals(body { values = big }, body { values = small })
  lu.assertStrContains(plot.heat { values = big, width = 37, height = 20 }:gsub('%s+', ' '), 'mean of 3 x 3 values')
  lu.assertStrContains(plot.heat { values = kv.filled({ 2, 2 }, 7) }, '|') -- one value only
  lu.assertStrContains(plot.heat { values = { { 0 / 0 } } }, 'blank: no value')
  lu.assertStrContains(plot.heat { values = { { 1, 10, 100, 0 } }, scale = 'log', digits = true }, '|005599  |')
end

function TestHeat:test_refusals()
  for _, case in ipairs {
    { {}, 'got nil' }, { { values = {} }, 'nothing in it' }, { { values = kv.zeros(3) }, 'got rank 1' },
    { { values = { { 1, 2 }, { 3 } } }, 'row 2 has 1 values, the first one 2' }, { { values = { { 1 }, 2 } }, 'row 2' },
    { { values = { { 'x' } } }, 'row 1, column 1: expected a number, got x' },
    { { values = { { 1 } }, rows = { 'a', 'b' } }, 'list of 1 labels, got 2' },
    { { values = { { 1 } }, marks = { { 2, 1, 'x' } } }, 'inside 1 x 1' }, { { values = { { 1 } }, value = 1 }, "'values'" },
    { { values = { { 1 } }, from = 2, upto = 1 }, 'from = 2 is above' },
    { { values = { { 1 } }, from = 0, scale = 'log' }, 'more than 0' }, { { values = { { 1 } }, from = 0 / 0 }, 'finite' },
  } do
    check.fails({ 'plot.heat', case[2] }, plot.heat, case[1])
  end
end

-- --- strips -----------------------------------------------------------------------------------------------
TestStrip = {}

function TestStrip:test_to_the_character()
  lu.assertEquals(plot.strip { title = 'reads', x = 'position', from = 8, rows = { { 'full', '##..  #' },
    { 'swa', { ' ', ' ', 'é', 'w' } } }, legend = { { '#', 'read' }, { 'w', 'window' } }, note = 'so it is' }, text(
    'reads',
    '        8 10',
    '  full |##..  #',
    '  swa  |  éw',
    '        position',
    '        # read  w window',
    '        so it is'))
end

-- In a long row a character shows what comes first in the legend, and the ruler still says positions.
function TestStrip:test_long_rows()
  local cells = {}
  for i = 1, 240 do cells[i] = i == 100 and '#' or i % 2 == 0 and 'w' or '.' end
  local drawn = plot.strip { width = 85, from = 0, rows = { { 'a', cells } },
    legend = { { '#', 'read' }, { 'w', 'window' }, { '.', 'not' } } }
  local list = lines_of(drawn)
  lu.assertEquals(list[2], '  a |' .. ('w'):rep(33) .. '#' .. ('w'):rep(46))
  lu.assertEquals(list[1]:find('90', 1, true), 6 + 30) -- each stands for 3
  lu.assertStrContains(drawn:gsub('%s+', ' '), 'a character stands for 3 positions')
  fits(drawn, 85, 'strip')
end

function TestStrip:test_refusals()
  for _, case in ipairs { { {}, 'rows is empty' }, { { rows = { 'a' } }, 'row 1' }, { { rows = { { 'a', 3 } } }, 'got 3' },
    { { rows = { { 'a', { 'xy' } } } }, "cell 1 is 'xy'" }, { { rows = { { 'a', '' } }, from = 1.5 }, 'got 1.5' },
    { { rows = { { 'a', '' } }, legend = { 'x' } }, 'entry 1' } } do
    check.fails({ 'plot.strip', case[2] }, plot.strip, case[1])
  end
  lu.assertStrContains(plot.strip { rows = { { 'a', '' } } }, '  a |')
end

-- --- bars -------------------------------------------------------------------------------------------------
TestBars = {}

function TestBars:test_to_the_character()
  lu.assertEquals(plot.bars { ascii = true, unit = 'B', scale = 'log', width = 20, parts = { 'KV', 'keys' }, rows = {
    { 'MHA', { 9000, 1000 } }, { 'V3', { 10, 0 }, text = 'ten', note = 'a\nb', mark = true }, { 'z', 0 } } }, text(
    '  MHA |##################== 10,000',
    '> V3  |# ten',
    '      |  a',
    '      |  b',
    '  z   | 0',
    '      +--------------------',
    '       10^1         10^3',
    '       B, log scale: equal steps are equal ratios',
    '       ## KV  == keys; a bar is split by the true ratio of its parts'))
  for _, case in ipairs { { {}, 'rows is empty' }, { { rows = { { 'a', -1 } } }, 'row 1 (a)' },
    { { rows = { { 'a' } } }, 'got nothing' }, { { rows = { { 'a', 0 / 0 } } }, 'nan' },
    { { rows = { { 'a', 1 } }, from = 'x' }, 'got x' } } do
    check.fails({ 'plot.bars', case[2] }, plot.bars, case[1])
  end
end

-- --- every picture ----------------------------------------------------------------------------------------
TestAll = {}

local EVIL = "a'b\"c`touch @f`{x}_1^2@home \\n\\134 %d%s\n<b>&amp;\0\255$(touch f) é #"

local function evil_pictures(file)
  return {
    line = { title = EVIL, x = EVIL, y = EVIL, note = EVIL, series = { { EVIL, { 1, 2, 3 } },
      { EVIL, { 3, 2, 1 }, mark = '\\', error = { 1, 1, 1 } } }, file = file },
    heat = { title = EVIL, x = EVIL, y = EVIL, note = EVIL, unit = EVIL, values = { { 1, 2 }, { 3, 0 / 0 } },
      rows = { EVIL, EVIL }, columns = { EVIL, EVIL }, marks = { { 1, 1, "'" } }, legend = { { "'", EVIL } }, file = file },
    strip = { title = EVIL, x = EVIL, note = EVIL, rows = { { EVIL, "'\"`\\#%@" } }, legend = { { "'", EVIL } }, file = file },
    bars = { title = EVIL, unit = EVIL, note = EVIL, parts = { EVIL, EVIL },
      rows = { { EVIL, { 1, 2 }, text = EVIL, note = EVIL } }, file = file },
  }
end

-- The width is that of the terminal as COLUMNS says it; the characters are those of the locale.
function TestAll:test_width_and_locale()
  local file = check.write [[
    local kv = require 'kvlab'
    local y, rows = {}, {}
    for i = 1, 500 do y[i] = math.sin(i / 40) end
    for i = 1, 9 do rows[i] = { ('row %d'):format(i), 10 ^ i, text = 'a text behind the bar' } end
    print(kv.plot.line { title = ('word '):rep(40), x = 'x', y = 'y', series = { { ('name '):rep(30), y }, { 'b', { 0 } } },
      note = ('note '):rep(30) })
    print(kv.plot.heat { values = kv.random { 20, 300, seed = 1 }, x = ('x '):rep(100) })
    print(kv.plot.strip { rows = { { ('label '):rep(30), ('.'):rep(1000) } } })
    print(kv.plot.bars { unit = 'B', scale = 'log', rows = rows })]]
  for _, width in ipairs { 60, 80, 120 } do
    local _, out, err = check.sh(('COLUMNS=%d LC_ALL=C.UTF-8 lua5.4 %s'):format(width, file))
    lu.assertEquals(err, '')
    fits(out, width, width)
    local longest = 0
    for _, line in ipairs(lines_of(out)) do longest = math.max(longest, utf8.len(line)) end
    lu.assertTrue(longest > math.min(width, 100) - 6)
    lu.assertStrContains(out, '█')
    _, out, err = check.sh(('COLUMNS=%d LC_ALL=C lua5.4 %s'):format(width, file))
    lu.assertNil(out:find('[\128-\255]'))
    fits(out, width, width)
  end
  os.remove(file)
end

-- Labels of any bytes leave the text whole.
function TestAll:test_hostile_labels()
  for name, options in pairs(evil_pictures()) do
    for _, ascii in ipairs { true, false } do
      options.ascii = ascii
      local drawn = plot[name](options)
      lu.assertNotNil(utf8.len(drawn), name)
      lu.assertNil(drawn:find('[%z\1-\9\11-\31]'), name)
    end
  end
end

-- Values of any size: a picture of the width that was asked for, or an error that says what is wrong.
function TestAll:test_odd_values()
  local ODD = { 0, -0.0, 1, 1e300, -1e308, 1e308, 5e-324, 1e-310, 0 / 0, 1 / 0, -1 / 0, 123456789, math.mininteger }
  local draw, at = kv.random({ 4000, dist = 'integer', low = 0, high = 999, seed = 2 }):totable(), 0
  local function roll(n)
    at = at % #draw + 1
    return draw[at] % n + 1
  end
  local function pick() return roll(2) == 1 and ODD[roll(#ODD)] or (roll(999) - 500) * 10.0 ^ (roll(13) - 6) end
  local function scale() return roll(2) == 1 and 'log' or 'linear' end
  local drawn = 0
  for _ = 1, 400 do
    local points, matrix = {}, {}
    for k = 1, roll(6) do points[k] = { pick(), pick() } end
    for k = 1, roll(5) do matrix[k] = { pick(), pick(), pick() } end
    local width = 19 + roll(100)
    for name, options in pairs {
      line = { series = { { 'a', points } }, scale = scale(), xscale = scale(), height = 2 + roll(18), width = width },
      heat = { values = matrix, scale = scale(), width = width },
      bars = { rows = { { 'a', math.abs(pick()) }, { 'b', { math.abs(pick()) } } }, scale = scale() },
    } do
      local ok, result = pcall(plot[name], options)
      if ok then
        drawn = drawn + 1
        fits(result, name == 'bars' and 1000 or width, name)
      else
        lu.assertTrue(result:find('^plot%.bars: row %d') ~= nil or result:find('^plot%.line: no series') ~= nil, result)
      end
    end
  end
  lu.assertTrue(drawn > 700, drawn)
end

-- --- files ------------------------------------------------------------------------------------------------
TestFiles = {}

local function content(path)
  local file <close> = assert(io.open(path, 'rb'))
  return file:read('a')
end

-- In the files labels stand as they are: nothing is markup, a macro, a format or a command.
function TestFiles:test_hostile_labels()
  lu.skipIf(not gnuplot.installed(), 'gnuplot is not installed')
  local clean = EVIL:gsub('[%c]', ' '):gsub('\255', '?'):gsub('&', '&amp;'):gsub('<', '&lt;')
  local plain = clean:sub(1, 20)
  for ending, magic in pairs { svg = '<%?xml', png = '\137PNG', pdf = '%%PDF' } do
    local path = check.write('', "'`." .. ending)
    for name, options in pairs(evil_pictures(path)) do
      lu.assertEquals(plot[name](options), path)
      local drawn = content(path)
      lu.assertEquals(drawn:find(magic), 1, name)
      if ending == 'svg' then
        local _, count = drawn:gsub('>' .. plain:gsub('%p', '%%%0'), '')
        lu.assertTrue(count >= 3, ('%s: %d labels of %s'):format(name, count, plain))
        lu.assertNil(drawn:find('%z'))
      end
    end
    os.remove(path)
  end
  lu.assertNil(io.open(check.root .. '/f'))
end

-- Every character of a strip is in its file, whatever it means to gnuplot; long pictures are drawn too.
function TestFiles:test_content()
  lu.skipIf(not gnuplot.installed(), 'gnuplot is not installed')
  local path = check.write('', '.svg')
  plot.strip { rows = { { 'r', "'`\\@#%" } }, file = path }
  for _, char in ipairs { "'", '`', '\\', '@', '#', '%' } do
    lu.assertStrContains(content(path), ('>%s</text>'):format(char))
  end
  plot.line { xscale = 'log', scale = 'log', x = 'bytes (B)', series = { { 'a', kv.random { 5000, seed = 1 }:abs() } },
    file = path }
  lu.assertStrContains(content(path), 'bytes (B), log scale')
  lu.assertStrContains(content(path), '>100<')
  plot.heat { values = kv.random { 500, 400, seed = 1 }, file = path }
  lu.assertStrContains(content(path), 'a cell is the mean of 4 x 3 values')
  plot.strip { rows = { { 'r', ('#.'):rep(500) } }, legend = { { '#', 'read' } }, file = path }
  lu.assertStrContains(content(path), '># read</text>')
  plot.bars { rows = { { 'z', 0 }, { 'y', 0 } }, file = path }
  plot.line { series = { { 'a', { 1e-320, 1e308, -1e308 } } }, file = path }
  os.remove(path)
end

-- What can go wrong is said: no gnuplot, a folder that is not there; a start-up file of the user changes nothing.
function TestFiles:test_failures()
  local code, out, err = check.sh([[lua=$(command -v lua5.4); PATH=/nowhere $lua -e "
    local kv = require 'kvlab'
    print(pcall(kv.plot.line, { series = { { 'a', { 1, 2 } } }, file = 'x.svg' }))"]])
  lu.assertEquals({ code, err }, { 0, '' })
  lu.assertStrContains(out, "false\tplot.line: file = 'x.svg' needs gnuplot, which is not installed: apt-get install "
    .. 'gnuplot-nox')
  lu.skipIf(not gnuplot.installed(), 'gnuplot is not installed')
  check.fails({ 'plot.line', '/nowhere/x.svg' }, plot.line, { series = { { 'a', { 1 } } }, file = '/nowhere/x.svg' })
  local home, path = check.write '', check.write('', '.svg')
  os.remove(home)
  os.execute(('mkdir %q && echo "exit error 1" > %q/.gnuplot'):format(home, home))
  code, out = check.sh(([[HOME=%q lua5.4 -e "print(require('kvlab').plot.line { series = { { 'a', { 1 } } }, file = '%s' })"]])
    :format(home, path))
  lu.assertEquals(out, path .. '\n')
  os.execute(('rm -r %q %q'):format(home, path))
end

check.main()
