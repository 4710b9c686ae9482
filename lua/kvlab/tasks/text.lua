-- text.lua: predict the next character (or byte) of text files.
--
-- The first part of the text is for training, the rest for validation. Training windows begin anywhere; validation
-- windows stand side by side and come in one fixed random order, so that any number of them is a spread sample and
-- all of them are the whole part.
--
-- Most characters only need their neighbours. A target is `repeated` when it ends an n-gram that stood in its window
-- before: those are the ones that recall helps with (after the AR hits of Zoology, arXiv 2312.04927, which uses
-- word pairs).
local core = require 'kvlab.core'
local corpus = require 'kvlab.tasks.corpus'
local draw = require 'kvlab.tasks.draw'
local settings = require 'kvlab.tasks.settings'
local task = require 'kvlab.tasks.task'

local WHERE = 'kv.tasks.text'
local SPEC = { unit = { 'char', { 'char', 'byte' } }, length = { 64, 1 }, ngram = { 8, 0 },
  files = { false, 'any' }, train = { 0.9, 'any' },
  digest = { false, 'any' } }

local function check_share(share)
  if type(share) ~= 'number' or not (share > 0 and share < 1) then
    error(('%s: train is %s, expected the share of the text to train on, between 0 and 1')
      :format(WHERE, tostring(share)), 0)
  end
end

return function(given)
  local o = settings.read(WHERE, given, SPEC)
  check_share(o.train)
  if o.ngram == 1 then error(('%s: ngram is 1, expected 2 or more, or 0 for none'):format(WHERE), 0) end
  local text = corpus.load(o.files, o.unit, WHERE)
  if o.digest and o.digest ~= text.digest then
    error(('%s: the text is another one now: its digest is %s, not %s'):format(WHERE, text.digest,
      tostring(o.digest)), 0)
  end
  local trained = math.floor(text.size * o.train)
  local held = text.size - trained
  for name, size in pairs { training = trained, validation = held } do
    if size < o.length + 1 then
      error(('%s: length is %d, but the %s part has only %d %ss; expected %d or more')
        :format(WHERE, o.length, name, size, o.unit, o.length + 1), 0)
    end
  end
  o.files, o.digest = text.files, text.digest

  -- The targets of the window that begins behind `start` characters which end a repeated n-gram, as {T} of 0 and 1.
  local function repeated(start)
    local mark, seen, width = {}, {}, text.width
    for i = 1, o.length do
      mark[i] = 0
      if i >= o.ngram - 1 then -- the n-gram that ends with target i, character start + i + 1
        local last = start + i + 1
        local piece = text.codes:sub((last - o.ngram) * width + 1, last * width)
        if seen[piece] then mark[i] = 1 end
        seen[piece] = true
      end
    end
    return mark
  end

  local function windows(starts)
    local tokens, targets, marks = {}, {}, {}
    for b, start in ipairs(starts) do
      tokens[b] = text.ids:slice(1, start + 1, start + o.length)
      targets[b] = text.ids:slice(1, start + 2, start + o.length + 1)
      marks[b] = o.ngram > 0 and repeated(start) or nil
    end
    return { tokens = core.tensor.stack(tokens, 1), targets = core.tensor.stack(targets, 1),
      slices = o.ngram > 0 and { repeated = core.tensor.tensor(marks, 'int32') } or nil }
  end

  local count = (held - 1) // o.length
  local order = draw.distinct(draw.stream(0, 0, 0), count, count)

  local function batch(seed, step, size)
    local starts = {}
    for b = 1, size do starts[b] = draw.stream(seed, step, b)(trained - o.length) end
    return windows(starts)
  end

  -- Batch `index` (from 1) of the validation windows; behind the last comes the first again.
  local function validation(index, size)
    local starts = {}
    for b = 1, size do starts[b] = trained + order[((index - 1) * size + b - 1) % count + 1] * o.length end
    return windows(starts)
  end

  return task.new {
    name = 'text', vocab = text.vocab, length = o.length, answers = { 0, text.vocab - 1 }, options = o,
    batch = batch, validation = validation, encode = text.encode, decode = text.decode, windows = count,
    about = ('the next %s of %s: %d to train on, %d in %d windows to validate'):format(o.unit,
      table.concat(text.files, ', '), trained, held, count),
  }
end
