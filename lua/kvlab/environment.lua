-- environment.lua: what made a number, besides its settings: versions, the machine, the commit of the source.
local config = require 'kvlab.config'
local core = require 'kvlab.core'
local emit = require 'kvlab.emit'

local system = core.system
local environment = {}

local function first_line(path)
  local file = io.open(path)
  local line = file and file:read('l')
  if file then file:close() end
  return line
end

-- The commit that a git folder stands at: a line of HEAD, of the branch that it names, or of packed-refs. A worktree
-- keeps its branches in the folder that commondir names.
local function head_of(git)
  local head = first_line(git .. '/HEAD')
  if not head then return nil end
  local ref = head:match('^ref: (.*)$')
  if not ref then return head:match('^%x+$') end
  local common = first_line(git .. '/commondir')
  if common then common = common:find('^/') and common or git .. '/' .. common end
  for _, folder in ipairs { git, common } do
    local commit = (first_line(folder .. '/' .. ref) or ''):match('^%x+$')
    if commit then return commit end
    local packed = io.open(folder .. '/packed-refs')
    if packed then
      local text = packed:read('a')
      packed:close()
      for hash, name in text:gmatch('(%x+) (%S+)') do
        if name == ref then return hash end
      end
    end
  end
  return nil
end

-- environment.commit(folder) -> the commit of the git tree around it, or nil.
function environment.commit(folder)
  local at = system.realpath(folder)
  while at and at ~= '' do
    local git = at .. '/.git'
    local about = system.stat(git)
    if about and about.kind == 'file' then
      git = (first_line(git) or ''):match('^gitdir: (.*)$') or ''
      if not git:find('^/') then git = at .. '/' .. git end
    end
    if about then return head_of(git) end
    at = at:match('^(.*)/[^/]*$')
  end
  return nil
end

-- Whether files of the tree around `folder` differ from its commit; nil when git cannot be asked.
local function modified(folder)
  local git = io.popen(('git -C %s status --porcelain --untracked-files=no -- . 2>/dev/null')
    :format(emit.quote(folder)))
  if not git then return nil end
  local changed = git:read('l') ~= nil
  return git:close() and changed or nil
end

-- The folder that this file lies in: the source that a commit has to belong to.
local HERE = debug.getinfo(1, 'S').source:match('^@(.*)/[^/]*$') or '.'

-- environment.now() -> plain data for environment.json.
function environment.now()
  local commit = environment.commit(HERE)
  return { kvlab = core.version, results = config.RESULTS, lua = _VERSION, blas = core.system.blas_core(),
    threads = core.base.threads(), host = system.hostname(), commit = commit,
    modified = commit and modified(HERE) or nil }
end

-- environment.commit_name(about, length) -> the commit of what now() gave, with a + when files were modified.
function environment.commit_name(about, length)
  return (about.commit or 'no commit'):sub(1, length or -1) .. (about.modified and '+' or '')
end

-- environment.variables(but) -> the list of 'NAME=value' that a process of ours may have, but for the names in the set.
function environment.variables(but)
  local list = {}
  for _, entry in ipairs(system.environment()) do
    if not but[entry:match('^[^=]*')] then list[#list + 1] = entry end
  end
  return list
end

-- environment.machine() -> a text that differs between machines, boots and containers, so that numbers of processes
-- mean something only where it is the same.
local machine
function environment.machine()
  machine = machine or table.concat({ system.hostname(), first_line('/proc/sys/kernel/random/boot_id') or '',
    system.readlink('/proc/self/ns/pid') or '' }, ' ')
  return machine
end

-- environment.started(pid) -> when a process began, in ticks since boot, as text; nil when there is none.
function environment.started(pid)
  if not system.exists(pid) then return nil end
  local line = first_line(('/proc/%d/stat'):format(pid))
  if not line then return '' end -- no /proc: the number alone has to do
  local state, fields = line:match('^.*%) (%S) (.*)$')
  if state == 'Z' or state == 'X' then return nil end
  local n = 3
  for word in (fields or ''):gmatch('%S+') do
    n = n + 1
    if n == 22 then return word end
  end
  return ''
end

return environment
