#!/usr/bin/env lua5.4
-- gentutorial.lua: writes docs/tutorial/ from the lessons in lua/kvlab/lessons/, with what their code prints.
--   lua5.4 scripts/gentutorial.lua [--check]     --check: only says whether the files are up to date
local root = arg[0]:match('^(.*)/scripts/[^/]*$') or arg[0]:find('^scripts/') and '.' or '..'
package.path = ('%s/lua/?.lua;%s/lua/?/init.lua;%s'):format(root, root, package.path)
package.cpath = root .. '/build/lib/?.so;' .. package.cpath
if arg[1] and arg[1] ~= '--check' or arg[2] then
  io.stderr:write(("gentutorial: unknown option '%s'; usage: gentutorial.lua [--check]\n"):format(arg[2] or arg[1]))
  os.exit(2)
end
-- Pictures are drawn as the terminal can show them; these are always in UTF-8 and 80 columns.
if os.getenv 'LC_ALL' ~= 'C.UTF-8' or os.getenv 'COLUMNS' ~= '80' then
  local _, _, status = os.execute(("LC_ALL=C.UTF-8 COLUMNS=80 lua5.4 '%s' %s"):format(arg[0]:gsub("'", [['\'']]),
    arg[1] or ''))
  os.exit(status)
end

local kv = require 'kvlab'
local base = require('kvlab.core').base
local lessons = require 'kvlab.lessons'
local repl = require 'kvlab.repl'

local folder = root .. '/docs/tutorial'
local stale = {}

-- What a page says by itself, without what its code printed and the answers that were computed.
local function written(text) return text:gsub('```text\n.-\n```', ''):gsub('\n%*%*[%d.,]+%.%*%*', '') end

-- Writes a file, or with --check says that it is not up to date. Of a page that varies the output is not compared.
local function put_file(name, text, varies)
  local path = folder .. '/' .. name
  if arg[1] then
    local file <close> = io.open(path, 'rb')
    local found = file and file:read('a')
    local good = found == text or varies and found and written(found) == written(text)
    if not good then stale[#stale + 1] = 'docs/tutorial/' .. name end
    return
  end
  local file <close> = assert(io.open(path, 'wb'))
  assert(file:write(text))
end

-- Lines that begin with two spaces are a block.
local function markdown(text)
  local out, inside = {}, false
  for _, line in ipairs(lessons.wrapped(text, 110)) do
    local now = line:find('^  ') ~= nil
    if now ~= inside then out[#out + 1] = now and '```text' or '```' end
    out[#out + 1] = now and line:sub(3) or line
    inside = now
  end
  if inside then out[#out + 1] = '```' end
  return table.concat(out, '\n')
end

local function put_code(out, code, env, where)
  local printed = {}
  local ok, why = lessons.execute(code, env, function(text) printed[#printed + 1] = text end)
  if not ok then error(('%s: %s'):format(where, why), 0) end
  out[#out + 1] = '```lua\n' .. table.concat(lessons.lines(code), '\n') .. '\n```'
  if #printed > 0 then out[#out + 1] = '```text\n' .. table.concat(printed):gsub('%s+$', '') .. '\n```' end
end

local function page(lesson, names, i)
  local env = repl.environment(kv)
  local out = { ('# %d. %s'):format(lesson.number, lesson.title) }
  for k, step in ipairs(lesson.steps) do
    local where = ('lesson %s, step %d'):format(lesson.name, k)
    out[#out + 1] = markdown(step.text)
    if step.code then put_code(out, step.code, env, where) end
    if step.ask then
      local right = lessons.expected(step.ask, env)
      out[#out + 1] = markdown('**Question.** ' .. step.ask.question)
      out[#out + 1] = '<details><summary>Answer</summary>'
      out[#out + 1] = markdown(('**%s.** %s'):format(lessons.said(right), step.ask.working))
      if step.ask.code then put_code(out, step.ask.code, env, where) end
      out[#out + 1] = '</details>'
    end
  end
  local links = {}
  if names[i - 1] then links[#links + 1] = ('[back](%s)'):format(names[i - 1]) end
  links[#links + 1] = '[contents](README.md)'
  if names[i + 1] then links[#links + 1] = ('[next](%s)'):format(names[i + 1]) end
  out[#out + 1] = table.concat(links, ' - ')
  return table.concat(out, '\n\n') .. '\n'
end

local names = {}
for i, lesson in ipairs(lessons.all()) do names[i] = ('%02d-%s.md'):format(lesson.number, lesson.name) end
if not arg[1] then assert(base.make_dir(folder)) end

local index = { [[
# Tutorial

How the KV cache of a language model came down from 3.9 MB to 890 bytes for each token, for readers who know Lua and
linear algebra. The pages build on each other. Every piece of code can be typed at the prompt (`scripts/kvlab`), and
`lesson 'NAME'` there teaches the same page, asks its questions and checks the answers.
]] }
for i, lesson in ipairs(lessons.all()) do
  put_file(names[i], page(lesson, names, i), lesson.varies)
  index[#index + 1] = ('%d. [%s](%s) (`%s`)'):format(lesson.number, lesson.title, names[i], lesson.name)
end
index[#index + 1] = '\n`scripts/gentutorial.lua` writes these pages from `lua/kvlab/lessons/`; edit them there.\n'
put_file('README.md', table.concat(index, '\n'))

-- A page of a lesson that is gone or renamed must not stay.
local known = { ['README.md'] = true }
for _, name in ipairs(names) do known[name] = true end
for _, name in ipairs(base.list_dir(folder) or {}) do
  if not known[name] then stale[#stale + 1] = 'docs/tutorial/' .. name .. ' belongs to no lesson' end
end
if #stale > 0 then
  table.sort(stale)
  io.stderr:write('not up to date: ', table.concat(stale, ', '), '; run lua5.4 scripts/gentutorial.lua\n')
  os.exit(1, true)
end
