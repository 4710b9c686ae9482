---@meta
local kv, tasks = {}, {}

---@within kv

--- Makes a task of its description, checked and complete.
---
--- Give `name`; `vocab`, the number of ids; `length`, the most tokens of a row; `answers = { first id, last id }`
--- that can be right, or `chance`, the accuracy of a guess; and either a row at a time or whole batches:
---
---   row(below, tokens, targets, note)   fills one row: tokens begin as zeros, targets as -1 (no loss there)
---   batch(seed, step, size)             gives { tokens, targets, ... }, int32 {size, T}
---
--- `below(n)` is a random whole number in 0 .. n-1, from a stream that the row has for itself. `fields` and
--- `slices` list the names of what `row` puts into `note`: a field becomes an int32 tensor of the batch
--- (`candidates`: the values a wrong answer could have been taken from); a slice is a list of positions, from 1,
--- that are reported on apart. Optional: `candidate_chance`, `about` (a sentence), `options`, `validation(index,
--- size)`, `score(batch, predictions)`, `describe()`, `encode(text)`, `decode(ids)`, `windows`.
---
--- The task is a plain table with `name`, `vocab`, `length`, `chance`, `options`, and the functions `batch(seed,
--- step, size)`, `validation(index, size)` (held out, the same for every seed), `score(batch, predictions)` and
--- `describe()`. A batch must depend on nothing but its arguments, so that a resumed run goes on exactly.
--- Errors: an unknown key, a missing one, two ways to make batches; from batch: tensors of another type or shape, ids
--- that are not there.
--- Example:
---   kv.task({ name = 'x', vocab = 4, length = 2, answers = { 0, 3 }, row = print }).chance  --> 0.25
---@param description table
---@return table task
function kv.task(description) end

--- Training tasks, made on the fly from a seed; docs/tasks.md has their rows, chance levels and examples.
---
--- Each takes one table of options, all optional except the files of a text, and returns a task as kv.task does.
---@within kv.tasks

--- The names of the tasks that come with kvlab.
--- Example:
---   kv.tasks.names()[5]  --> recall
---@return table names
function tasks.names() end

--- Multi-query associative recall: keys are bound to values, then some are asked for.
---
---   vocab = 128, keys = vocab // 2 - 1   ids: 0 filler, the keys, the values
---   length = 32, pairs = 4, offset = 0   fillers in front of the pairs
---   key_tokens = 1                       tokens in a row that make a key
---   rewrites = 0                         keys bound a second time; the last value counts. Slice `rewritten`
---   queries = all keys                   how many keys are asked, each once
---   place = 'power'                      of the queries: near ones often, 'uniform', or at the 'end'
---   fill = 'zero'                        or 'random': key tokens that are in no key of the row
---
--- Candidates are all values of the row, overwritten ones too.
--- Errors: options that contradict each other, such as a length too short for the pairs; the message says what is
--- enough. Source: MQAR of Zoology, arXiv 2312.04927.
--- Example:
---   kv.tasks.recall({ vocab = 64, pairs = 2 }).candidate_chance  --> 0.5
---   kv.tasks.recall().batch(1, 1, 8).tokens.shape[2]  --> 32
---@param options? table
---@return table task
function tasks.recall(options) end

--- k-hop induction: from a position to behind the last earlier occurrence of its token, `hops` times.
---
--- `vocab = 16`, `length = 64`, `hops = 1`. All ids are symbols, drawn evenly; every position from which all hops can
--- be made has a target.
--- Errors: a length that no chain of hops fits into. Source: arXiv 2402.09268.
--- Example:
---   kv.tasks.induction({ vocab = 4, hops = 2 }).chance  --> 0.25
---@param options? table
---@return table task
function tasks.induction(options) end

--- Copy: a string, a gap, a separator, the string again.
---
--- `vocab = 16` (0 filler, 1 separator, then symbols), `length = 32`, `span` = symbols (as many as fit), `gap = 0`.
--- Errors: a length too short for the string twice and the gap.
--- Example:
---   kv.tasks.copy({ length = 20 }).options.span  --> 10
---@param options? table
---@return table task
function tasks.copy(options) end

--- Selective copy: the symbols again, in order, that lie scattered among noise.
---
--- `vocab = 16`, `length = 64`, `items = 8`, `noise = 1` (ids 0 .. noise-1 are noise, the next one separates, the
--- rest are symbols).
--- Errors: a length too short for the items twice. Source: as in MAD, arXiv 2403.17844.
--- Example:
---   kv.tasks.selective_copy({ vocab = 12, noise = 1 }).chance  --> 0.1
---@param options? table
---@return table task
function tasks.selective_copy(options) end

--- One or several needles, a key and a value each, in a haystack; the keys are asked at the end.
---
--- `vocab = 128`, `length = 128`, `needles = 1`, `keys = vocab // 4`, `values = vocab // 4` (the rest is hay), `hay
--- = 'own'` ids or `'values'`; `distance` from a value to its query: a number, {low, high}, or anything that fits.
--- Candidates, with several needles: the values of all.
--- Errors: a distance that the length does not allow; a range without room for the needles. Source: after RULER,
--- arXiv 2404.06654.
--- Example:
---   kv.tasks.needle({ length = 64, distance = 50 }).options.distance[2]  --> 50
---@param options? table
---@return table task
function tasks.needle(options) end

--- A phone book: names and numbers of several tokens, then names whose numbers are asked for, digit by digit.
---
--- `length = 64`, `entries = 8`, `queries = 1`, `name_tokens = 2` of `letters = 20`, `number_tokens = 3` of `digits
--- = 10`; vocab is 1 + letters + digits. The score has `numbers`: `correct`, `candidate` (somebody else's) and
--- `count` of whole numbers.
--- Errors: more entries than names or numbers; a length too short. Source: arXiv 2402.01032.
--- Example:
---   kv.tasks.phonebook().vocab  --> 31
---@param options? table
---@return table task
function tasks.phonebook(options) end

--- Chains of assignments: a = 7, b = a, c = b; then variables whose values are asked for.
---
--- `vocab = 64` (0 filler, 1 `=`, 2 `?`, `names = (vocab - 3) // 2`, the rest are values), `length = 32`, `chains =
--- 2`, `hops = 2` (assignments of a chain), `queries` = all variables, `order = 'chained'` or `'shuffled'`. Slices
--- `hop1`, `hop2`, ...: variables that take so many look-ups. Candidates: the values of all chains.
--- Errors: more variables than names, more chains than values, a length too short. Source: after RULER's variable
--- tracking, arXiv 2404.06654.
--- Example:
---   kv.tasks.variables({ chains = 4, length = 64 }).candidate_chance  --> 0.25
---@param options? table
---@return table task
function tasks.variables(options) end

--- The next character or byte of text files.
---
--- `files` (a name or a list), `unit = 'char'` (of UTF-8) or `'byte'`, `length = 64`, `train = 0.9` (the first part
--- of the text; the rest validates), `ngram = 8`. Ids are exactly the characters that occur, in the order of code
--- points. Slice `repeated`: targets that end an n-gram which stood in their window before (ngram = 0: none).
--- `validation` goes through the `windows` validation windows, side by side, in a fixed random order.
--- `encode(text)` and `decode(ids)`. The task's `options.digest` names the text; given as an option, another text
--- is refused.
--- Errors: a file that is missing, empty or not UTF-8; parts shorter than length + 1.
--- Example:
---   pcall(kv.tasks.text, { files = 'no-such-file.txt' })  --> false
---@param options table
---@return table task
function tasks.text(options) end

--- Tasks one after the other: a list of { task =, steps = }, the last without steps.
---
--- Steps count from 1. Vocab and length are the largest; chance and validation are those of the last.
--- Errors: a stage before the last without steps.
--- Example:
---   kv.tasks.curriculum({ { task = kv.tasks.copy(), steps = 500 }, { task = kv.tasks.variables() } }).vocab  --> 64
---@param stages table
---@return table task
function tasks.curriculum(stages) end

--- The random numbers of one row: below(n) is a whole number in 0 .. n-1, n at most 2^31 - 1.
---
--- Source: splitmix64, Steele, Lea, Flood (OOPSLA 2014), started from the three numbers; the same on every machine.
--- Example:
---   kv.tasks.stream(1, 1, 1)(10) == kv.tasks.stream(1, 1, 1)(10)  --> true
---@param seed integer
---@param step integer
---@param row integer
---@return function below
function tasks.stream(seed, step, row) end

--- k different numbers of 0 .. n-1 in random order; k is at most n.
--- Example:
---   #kv.tasks.distinct(kv.tasks.stream(1, 1, 1), 10, 3)  --> 3
---@param below function  from kv.tasks.stream
---@param n integer
---@param k integer
---@return table numbers
function tasks.distinct(below, n, k) end

--- Puts a list into random order, in place.
--- Example:
---   #kv.tasks.shuffle(kv.tasks.stream(1, 1, 1), { 1, 2, 3 })  --> 3
---@param below function  from kv.tasks.stream
---@param list table
---@return table list  itself
function tasks.shuffle(below, list) end

--- Where a batch has targets: indices, from 0, into its size x T positions, row by row.
---
--- Only these positions need logits.
--- Example:
---   #kv.tasks.positions(kv.tasks.recall().batch(1, 1, 8))  --> 32
---@param batch table
---@return Tensor ids  int32 {n}
function tasks.positions(batch) end

--- Counts right predictions.
---
--- Predictions are ids, int32 {size, T}; or logits, float32 {n, vocab} with a row for each target as in
--- kv.tasks.positions, or {size, T, vocab}. The result has `count` targets, `correct`, of a batch with candidates
--- also `candidate` (wrong, but another candidate of the row), and `slices[name]`, each with `correct` and `count`.
--- Only counts, so that scores add up: kv.tasks.sum.
--- Errors: predictions of another shape.
--- Example:
---   (function(b) return kv.tasks.score(b, b.targets).correct end)(kv.tasks.recall().batch(1, 1, 8))  --> 32
---@param batch table
---@param predictions Tensor
---@return table score
function tasks.score(batch, predictions) end

--- Adds scores up, name by name.
--- Example:
---   kv.tasks.sum({ { correct = 1, count = 2 }, { correct = 2, count = 2 } }).correct  --> 3
---@param scores table  a list
---@return table score
function tasks.sum(scores) end
