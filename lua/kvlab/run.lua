-- run.lua: kv.run: the folder of one run: what it was made from, what it measured, and where it can go on.
--
--   config.json          the settings with every default; id and results version
--   layout.txt           the layout, when a setting is called so
--   environment.json     a list: what each attempt ran with, when it differed
--   metrics.jsonl        one JSON object a line, only ever appended to
--   checkpoints/         step-N-C.safetensors and step-N-C.json (C: number of the claim); the last two are kept
--   done.json | failed.json    how it ended; failed-1.json, ... of earlier attempts
--   claim-N              who works on it (kvlab.claim)
--   output.log           what the process of a sweep printed
--
-- What has to be whole is written under another name, synced and renamed. Whatever was killed, and when, the folder
-- holds the last complete checkpoint; a metric line may be torn at its end, which reading tolerates.
local claim = require 'kvlab.claim'
local config = require 'kvlab.config'
local core = require 'kvlab.core'
local environment = require 'kvlab.environment'
local json = require 'kvlab.json'
local opts = require 'kvlab.options'

local system = core.system
local run = {}
local class = {}
local meta = { __name = 'kvlab.Run', __index = class }

local KEPT <const> = 2 -- checkpoints

-- --- files ------------------------------------------------------------------------------------------------

local function read_text(path)
  local file = io.open(path, 'rb')
  local text = file and file:read('a')
  if file then file:close() end
  return text
end

local function read_json(path)
  local text = read_text(path)
  if not text then return nil end
  local ok, value = pcall(json.decode, text)
  if not ok then error(('%s: %s'):format(path, value), 0) end
  return value
end

local function need(ok, problem)
  if not ok then error(problem, 0) end
  return ok
end

-- The file appears with all of its content, or not at all.
function run.write_whole(path, text)
  local temporary = ('%s.%s-%d.tmp'):format(path, system.hostname(), system.pid())
  local ok, problem = system.write(temporary, text)
  if ok then ok, problem = system.rename(temporary, path) end
  if not ok then
    os.remove(temporary)
    error(problem, 0)
  end
  system.sync(path:match('^(.*)/[^/]*$') or '.')
end

local function write_json(path, value) run.write_whole(path, json.encode(value, { indent = 2 }) .. '\n') end

function run.make_folders(path)
  local at = path:find('^/') and '' or '.'
  for part in path:gmatch('[^/]+') do
    at = at .. '/' .. part
    need(core.base.make_dir(at))
  end
end

-- --- making and opening ------------------------------------------------------------------------------------

local function object(dir, about)
  return setmetatable({ dir = dir, id = about.id, config = about.config, notes = {} }, meta)
end

local function check_version(dir, about)
  if type(about) ~= 'table' or type(about.config) ~= 'table' then
    error(('%s: config.json is not that of a run'):format(dir), 0)
  end
  if about.results ~= config.RESULTS then
    error(('%s: the run is of results version %s, this kvlab makes version %d; use another folder')
      :format(dir, tostring(about.results), config.RESULTS), 0)
  end
end

-- run.open(dir) -> the run that is there; only reading needs no more.
function run.open(dir)
  if type(dir) ~= 'string' then error('kv.run.open: expected a path, not a ' .. type(dir), 0) end
  local about = read_json(dir .. '/config.json')
  if not about then error(('%s: there is no run (no config.json)'):format(dir), 0) end
  check_version(dir, about)
  return object(dir, about)
end

-- run.create { dir =, config = } -> a new run, or the one of the same settings that is there already.
function run.create(options)
  opts.check(options, { 'dir', 'config' }, 'kv.run.create', 'option')
  local dir = options.dir
  if type(dir) ~= 'string' then error('kv.run.create: dir is no path', 0) end
  local values = config.plain(options.config or {})
  local about = { results = config.RESULTS, id = config.id(values), config = values }
  local old = read_json(dir .. '/config.json')
  if old then
    check_version(dir, old)
    if config.canonical(old.config) ~= config.canonical(values) then
      error(('%s: the folder holds a run of other settings, %s'):format(dir, old.id), 0)
    end
    return object(dir, about)
  end
  run.make_folders(dir)
  if values.layout then run.write_whole(dir .. '/layout.txt', tostring(config.layout(values.layout)) .. '\n') end
  write_json(dir .. '/config.json', about)
  return object(dir, about)
end

-- --- who works on it ------------------------------------------------------------------------------------------

-- r:claim() -> true; or false and who works on it. A claim needs heartbeats: r:log and r:checkpoint give them.
function class:claim()
  if self.number then return true end
  local number, who = claim.take(self.dir)
  if not number then return false, who end
  self.number, self.holds, self.beaten = number, true, core.base.now()
  return true
end

-- r:claimed(n): somebody else, our runner, holds claim n for us and gives the heartbeats.
function class:claimed(number) self.number, self.holds = number, false end

function class:beat()
  if not self.number then error(self.dir .. ': claim the run first', 0) end
  if not claim.owned(self.dir, self.number) then
    error(('%s: the run was taken over by another process while this one was away'):format(self.dir), 0)
  end
  if self.holds and core.base.now() - self.beaten > claim.BEAT then
    self.beaten = core.base.now()
    need(claim.beat(self.dir, self.number))
  end
end

function class:release()
  if self.number and self.holds then claim.release(self.dir, self.number) end
  self.number = nil
end

-- r:begin(): an attempt starts; what it runs with is noted when it is not what the last one had.
function class:begin(more)
  self:beat()
  local path = self.dir .. '/environment.json'
  local list = read_json(path) or {}
  local now = environment.now()
  for key, value in pairs(more or {}) do now[key] = value end
  local last = list[#list]
  if not last or json.encode(last) ~= json.encode(now) then
    list[#list + 1] = now
    write_json(path, json.array(list))
  end
  self.began = core.base.now()
end

function class:environments() return read_json(self.dir .. '/environment.json') or {} end

-- --- metrics ----------------------------------------------------------------------------------------------------

local function check_finite(record)
  for key, value in pairs(record) do
    if type(value) == 'number' and (value ~= value or value == math.huge or value == -math.huge) then
      local step = record.step and (' at step %s'):format(record.step) or ''
      error(("the metric '%s' is %s%s"):format(key, value ~= value and 'nan' or tostring(value), step), 0)
    end
  end
end

-- r:log { step = 10, loss = 2.5 }: a line of metrics. NaN and infinity are errors.
function class:log(record)
  if type(record) ~= 'table' then error('log: expected a table of metrics, not a ' .. type(record), 0) end
  check_finite(record)
  self:beat()
  local path = self.dir .. '/metrics.jsonl'
  local line = json.encode(record) .. '\n'
  if not self.appending then
    local text = read_text(path)
    if text and text ~= '' and text:sub(-1) ~= '\n' then line = '\n' .. line end -- the last one was torn
    self.appending = true
  end
  need(system.append(path, line))
end

-- r:metrics() -> list of records; and how many lines could not be read. What came after the checkpoint at which a later
-- attempt went on is left out: that attempt logged it again.
function class:metrics()
  local list, torn = {}, 0
  for line in (read_text(self.dir .. '/metrics.jsonl') or ''):gmatch('[^\n]+') do
    local ok, record = pcall(json.decode, line)
    if not ok or type(record) ~= 'table' then
      torn = torn + 1
    elseif record.event == 'resumed' then
      local kept = {}
      for _, one in ipairs(list) do
        if not one.step or one.step <= record.step then kept[#kept + 1] = one end
      end
      list = kept
    else
      list[#list + 1] = record
    end
  end
  return list, torn
end

-- --- checkpoints --------------------------------------------------------------------------------------------------

-- The names of checkpoints without what is after the dot, newest first: by step, then by claim.
local function checkpoint_names(dir)
  local list = {}
  for _, name in ipairs(core.base.list_dir(dir .. '/checkpoints') or {}) do
    local base, step, number = name:match('^(step%-(%d+)%-(%d+))%.json$')
    if base then list[#list + 1] = { base = base, step = math.tointeger(step), number = math.tointeger(number) } end
  end
  table.sort(list, function(a, b)
    if a.step ~= b.step then return a.step > b.step end
    return a.number > b.number
  end)
  return list
end

-- r:checkpoint { step =, tensors = { name = Tensor }, state = plain data }: complete and synced when it returns.
function class:checkpoint(options)
  opts.check(options, { 'step', 'tensors', 'state' }, 'checkpoint', 'option')
  local step = opts.whole(options.step, 0, 'checkpoint: step')
  self:beat()
  local folder = self.dir .. '/checkpoints'
  need(core.base.make_dir(folder))
  local base = ('step-%d-%d'):format(step, self.number)
  local about = { id = self.id, results = config.RESULTS, step = step, state = options.state }
  if options.tensors then
    local path = ('%s/%s.safetensors'):format(folder, base)
    core.safetensors.save(path, options.tensors)
    local digest, bytes = system.sha256_file(path)
    about.tensors = { sha256 = need(digest, bytes), bytes = bytes }
  end
  local text = json.encode(about)
  run.write_whole(('%s/%s.json'):format(folder, base), ('%s\n%s\n'):format(text, system.sha256(text)))
  local kept = {}
  for i, one in ipairs(checkpoint_names(self.dir)) do kept[one.base] = i <= KEPT or nil end
  for _, name in ipairs(core.base.list_dir(folder) or {}) do
    if not kept[name:match('^step%-%d+%-%d+') or ''] then os.remove(folder .. '/' .. name) end
  end
end

-- The checkpoint `base` when every byte of it is as it was written; otherwise nil and what is wrong.
local function verified(self, base)
  local path = ('%s/checkpoints/%s'):format(self.dir, base)
  local text = read_text(path .. '.json')
  local line, digest = (text or ''):match('^([^\n]*)\n(%x+)\n$')
  if not line or system.sha256(line) ~= digest then return nil, base .. '.json is damaged' end
  local about = json.decode(line)
  if about.id ~= self.id or about.results ~= config.RESULTS then return nil, base .. ' belongs to another run' end
  if about.tensors then
    local found, bytes = system.sha256_file(path .. '.safetensors')
    if not found then return nil, base .. '.safetensors is missing' end
    if found ~= about.tensors.sha256 or bytes ~= about.tensors.bytes then
      return nil, base .. '.safetensors is damaged'
    end
  end
  return about
end

-- The newest checkpoint that is whole, its name, and what is wrong with those after it: { { base, problem }, ... }.
local function newest_whole(self)
  local damaged = {}
  for _, one in ipairs(checkpoint_names(self.dir)) do
    local about, problem = verified(self, one.base)
    if about then return about, one.base, damaged end
    damaged[#damaged + 1] = { one.base, problem }
  end
  return nil, nil, damaged
end

-- Says in r.notes which checkpoints are damaged; returns their problems.
local function note_damage(self, found, damaged, otherwise)
  local problems = {}
  for i, one in ipairs(damaged) do
    problems[i] = one[2]
    local from = found and ('the checkpoint of step %d is used'):format(found.step) or otherwise
    self.notes[#self.notes + 1] = ('%s: %s; %s'):format(self.dir, one[2], from)
  end
  return problems
end

local function loaded(self, about, base, problems)
  local tensors = {}
  if about.tensors then
    local file <close> = core.safetensors.open(('%s/checkpoints/%s.safetensors'):format(self.dir, base))
    for _, name in ipairs(file:names()) do tensors[name] = file:load(name) end
  end
  return { step = about.step, state = about.state, tensors = tensors, damaged = problems }
end

-- r:last() -> { step =, state =, tensors = { name = Tensor }, damaged = { text, ... } } of the newest checkpoint that
-- is whole, or nil when there is none. Only reads; those that are damaged are named in r.notes.
function class:last()
  local found, base, damaged = newest_whole(self)
  local problems = note_damage(self, found, damaged, 'there is no other')
  return found and loaded(self, found, base, problems) or nil
end

-- r:resume() -> the same for whoever goes on from it. Those that are damaged are named in the metrics too.
function class:resume()
  self:beat()
  local found, base, damaged = newest_whole(self)
  for _, one in ipairs(damaged) do -- it must not count as one of the last two
    system.rename(('%s/checkpoints/%s.json'):format(self.dir, one[1]),
      ('%s/checkpoints/%s.json.damaged'):format(self.dir, one[1]))
  end
  local problems = note_damage(self, found, damaged, 'the run starts anew')
  if found or #damaged > 0 or read_text(self.dir .. '/metrics.jsonl') then
    self:log { event = 'resumed', step = found and found.step or -1, damaged = #problems > 0 and problems or nil }
  end
  return found and loaded(self, found, base, problems) or nil
end

-- --- how it ended -----------------------------------------------------------------------------------------------

-- r:status() -> 'new', 'running', 'stopped' (begun, and nobody works on it), 'done' or 'failed'; and what done.json or
-- failed.json says, or who works on it.
function class:status()
  local done = read_json(self.dir .. '/done.json')
  if done then return 'done', done end
  local failed = read_json(self.dir .. '/failed.json')
  if failed then return 'failed', failed end
  local who, number = claim.holder(self.dir)
  if who then return 'running', who end
  return number > 0 and 'stopped' or 'new'
end

-- r:finish(metrics): it is done, with these numbers as its result; without any, those of the last line of metrics.
function class:finish(metrics)
  if not metrics then
    local list = self:metrics()
    metrics = list[#list] or {}
  end
  if type(metrics) ~= 'table' then error('finish: expected a table of metrics, not a ' .. type(metrics), 0) end
  check_finite(metrics)
  self:beat()
  write_json(self.dir .. '/done.json', { metrics = metrics,
    seconds = self.began and core.base.now() - self.began, at = os.date('!%Y-%m-%dT%H:%M:%SZ') })
end

-- r:fail(reason): it failed, and nobody tries again until somebody says so (r:retry).
function class:fail(reason, more)
  self:beat()
  local about = { reason = tostring(reason), at = os.date('!%Y-%m-%dT%H:%M:%SZ') }
  for key, value in pairs(more or {}) do about[key] = value end
  write_json(self.dir .. '/failed.json', about)
end

function class:retry()
  self:beat()
  local n = 1
  while system.stat(('%s/failed-%d.json'):format(self.dir, n)) do n = n + 1 end
  need(system.rename(self.dir .. '/failed.json', ('%s/failed-%d.json'):format(self.dir, n)))
end

function meta.__tostring(self) return ('kvlab.Run: %s in %s'):format(self.id, self.dir) end
meta.__close = class.release

run.class = class
return run
