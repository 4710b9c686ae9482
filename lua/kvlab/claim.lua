-- claim.lua: who works on a run. Claims are files in the run's folder, numbered: claim-1, claim-2, ... The one with the
-- highest number counts. It is free to take over when it was released, when its process is gone (seen on the same
-- machine), or when nobody touched it for STALE seconds; taking over is creating the next number, which the file system
-- lets exactly one process do. Nothing is ever taken away from its name, so no order of events lets two win.
--
-- Ages are differences between times of files on the same file system: clocks of machines need not agree.
local core = require 'kvlab.core'
local environment = require 'kvlab.environment'
local json = require 'kvlab.json'

local system = core.system
local claim = {}

claim.STALE = 60 -- seconds without a heartbeat after which a claim is nobody's
claim.BEAT = 10  -- seconds between heartbeats, at most

local function path_of(dir, n) return ('%s/claim-%d'):format(dir, n) end

-- newest(dir) -> the number of the claim that counts, 0 for none.
function claim.newest(dir)
  local best = 0
  for _, name in ipairs(core.base.list_dir(dir) or {}) do
    best = math.max(best, math.tointeger(name:match('^claim%-(%d+)$')) or 0)
  end
  return best
end

local function read(path)
  local file = io.open(path)
  if not file then return nil end
  local text = file:read('a')
  file:close()
  local ok, value = pcall(json.decode, text)
  return ok and type(value) == 'table' and value or {} -- {}: being written, or torn; only its age counts
end

-- How long ago a file was touched. A file of ours that is written now says what the time is there; where nothing can
-- be written, this machine's clock has to do.
local function age(dir, path)
  local about = system.stat(path)
  if not about then return 0 end
  local probe = ('%s/.time-%s-%d'):format(dir, system.hostname(), system.pid())
  local now = system.write(probe, '') and system.stat(probe)
  os.remove(probe)
  return (now and now.modified or os.time()) - about.modified
end

-- claim.holder(dir) -> nil when nobody works on the run, else a text that says who; and the number that counts.
function claim.holder(dir)
  local n = claim.newest(dir)
  if n == 0 then return nil, 0 end
  local path = path_of(dir, n)
  local owner = read(path)
  if not owner or owner.released then return nil, n end
  local who = ('process %s on %s'):format(owner.pid or '?', owner.host or '?')
  if owner.machine == environment.machine() and math.type(owner.pid) == 'integer' and owner.pid > 0 then
    if environment.started(owner.pid) == owner.started then return who, n end
    return nil, n
  end
  if age(dir, path) > claim.STALE then return nil, n end
  return who, n
end

-- claim.take(dir) -> the number of our claim; or nil and who has it; raises when the folder cannot be written.
function claim.take(dir)
  while true do
    local who, n = claim.holder(dir)
    if who then return nil, who end
    local pid = system.pid()
    local text = json.encode { host = system.hostname(), machine = environment.machine(), pid = pid,
      started = environment.started(pid) }
    local path = path_of(dir, n + 1)
    local ok, problem = system.write(path, text, true)
    if ok then
      for old = math.max(1, n - 2), n do os.remove(path_of(dir, old)) end
      return n + 1
    end
    if not system.stat(path) then error(('the run cannot be claimed: %s'):format(problem), 0) end
  end
end

-- claim.owned(dir, n): is ours still the one that counts?
function claim.owned(dir, n) return claim.newest(dir) == n end

function claim.beat(dir, n) return system.touch(path_of(dir, n)) end

-- claim.release(dir, n): others may go on at once.
function claim.release(dir, n)
  if not claim.owned(dir, n) then return end
  local temporary = ('%s/.released-%d'):format(dir, n)
  if system.write(temporary, json.encode { released = true }) then system.rename(temporary, path_of(dir, n)) end
end

return claim
