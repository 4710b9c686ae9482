---@meta
local config, run, sweep, kv, Run = {}, {}, {}, {}, {}

--- Settings of runs as plain data, and the ids that follow from them (docs/sweeps.md).
---@within kv.config

--- The id of a run with these settings: the beginning of a SHA-256 of kv.config.canonical and the results version.
---
--- Errors: as kv.config.canonical.
--- Example:
---   kv.config.id { width = 64, rate = 2.0 } == kv.config.id { rate = 2, width = 64 }  --> true
---   #kv.config.id {}  --> 16
---@param values table
---@return string id  16 hexadecimal digits
function config.id(values) end

--- The only form of settings: JSON with sorted keys; layouts and layers as text, whole floats as integers, built-in
--- records by name, own ones by all they are made of. A layout with widths or records keeps these.
---
--- Errors: a function, NaN, infinity, a table that contains itself, each with its place.
--- Example:
---   kv.config.canonical { rate = 2.0, layout = kv.layout 'swa*2' }  --> {"layout":"swa*2","rate":2}
---@param values table
---@return string text
function config.canonical(values) end

--- The layout that a setting stands for: text, a layout, or the table that a run's configuration has for one with widths.
---
--- Errors: those of kv.layout.
--- Example:
---   kv.config.layout 'swa*2'  --> swa*2
---@param value any
---@return Layout layout
function config.layout(value) end

--- The record that a setting stands for: a name, a record, or the table that it is made from.
---
--- Errors: those of kv.record; an unknown name.
--- Example:
---   kv.config.record('bf16').name  --> bf16
---@param value any
---@return Record record
function config.record(value) end

--- The folder of a run: settings, environment, metrics, checkpoints, and how it ended (docs/sweeps.md).
---@within kv.run

--- Makes the folder of a run, or opens it when the same settings made it.
---
--- Options: dir, a path; config, the settings.
--- Errors: a folder that holds a run of other settings, or of another results version; a folder that cannot be written.
--- Example:
---   pcall(kv.run.create, { dir = '/dev/null/x', config = {} })  --> false
---@param options table
---@return Run run
function run.create(options) end

--- Opens the folder of a run.
---
--- Errors: there is none; it is of another results version.
--- Example:
---   pcall(kv.run.open, '/nowhere')  --> false
---@param dir string
---@return Run run
function run.open(dir) end

--- A run: `dir`, `id`, `config` (its settings) and `notes` (texts about damaged checkpoints). What writes needs a claim,
--- which a sweep takes for its workers; one process has it, and it is free again when that process is gone or was silent
--- for a minute.
---@within Run

--- Takes the run for this process.
---
--- Errors: the folder cannot be written.
--- Example:
---   run = kv.run.create { dir = os.tmpname() .. '.run', config = { width = 64 } }
---   run:claim()  --> true
---@return boolean ok
---@return string? who  has it, when not ok
function Run:claim() end

--- Says that claim `number`, taken by the process that started this one, is for this process.
--- Example:
---   run = kv.run.create { dir = os.tmpname() .. '.run', config = { width = 64 } }
---   run:claimed(1)  --> nil
---@param number integer
---@return nil nothing
function Run:claimed(number) end

--- A heartbeat; Run:log and Run:checkpoint give it too.
---
--- Errors: the run was not claimed, or somebody has taken it over.
--- Example:
---   run = kv.run.create { dir = os.tmpname() .. '.run', config = { width = 64 } }
---   run:claim()  --> true
---   run:beat()  --> nil
---@return nil nothing
function Run:beat() end

--- Gives the run back, unfinished or not.
--- Example:
---   run = kv.run.create { dir = os.tmpname() .. '.run', config = { width = 64 } }
---   run:claim()  --> true
---   run:release()
---   run:status()  --> stopped
---@return nil nothing
function Run:release() end

--- Starts an attempt: what it runs with (versions, BLAS kernels, threads, host, commit) is added to environment.json when it
--- differs from the last attempt's.
---
--- Errors: as Run:beat.
--- Example:
---   run = kv.run.create { dir = os.tmpname() .. '.run', config = { width = 64 } }
---   run:claim()  --> true
---   run:begin()
---   #run:environments()  --> 1
---@param more? table  to be noted besides
---@return nil nothing
function Run:begin(more) end

--- What the attempts ran with.
--- Example:
---   run = kv.run.create { dir = os.tmpname() .. '.run', config = { width = 64 } }
---   #run:environments()  --> 0
---@return table[] environments
function Run:environments() end

--- Appends a line to the metrics; `step` is what resuming goes by.
---
--- Errors: a number that is NaN or infinite, with its step; as Run:beat.
--- Example:
---   run = kv.run.create { dir = os.tmpname() .. '.run', config = { width = 64 } }
---   run:claim()  --> true
---   run:log { step = 1, loss = 2.5 }
---   run:metrics()[1].loss  --> 2.5
---@param record table  plain data
---@return nil nothing
function Run:log(record) end

--- The metrics so far. What was logged after the checkpoint from which a later attempt went on is left out.
--- Example:
---   run = kv.run.create { dir = os.tmpname() .. '.run', config = { width = 64 } }
---   #run:metrics()  --> 0
---@return table[] records
---@return integer torn  lines that could not be read, as a crash leaves one
function Run:metrics() end

--- Saves where the run stands: complete and on the disk when it returns. The last two checkpoints are kept.
---
--- Options: step; tensors, { name = Tensor }; state, plain data.
--- Errors: what the system says (a full disk leaves the earlier ones as they were); as Run:beat.
--- Example:
---   run = kv.run.create { dir = os.tmpname() .. '.run', config = { width = 64 } }
---   run:claim()  --> true
---   run:checkpoint { step = 10, tensors = { w = kv.ones(2) }, state = { best = 0.5 } }
---   run:resume().step  --> 10
---@param options table
---@return nil nothing
function Run:checkpoint(options) end

--- Loads the newest checkpoint of which every byte is as it was written, and changes nothing: no claim is needed.
--- Damaged ones are named in `notes`.
---
--- Errors: what the system says.
---@return table? checkpoint  as of Run:resume
function Run:last() end

--- Loads the newest checkpoint of which every byte is as it was written. Damaged ones are named in `notes` and in the
--- metrics, and the one before is taken.
---
--- Errors: as Run:beat.
--- Example:
---   run = kv.run.create { dir = os.tmpname() .. '.run', config = { width = 64 } }
---   run:claim()  --> true
---   run:resume()  --> nil
---@return table? checkpoint  { step =, state =, tensors =, damaged = texts }, or nil
function Run:resume() end

--- How the run stands: 'new', 'running', 'stopped' (nobody works on it), 'done' or 'failed'.
--- Example:
---   run = kv.run.create { dir = os.tmpname() .. '.run', config = { width = 64 } }
---   run:status()  --> new
---@return string state
---@return any about  what done.json or failed.json says, or who works on it
function Run:status() end

--- Ends the run with its result.
---
--- Errors: a metric that is NaN or infinite; as Run:beat.
--- Example:
---   run = kv.run.create { dir = os.tmpname() .. '.run', config = { width = 64 } }
---   run:claim()  --> true
---   run:finish { loss = 0.25 }
---   run:status()  --> done
---@param metrics? table  the last line of the metrics when missing
---@return nil nothing
function Run:finish(metrics) end

--- Ends the run as failed.
---
--- Errors: as Run:beat.
--- Example:
---   run = kv.run.create { dir = os.tmpname() .. '.run', config = { width = 64 } }
---   run:claim()  --> true
---   run:fail 'the loss is NaN'
---   run:status()  --> failed
---@param reason string
---@param more? table  to be noted besides
---@return nil nothing
function Run:fail(reason, more) end

--- Puts the failure aside (failed-1.json, ...), so that the run goes on.
---
--- Errors: it has not failed; as Run:beat.
--- Example:
---   run = kv.run.create { dir = os.tmpname() .. '.run', config = { width = 64 } }
---   run:claim()  --> true
---   run:fail 'the loss is NaN'
---   run:retry()
---   run:status()  --> running
---@return nil nothing
function Run:retry() end

--- Experiments of many runs (docs/sweeps.md); the command is kvlab sweep.
---@within kv.sweep

--- All combinations of values, as an iterator for `vary`. The last key in the alphabet changes fastest.
---
--- Errors: a value that is no list.
--- Example:
---   kv.sweep.grid { a = { 1, 2 }, b = { 'x' } }().b  --> x
---@param lists table<string, any[]>
---@return fun(): table? points
function sweep.grid(lists) end

--- Random points, the same for the same seed. A setting is a list to choose from or { from =, to =, log = true (even on a
--- log scale), whole = true }.
---
--- Errors: no range.
--- Example:
---   kv.sweep.draws(3, 1, { rate = { from = 1e-4, to = 1e-2, log = true } })().rate <= 1e-2  --> true
---@param n integer
---@param seed integer
---@param spec table
---@return fun(): table? points
function sweep.draws(n, seed, spec) end

--- The points of an experiment, each once: { id =, config =, label = }.
---
--- Options: set, a list of 'key=value'; only, a text in the label or the beginning of the id.
--- Errors: whatever is wrong with the experiment, unknown settings with a suggestion.
--- Example:
---   #kv.sweep.points { name = 'x', point = print, vary = { a = { 1, 2 } }, seeds = 3 }  --> 6
---@param experiment string|table  the path of a sweep file, or what it returns
---@param options? table
---@return table[] points
---@return string[] keys  that vary
function sweep.points(experiment, options) end

--- Does what kvlab sweep does.
---
--- Options: dir ('runs/NAME'), jobs = 1, retry = false, budget (minutes), set, only, say = function(text).
--- Errors: as kv.sweep.points; a folder that cannot be written. A point that fails is no error.
--- Example:
---   pcall(kv.sweep.run, '/nowhere/sweep.lua')  --> false
---@param file string
---@param options? table
---@return table result  points, done, before, failed, left, failures, stopped, dir
function sweep.run(file, options) end

---@within kv

--- The runs of a folder as rows of mean, standard deviation and n over seeds; the command is kvlab report.
---
--- Options: by (a list of settings; all that differ), quality, better ('less', 'more'), cost, within, against (a part of
--- a row's label). A row has setting, label, n, metrics = { name = { mean =, sd =, n = } }, bytes_per_token and read_bytes
--- when there is a layout, seconds, pareto, and difference = { mean =, sd =, n =, floor =, beyond = } to the row `against`.
--- Errors: no such folder; an unknown setting or metric.
--- Example:
---   pcall(kv.report, '/nowhere')  --> false
---@param dir string
---@param options? table
---@return table result  rows, keys, metrics, counts, warnings, failures, quality, cost
function kv.report(dir, options) end
