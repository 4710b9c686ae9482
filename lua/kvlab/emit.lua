-- emit.lua: the points of a sweep as work for somebody else's scheduler. Every task is the same command with one id,
-- which claims that run, goes on from its last checkpoint, and does nothing when it is done already; so a scheduler may
-- run tasks twice, in any order, or after a requeue.
local emit = {}

function emit.quote(text)
  if text:find('^[%w_@%%+=:,./-]+$') then return text end
  return "'" .. text:gsub("'", [['\'']]) .. "'"
end

-- The words of the command for one point, without its id.
local function command(o)
  local words = { o.program, 'sweep', o.file, '--dir', o.dir }
  for _, text in ipairs(o.set or {}) do
    words[#words + 1] = '--set'
    words[#words + 1] = text
  end
  if o.retry then
    words[#words + 1] = '--retry'
    words[#words + 1] = 'failed'
  end
  for i, word in ipairs(words) do words[i] = emit.quote(word) end
  return table.concat(words, ' ') .. ' -j 1 --only '
end

-- emit.list { program =, file =, dir =, points =, set =, retry = } -> a command a line, for GNU parallel or xargs.
function emit.list(o)
  local lines = {}
  local front = command(o)
  for i, point in ipairs(o.points) do lines[i] = front .. point.id end
  return table.concat(lines, '\n')
end

-- How many seconds before the end of a task it is warned. Slurm looks every half minute, and warns so much too early.
local function warning(minutes) return minutes and math.min(120, math.ceil(minutes) * 15) or 120 end

-- emit.slurm { ..., name =, jobs =, minutes = } -> the text of an array script for sbatch. Slurm warns the script by
-- SIGUSR1 before the time is up; then the worker stops at a checkpoint, and the task is queued again. SIGTERM says that
-- Slurm ends the task (scancel, preemption, scontrol requeue): whether it is queued again is not for the script to say.
-- The traps are set when the worker is there: started under them, it would lose a signal that comes before its exec. A
-- signal ends the waiting of the shell with a status of its own, so the shell waits again; 127 says that it has the
-- status of the worker already.
function emit.slurm(o)
  local ids = {}
  for i, point in ipairs(o.points) do ids[i] = point.id end
  local lines = { '#!/bin/sh', '#SBATCH --job-name=kvlab-' .. o.name,
    ('#SBATCH --array=0-%d%%%d'):format(#ids - 1, o.jobs), '#SBATCH --ntasks=1', '#SBATCH --cpus-per-task=1',
    '#SBATCH --requeue', '#SBATCH --open-mode=append', '#SBATCH --signal=B:USR1@' .. warning(o.minutes) }
  if o.minutes then lines[#lines + 1] = ('#SBATCH --time=%d'):format(math.ceil(o.minutes)) end
  lines[#lines + 1] = ('set -- %s'):format(table.concat(ids, ' \\\n  '))
  lines[#lines + 1] = 'shift "$SLURM_ARRAY_TASK_ID"'
  lines[#lines + 1] = command(o) .. '"$1" &'
  lines[#lines + 1] = [[
worker=$!
trap 'signalled=yes warned=yes; kill -TERM "$worker" 2>/dev/null' USR1
trap 'signalled=yes; kill -TERM "$worker" 2>/dev/null' TERM
status=127 signalled=yes warned=no
while [ "$signalled" = yes ]; do
  signalled=no
  wait "$worker"
  code=$?
  [ "$code" -eq 127 ] || status=$code
done
if [ "$warned" = yes ] && [ "$status" -eq 143 ]; then
  scontrol requeue "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"
fi
exit "$status"]]
  return table.concat(lines, '\n')
end

return emit
