-- kvlab sample RUN: writes what a trained model would.
local cli = require 'kvlab.cli'
local config = require 'kvlab.config'
local kv = require 'kvlab'
local trained = require 'kvlab.trained'

local command = {
  name = 'sample',
  usage = 'sample RUN [OPTIONS]',
  summary = 'let a trained model write, through its caches',
  text = [[Goes on with a prompt, token by token, through caches in the records of the run. Text of a run on text; other
tasks take and give ids (without a prompt: a validation row up to its first question). RUN is the folder of a run, or a
folder with only one.]],
  example = 'kvlab sample runs/nanogpt-char --prompt ROMEO:',
  options = {
    { 'prompt', 'TEXT', 'what to go on with (text: an empty line)' },
    { 'tokens', 'N', 'how many to write (200 of text, otherwise to the length of a row)' },
    { 'temperature', 'T', '1 as the model says, lower is bolder, 0 always the likeliest (0.8)' },
    { 'topk', 'K', 'choose among the K likeliest (all)' },
    { 'seed', 'S', 'of the draws (1)' },
    { 'set', 'KEY=VALUE', 'a setting, such as task.files when the text has moved', many = true },
  },
}

-- A token of logits {V}: the largest of logits / T + Gumbel noise is a draw from their softmax.
local function draw(logits, o, step)
  if o.temperature == 0 then return logits:argmax():item() end
  local scores = logits / o.temperature
  if o.topk and o.topk < scores.size then
    local _, best = scores:topk(o.topk)
    scores = kv.where(scores:ge(best:min()), scores, -math.huge)
  end
  local u = kv.random { scores.size, seed = o.seed * 1000003 + step, dist = 'uniform' }
  return (scores - u:log():neg():log()):argmax():item()
end

local function ids_of(prompt)
  local ids = {}
  for word in prompt:gmatch('[^%s,]+') do
    ids[#ids + 1] = math.tointeger(tonumber(word))
      or cli.usage("--prompt: '%s' is no id; expected ids such as 1 5 7", word)
  end
  if #ids == 0 then cli.usage('--prompt: expected ids such as 1 5 7') end
  return ids
end

-- The prompt as ids, and as it is shown.
local function prompt_of(t, prompt)
  if t.task.encode then
    if prompt == '' then cli.usage('--prompt: expected some text') end
    if prompt then return cli.as_usage(t.task.encode, prompt), prompt end
    local ok, ids = pcall(t.task.encode, '\n')
    if not ok then ids = { 0 } end
    return ids, ok and '' or t.task.decode(ids)
  end
  if prompt then
    local ids = ids_of(prompt)
    return ids, table.concat(ids, ' ')
  end
  local batch, ids = t.task.validation(1, 1), {}
  for i = 1, batch.tokens.shape[2] do
    ids[i] = batch.tokens:slice(2, i, i):item()
    if batch.targets:slice(2, i, i):item() >= 0 then break end
  end
  return ids, table.concat(ids, ' ')
end

local function number(text, option, low)
  local x = tonumber(text)
  if x and x >= low and x < math.huge then return x end
  cli.usage('%s %s: expected a number, %g or more', option, text, low)
end

function command.run(args, options)
  if #args ~= 1 then cli.usage('sample: expected one folder of a run, got %d', #args) end
  local o = { temperature = number(options.temperature or '0.8', '--temperature', 0),
    topk = options.topk and cli.whole(options.topk, '--topk', 1), seed = cli.whole(options.seed or '1', '--seed', 0),
    tokens = options.tokens and cli.whole(options.tokens, '--tokens', 1) }
  local t = trained.open(args[1], options.set)
  for _, note in ipairs(t.run.notes) do cli.note('%s', note) end
  local ids, shown = prompt_of(t, options.prompt)
  local text = t.task.decode ~= nil
  local n = o.tokens or text and 200 or math.max(1, t.task.length - #ids)
  local table_size = t.model.parameters['positions.weight'] and t.model.parameters['positions.weight'].shape[1]
  if table_size and #ids + n - 1 > table_size then
    cli.failed('sample: a prompt of %d and %d tokens, but the model has learned only %d positions', #ids, n, table_size)
  end
  local function put(piece)
    io.stdout:write(piece)
    io.stdout:flush()
  end
  put(shown)
  local sequence <close> = t.model:sequence { records = config.records(t.config.records) }
  local logits = cli.as_usage(sequence.prefill, sequence, ids)
  for i = 1, n do
    local id = draw(logits, o, i)
    put(text and t.task.decode { id } or ' ' .. id)
    if i < n then
      logits:free()
      logits = sequence:decode(id)
    end
  end
  put('\n')
  return 0
end

return command
