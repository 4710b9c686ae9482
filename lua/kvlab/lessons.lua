-- lessons.lua: the lessons themselves, one Lua file each in lessons/, and how their code runs and their answers are
-- judged. lesson.lua teaches them at the prompt, scripts/gentutorial.lua makes docs/tutorial of them; docs/lessons.md
-- says how to write one.
local core = require 'kvlab.core'
local exact = require 'kvlab.exact'
local format = require 'kvlab.format'
local options = require 'kvlab.options'
local preview = require 'kvlab.preview'
local suggest = require 'kvlab.suggest'
local tensor = require 'kvlab.tensor'
local terminal = require 'kvlab.terminal'

local lessons = {}

local CHUNK <const> = '=lesson'

-- --- files --------------------------------------------------------------------------------------------
local folder = debug.getinfo(1, 'S').source:match('^@(.*)%.lua$')
local LESSON, NEEDED = { 'number', 'name', 'title', 'steps', 'varies' }, { 'number', 'name', 'title', 'steps' }
local STEP = { 'text', 'code', 'ask' }
local ASK = { 'question', 'answer', 'tolerance', 'hint', 'working', 'code' }

-- check(lesson, where): raises when a field is missing or unknown; returns the lesson.
function lessons.check(lesson, where)
  options.check(lesson, LESSON, where, 'field')
  local function need(t, names, place)
    for _, name in ipairs(names) do
      if t[name] == nil then error(("%s: no '%s'"):format(place, name), 0) end
    end
  end
  need(lesson, NEEDED, where)
  for i, step in ipairs(lesson.steps) do
    local place = ('%s, step %d'):format(where, i)
    need(options.check(step, STEP, place, 'field'), { 'text' }, place)
    if step.ask then
      place = place .. ', ask'
      need(options.check(step.ask, ASK, place, 'field'), { 'question', 'answer', 'hint', 'working' }, place)
    end
  end
  return lesson
end

local all -- every lesson in order of its number, read once

-- all() -> the lessons in their order.
function lessons.all()
  if all then return all end
  local found = {}
  for _, file in ipairs(assert(core.base.list_dir(folder))) do
    if file:find('%.lua$') then
      found[#found + 1] = lessons.check(dofile(folder .. '/' .. file), 'lessons/' .. file)
    end
  end
  table.sort(found, function(a, b) return a.number < b.number end)
  all = found
  return all
end

-- names() -> the names of the lessons, in their order.
function lessons.names()
  local names = {}
  for i, lesson in ipairs(lessons.all()) do names[i] = lesson.name end
  return names
end

-- find(name) -> the lesson of that name or number; raises, with the nearest name, when there is none.
function lessons.find(name)
  if type(name) ~= 'string' and type(name) ~= 'number' then
    error(("lesson: expected a name, such as '%s', not a %s"):format(lessons.all()[1].name, type(name)), 0)
  end
  for _, lesson in ipairs(lessons.all()) do
    if lesson.name == name or lesson.number == name then return lesson end
  end
  local names = lessons.names()
  if type(name) == 'number' then
    error(('there is no lesson %s; lesson() lists them'):format(tostring(name)), 0)
  end
  local near = suggest.phrase(name, names)
  error(("there is no lesson '%s'%s"):format(#name > 40 and name:sub(1, 37) .. '...' or name,
    near ~= '' and near or '; lessons: ' .. table.concat(names, ', ')), 0)
end

-- --- text ---------------------------------------------------------------------------------------------
-- lines(text) -> its lines without the indentation they share; the first, after `[[`, counts by itself.
function lessons.lines(text)
  local list, least = {}, math.huge
  for line in (text .. '\n'):gmatch('(.-)[ \t]*\n') do list[#list + 1] = line end
  while list[1] == '' do table.remove(list, 1) end
  while list[#list] == '' do table.remove(list) end
  for i = 2, #list do
    if list[i] ~= '' then least = math.min(least, #list[i]:match('^ *')) end
  end
  for i, line in ipairs(list) do
    list[i] = i == 1 and line:match('^%s*(.*)$') or line:sub(math.min(least, #line) + 1)
  end
  return list
end

-- wrapped(text, width) -> lines. Paragraphs are filled; lines that begin with two spaces stay.
function lessons.wrapped(text, width)
  local out, paragraph = {}, {}
  local function finish()
    local filled = #paragraph > 0 and terminal.wrap(table.concat(paragraph, ' '), width) or {}
    table.move(filled, 1, #filled, #out + 1, out)
    paragraph = {}
  end
  for _, line in ipairs(lessons.lines(text)) do
    if line == '' or line:find('^  ') then
      finish()
      out[#out + 1] = line
    else
      paragraph[#paragraph + 1] = line
    end
  end
  finish()
  return out
end

-- --- code ---------------------------------------------------------------------------------------------
-- The last lines of a step are an expression where they can be one: its values are shown, as at the prompt.
local function compile(code, env)
  local lines = lessons.lines(code)
  for first = 1, #lines do
    local before = table.concat(lines, '\n', 1, first - 1) .. (first > 1 and '\n' or '')
    local last = 'return ' .. table.concat(lines, '\n', first)
    if load(before, CHUNK, 't', env) and load(last, CHUNK, 't', env) then
      return load(before .. last, CHUNK, 't', env)
    end
  end
  return load(table.concat(lines, '\n'), CHUNK, 't', env)
end

-- execute(code, env, write) -> true, or false and why it failed. Runs in the session's environment; what it prints and
-- the values of its last expression go to write(text). Ctrl-C stops it.
function lessons.execute(code, env, write)
  local chunk, problem = compile(code, env)
  if not chunk then return false, problem end
  local function print_to_lesson(...)
    local words = table.pack(...)
    for i = 1, words.n do words[i] = tostring(words[i]) end
    write(table.concat(words, '\t') .. '\n')
  end
  local old = rawget(env, 'print')
  rawset(env, 'print', print_to_lesson)
  local ok, err = core.base.interruptible(function()
    local results = table.pack(chunk())
    if results.n == 0 then return end
    rawset(env, '_', results[1])
    for i = 1, results.n do results[i] = preview(results[i]) end
    write(table.concat(results, '\t') .. '\n')
  end)
  if rawget(env, 'print') == print_to_lesson then rawset(env, 'print', old) end
  if ok then return true end
  if core.base.clear_interrupt() then return false, 'interrupted' end
  return false, (tostring(err):gsub('^lesson:(%d+): ', 'line %1: '))
end

-- --- answers ------------------------------------------------------------------------------------------
-- What an answer is, whatever form it has: a number, a boolean, a text, or a list of numbers.
local function plain(value)
  if exact.is(value) then return value:is_whole() and math.tointeger(value:tonumber()) or value:tonumber() end
  if tensor.is_tensor(value) then return value.size == 1 and value:item() or value:flatten():totable() end
  if type(value) == 'string' then
    return tonumber((value:gsub('[,_ ]', ''))) or value:lower():match('^%s*(.-)%s*$')
  end
  return value
end

-- expected(ask, env) -> the right answer: the expression of the question, computed in the session.
function lessons.expected(ask, env)
  return plain(assert(load('return ' .. ask.answer, CHUNK, 't', env))())
end

local function near(given, right, tolerance)
  if type(given) ~= 'number' then return false end
  if not tolerance and math.type(right) == 'integer' then return given == right end
  return math.abs(given - right) <= (tolerance or 1e-6) * math.abs(right)
end

-- said(value) -> a few words for an answer, whatever it is.
function lessons.said(value)
  local whole = type(value) == 'number' and math.tointeger(value)
  if whole then return format.number(whole) end
  if type(value) == 'number' then return value ~= value and 'NaN' or ('%.6g'):format(value) end
  if type(value) == 'string' then
    return "'" .. (#value > 40 and value:sub(1, 37) .. '...' or value):gsub('[%c\128-\255]', '?') .. "'"
  end
  if type(value) == 'nil' or type(value) == 'boolean' then return tostring(value) end
  if type(value) == 'table' and not debug.getmetatable(value) then
    local words = {}
    for i = 1, math.min(#value, 9) do words[i] = type(value[i]) == 'number' and lessons.said(value[i]) or '...' end
    return '{ ' .. table.concat(words, ', ') .. (#value > 9 and ', ...' or '') .. ' }'
  end
  return tensor.is_tensor(value) and 'a tensor' or 'a ' .. type(value)
end

-- What kind of answer `right` is, for whoever gave another.
local function kind(right)
  if type(right) == 'number' then return 'a number' end
  if type(right) == 'boolean' then return 'true or false' end
  return type(right) == 'string' and 'a word in quotes' or 'a list, such as answer { 1, 2 }'
end

-- judge(given, right, tolerance) -> true or false; nil and what would be an answer when `given` is none.
function lessons.judge(given, right, tolerance)
  local ok, value = pcall(plain, given)
  if not ok then value = given end -- a tensor that was freed
  if type(value) ~= type(right) or (type(value) == 'table' and debug.getmetatable(value)) then
    if type(right) ~= 'table' or type(value) ~= 'number' then
      return nil, ('%s is no answer here; expected %s'):format(lessons.said(given), kind(right))
    end
    value = { value }
  end
  if value ~= value then return nil, ('NaN is no answer; expected %s'):format(kind(right)) end
  if type(right) == 'number' then return near(value, right, tolerance) end
  if type(right) ~= 'table' then return value == right end
  if #value ~= #right then return false end
  for i, each in ipairs(right) do
    if not near(value[i], each, tolerance) then return false end
  end
  return true
end

return lessons
