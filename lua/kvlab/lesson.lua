-- lesson.lua: teaches at the prompt. lesson() lists the lessons, lesson 'csa' starts one; then next, back, again, skip
-- and quit, typed alone, move in it, and answer(...) answers. Everything else typed in between is Lua as always, and
-- its variables stay: a lesson's code runs in the same session.
--
--   lesson.install(env)        once for a session: defines env.lesson and env.answer
--   lesson.word(line, env)     before a line is evaluated: true when it was one of the words and is done
--
-- Progress is a file of lines `NAME STEP` and `NAME done` (kvlab.state); of each lesson the last line counts.
local format = require 'kvlab.format'
local lessons = require 'kvlab.lessons'
local work = require 'kvlab.progress'
local screen = require 'kvlab.plot.screen'
local state = require 'kvlab.state'

local lesson = {}

local MOST_COLUMNS <const> = 80
local sessions = setmetatable({}, { __mode = 'k' }) -- by environment
local made = setmetatable({}, { __mode = 'k' })     -- names of the functions of sessions, for help
local pending -- the lesson that the next session begins with

-- --- writing ------------------------------------------------------------------------------------------
local function columns() return math.max(20, math.min(screen.columns(), MOST_COLUMNS)) end

local function put(session, ...) session.write(table.concat({ ... }) .. '\n') end

local function put_text(session, text)
  for _, line in ipairs(lessons.wrapped(text, columns() - 1)) do put(session, line) end
end

-- Shows code and runs it: true when it went well.
local function put_code(session, code)
  put(session)
  for _, line in ipairs(lessons.lines(code)) do put(session, line == '' and '' or '    ' .. line) end
  put(session)
  local ok, why = lessons.execute(code, session.env, session.write)
  if not ok then put(session, why) end
  return ok, why
end

-- --- progress -----------------------------------------------------------------------------------------
-- progress(session) -> { name = { step =, done = } }, read when it is first needed.
local function progress(session)
  if session.progress then return session.progress end
  local append, lines = state.open('lessons', 'progress in lessons is not kept')
  session.append, session.progress = append, {}
  for _, line in ipairs(lines) do
    local name, at = line:match('^([%w_-]+) (%w+)$')
    local known = name and session.progress[name] or {}
    if at == 'done' then
      known.step, known.done = nil, true
    elseif at and math.tointeger(tonumber(at)) then
      known.step = math.tointeger(tonumber(at))
    end
    if name then session.progress[name] = known end
  end
  return session.progress
end

local function keep(session, name, at)
  local all = progress(session)
  local known = all[name] or {}
  all[name] = known
  if known.step == at then return end
  if at == 'done' then known.step, known.done = nil, true else known.step = at end
  session.append(('%s %s'):format(name, at))
end

local function list(session)
  local all, rows = progress(session), {}
  for i, l in ipairs(lessons.all()) do
    local known = all[l.name] or {}
    local mark = known.step and ('step %d of %d'):format(math.min(known.step, #l.steps), #l.steps)
      or known.done and 'done' or ''
    rows[i] = { tostring(l.number), l.name, l.title, mark }
  end
  for _, line in ipairs(format.table(rows, { 'r', 'l', 'l', 'l' })) do put(session, line) end
  put_text(session, "lesson 'NAME' starts one, or goes on where it was left; lesson('NAME', 1) begins anew.")
end

-- --- steps --------------------------------------------------------------------------------------------
local function footer(session)
  local here = session.current
  local what = here.open and 'answer(...), or skip' or here.at < #here.lesson.steps and 'next' or 'next ends the lesson'
  put_text(session, ('[%s %d/%d: %s; back, again, quit]'):format(here.lesson.name, here.at, #here.lesson.steps, what))
end

local function put_question(session, ask)
  put(session)
  put_text(session, 'Question: ' .. ask.question)
end

-- Shows step `at` of the current lesson and runs it. The right answer is computed at once, so that what is tried out
-- before answering does not change it.
local function show(session, at)
  local here = session.current
  local step = here.lesson.steps[at]
  here.at, here.open, here.right, here.tries = at, false, nil, 0
  if at > 1 then keep(session, here.lesson.name, at) end
  put(session)
  put_text(session, step.text)
  local ok, why = true, nil
  if step.code then ok, why = put_code(session, step.code) end
  if ok and step.ask then
    ok, why = pcall(lessons.expected, step.ask, session.env)
    if ok then
      here.right, here.open = why, true
      put_question(session, step.ask)
    else
      put(session, tostring(why))
    end
  end
  if not ok and why ~= 'interrupted' then
    put_text(session, ("A name of this lesson may mean something else by now; lesson('%s', %d) makes them again.")
      :format(here.lesson.name, at))
  end
  put(session)
  footer(session)
end

local function show_working(session, ask)
  put_text(session, ask.working)
  if ask.code then
    put_code(session, ask.code)
    put(session)
  end
end

-- Runs the code of the steps before `at` unseen, for what it defines; false when Ctrl-C stopped it.
local function prepare(session, l, at)
  local bar <close> = work.start('the steps before', at - 1)
  for i = 1, at - 1 do
    local code = l.steps[i].code
    local ok, why = true, nil
    if code then ok, why = lessons.execute(code, session.env, function() end) end
    if why == 'interrupted' then
      work.erase()
      put_text(session, ("interrupted; lesson('%s', 1) begins without the steps before."):format(l.name))
      return false
    elseif not ok then
      work.erase()
      put(session, ('step %d: %s'):format(i, why))
    end
    bar:to(i)
  end
  return true
end

-- Starts a lesson at a step.
local function start(session, name, at)
  local l = lessons.find(name)
  if at ~= nil and not (math.type(at) == 'integer' and at >= 1 and at <= #l.steps) then
    error(("lesson: '%s' has the steps 1 to %d, not %s"):format(l.name, #l.steps, lessons.said(at)), 0)
  end
  local known = progress(session)[l.name]
  at = at or known and known.step or 1
  at = math.max(1, math.min(at, #l.steps))
  session.current = nil
  put_text(session, ('Lesson %d: %s'):format(l.number, l.title))
  if not prepare(session, l, at) then return end
  session.current = { lesson = l, at = at }
  show(session, at)
end

local words = {}

function words.next(session)
  local here = session.current
  if here.open then
    put_text(session, 'The question is open: answer(...), or skip.')
  elseif here.at < #here.lesson.steps then
    show(session, here.at + 1)
  else
    keep(session, here.lesson.name, 'done')
    session.current, session.left = nil, nil
    put_text(session, ("That was lesson '%s'."):format(here.lesson.name))
    for _, l in ipairs(lessons.all()) do
      if l.number > here.lesson.number then
        put_text(session, ("Next: lesson '%s', %s."):format(l.name, l.title))
        session.left = ("lesson '%s' starts the next one"):format(l.name)
        break
      end
    end
  end
end

function words.skip(session)
  local here = session.current
  if here.open then
    put_text(session, ('The answer is %s.'):format(lessons.said(here.right)))
    show_working(session, here.lesson.steps[here.at].ask)
    here.open = false
  end
  words.next(session)
end

function words.back(session)
  local here = session.current
  if here.at == 1 then put_text(session, 'This is the first step.') else show(session, here.at - 1) end
end

function words.again(session) show(session, session.current.at) end

function words.quit(session)
  local here = session.current
  session.current, session.left = nil, ("lesson '%s' goes on at step %d"):format(here.lesson.name, here.at)
  put_text(session, session.left .. '.')
end

local function answer(session, ...)
  local here = session.current
  local ask = here and here.lesson.steps[here.at].ask
  if not here then
    put_text(session, 'No question is open. lesson() lists the lessons.')
  elseif not ask or here.right == nil then
    put_text(session, 'This step asks nothing; next goes on.')
  elseif select('#', ...) == 0 then
    put_question(session, ask)
  else
    local good, problem = lessons.judge((...), here.right, ask.tolerance)
    if good then
      here.open = false
      put_text(session, 'Right. ' .. ask.working)
      if ask.code then put_code(session, ask.code) end
      put(session)
    elseif problem then
      put_text(session, problem .. '.')
    else
      here.tries = here.tries + 1
      put_text(session, ('Not %s. %s'):format(lessons.said((...)), ask.hint))
      if here.tries > 1 then put_text(session, 'skip shows the answer.') end
    end
    if good then footer(session) end
  end
end

-- --- the session --------------------------------------------------------------------------------------
-- install(env [, write]): env.lesson and env.answer. write(text) takes what lessons say; by default it is printed.
function lesson.install(env, write)
  local session = { env = env, write = write or function(text) io.stdout:write(text) end }
  sessions[env] = session
  function env.lesson(name, at)
    if name == nil then list(session) else start(session, name, at) end
  end
  function env.answer(...) answer(session, ...) end
  made[env.lesson], made[env.answer] = 'lesson', 'answer'
  if pending then
    local name = pending
    pending = nil
    start(session, name)
  end
end

-- word(line, env) -> whether the line was a word of the lesson that runs in this session; then it has been done.
function lesson.word(line, env)
  local session = sessions[env]
  local word = session and session.current and type(line) == 'string' and line:match('^%s*(%l+)%s*$')
  if not word or not words[word] then return false end
  words[word](session)
  io.stdout:flush()
  return true
end

-- name_of(f) -> 'lesson' or 'answer' when f is that function of a session.
function lesson.name_of(f) return made[f] end

-- is_word(word): does it move in a lesson?
function lesson.is_word(word) return words[word] ~= nil end

-- resume(env) -> how to go on, for a word that was typed while no lesson runs.
function lesson.resume(env)
  local session = sessions[env]
  return session and session.left or "lesson 'NAME' starts one, lesson() lists them"
end

-- begin_with(name): the next session that is installed begins with this lesson.
function lesson.begin_with(name) pending = lessons.find(name).name end

-- list(): prints the lessons and how far they are.
function lesson.list() list { write = function(text) io.stdout:write(text) end } end

-- all(name, env, write) -> whether all code ran: a whole lesson without asking.
function lesson.all(name, env, write)
  local l = lessons.find(name)
  local session = { env = env, write = write }
  local good = true
  put_text(session, ('Lesson %d: %s'):format(l.number, l.title))
  for i, step in ipairs(l.steps) do
    put(session)
    put(session, ('--- %d of %d'):format(i, #l.steps))
    put_text(session, step.text)
    if step.code then good = put_code(session, step.code) and good end
    if step.ask then
      local ok, right = pcall(lessons.expected, step.ask, env)
      good = ok and good
      put_question(session, step.ask)
      put(session)
      put_text(session, ok and ('Answer: %s. %s'):format(lessons.said(right), step.ask.working) or tostring(right))
      if step.ask.code then good = put_code(session, step.ask.code) and good end
    end
  end
  return good
end

return lesson
