-- measure.lua: fills the caches of a layout at its real widths, runs the cache side of one decode step, and compares
-- what the pools and their counters say with what kvlab.count computed (docs/measure.md).
--
-- The model is a real one (kvlab.model, kvlab.sequence), but its projection matrices are stand-ins (kvlab.standin). So
-- there are no weights, and everything behind the projections is the code that sequences run: pooling, norms, RoPE,
-- Hadamard, records, pages, scoring, selection, attention. A fill goes layer by layer and in chunks, so that besides
-- the caches it needs little memory.
local core = require 'kvlab.core'
local count = require 'kvlab.count'
local exact = require 'kvlab.exact'
local format = require 'kvlab.format'
local layout = require 'kvlab.layout'
local model = require 'kvlab.model'
local opts = require 'kvlab.options'
local progress = require 'kvlab.progress'
local standin = require 'kvlab.standin'
local tensor = require 'kvlab.tensor'
local weights = require 'kvlab.weights'
local width_rules = require 'kvlab.widths'

local measure = {}

-- Rows are made in chunks of about as many numbers as fit into the processor's caches, LEAST to MOST tokens.
local CHUNK = 262144
local LEAST, MOST = 64, 4096

-- Beside the caches: the block of random numbers, temporaries that wait for the collector, the workspace of the
-- kernels; and, for each layer, its objects, norms and biases. Both are generous.
local WORKSPACE = 384 << 20
local OF_LAYER = 512 << 10
local TEMPORARIES = 16 -- of one chunk

-- --- memory -------------------------------------------------------------------------------------------
local function pages(entries, plan)
  return exact(-(-entries // plan.page_entries)) * plan.page_bytes
end

-- What the pages of a counted layout take when there are N tokens. A ring has a slot more than its window, for the
-- token that a step may have to take back.
local function page_bytes(result, N)
  local sum = exact(0)
  for _, c in ipairs(result.classes) do
    local own = exact(0)
    if c.shape.owns then
      own = pages(N // c.shape.ratio, c.main_plan)
      if c.index_plan then own = own + pages(N // c.shape.ratio, c.index_plan) end
    end
    if c.window_plan then own = own + pages(math.min(N, c.shape.window + 1), c.window_plan) end
    sum = sum + own * c.count
  end
  return sum
end

local function columns_of(s) return s.main.channels * (s.layer.overlap and 2 or 1) end

local function needs(result, N)
  local widest = 0
  for _, c in ipairs(result.classes) do
    if c.shape.owns then widest = math.max(widest, columns_of(c.shape)) end
  end
  return page_bytes(result, N) + WORKSPACE + exact(OF_LAYER) * #result.layout
    + exact(widest) * (LEAST * 4 * TEMPORARIES)
end

-- What a measurement may take when nobody says otherwise: a sixteenth of the memory is left to everybody else.
local function usable() return core.base.memory_limit() // 16 * 15 end

local function gib(bytes) return ('%.4g GiB'):format(bytes:tonumber() / 2 ^ 30) end

-- measure.refusal(result, memory) -> nil when the count's caches fit into `memory` bytes (missing: the machine's, or
-- its control group's), else a sentence with what is needed and which context would fit.
function measure.refusal(result, memory)
  local room = exact(memory or usable())
  local need = needs(result, result.context)
  if need <= room then return nil end
  local low, high = 0, result.context -- low fits (0 is none), high does not
  while high - low > 1 do
    local middle = low + (high - low) // 2
    if needs(result, middle) <= room then low = middle else high = middle end
  end
  return ('%s at %s tokens needs %s, caches of %s and room to work; %s; %s'):format(result.name,
    format.number(result.context), gib(need), format.bytes(page_bytes(result, result.context)),
    memory and ('%s may be used'):format(gib(room))
      or ('of the %s that this machine or its control group has, %s may be used'):format(
        gib(exact(core.base.memory_limit())), gib(room)),
    low == 0 and 'not even one token fits' or ('a context of %s fits'):format(format.number(low)))
end

-- --- the model ----------------------------------------------------------------------------------------
local SEED = 1

-- measure.model(result) -> the model of a count without matrices; norms, sinks and biases are there, and so is the
-- matrix that makes index keys out of stored entries, because that comes after pooling. Raises for a width that is
-- not needed for counting, but is for running.
function measure.model(result)
  local L, widths = result.layout, result.widths
  if not widths.hidden_size then widths = width_rules.merge(widths, { hidden_size = 1 }) end -- only shapes of stand-ins
  local options = { ffn = 0, hidden_only = true, weights = {} }
  local noise = standin.noise(SEED)
  for _, spec in ipairs(model.parameters(L, widths, options)) do
    if spec.per == 'token' or spec.per == 'up' then
      options.weights[spec.name] = standin.new(spec.shape, noise)
    elseif not spec.optional then
      options.weights[spec.name] = weights.random(spec, SEED)
    end
  end
  return model.new(L, widths, options)
end

-- --- filling ------------------------------------------------------------------------------------------
-- measure.inputs(T): the inputs of T tokens; stand-ins look at nothing but how many there are.
function measure.inputs(T) return tensor.zeros(1, T, 1) end

-- Calls f(inputs, position) for chunks of the tokens from, ..., to - 1. Temporaries are given back before they are
-- many: the collector does not see how large they are next to the caches.
local function in_chunks(from, to, columns, f)
  local size = math.max(LEAST, math.min(MOST, CHUNK // columns))
  local made = 0
  for pos = from, to - 1, size do
    local T = math.min(size, to - pos)
    f(measure.inputs(T), pos)
    made = made + T * columns
    if made > 16 * CHUNK then
      collectgarbage()
      made = 0
    end
  end
end

-- measure.fill(seq, tokens): the first `tokens` tokens: every entry and key, and those rows of the window that the ring
-- still holds at the end.
function measure.fill(seq, tokens)
  local bar <close> = progress.start('filling the caches', #seq.model.layers)
  for i, A in ipairs(seq.model.layers) do
    local s, cell = A.shape, seq.cells[i]
    if s.owns then
      in_chunks(0, tokens, columns_of(s), function(x, pos)
        bar:to(i - 1 + pos / tokens)
        A:store(A:project_owner(x), pos, cell)
      end)
    end
    if cell.window then
      in_chunks(math.max(0, tokens - s.window - 1), tokens, s.local_kv.channels, function(x, pos)
        cell.window:append(A:local_rows(x, pos), pos)
      end)
    end
  end
  seq.position = tokens
end

-- --- the step -----------------------------------------------------------------------------------------
-- One more token: what Attention:forward does, layer by layer and without the output projection, with a clock.
local function step(seq, seconds)
  local now = core.base.now
  local x, pos0, cells = measure.inputs(1), seq.position, seq.cells
  local shared = { cells = cells, lists = {}, pools = {} }
  for i, A in ipairs(seq.model.layers) do
    local began = now()
    if A.shape.owns then A:store(A:project_owner(x), pos0, cells[i]) end
    local p = A:project(x, pos0)
    local stored = now()
    if A.shape.topk then A:select(p, pos0, cells[i], shared) end
    local selected = now()
    A:attend(p, pos0, cells[i], shared)
    local attended = now()
    seconds.fill = seconds.fill + (stored - began)
    seconds.select = seconds.select + (selected - stored)
    seconds.attention = seconds.attention + (attended - selected)
  end
  seq.position = pos0 + 1
end

-- --- the comparison -----------------------------------------------------------------------------------
local FIGURES = { 'store_bytes', 'kv_bytes', 'index_bytes' }
measure.FIGURES = FIGURES

local function measured(stats, reads)
  return { store_bytes = stats.stored_bytes, kv_bytes = reads.selected_bytes + reads.window_bytes,
    index_bytes = reads.index_bytes }
end

-- Every layer is compared, not only the sums: two errors must not cancel.
local function compare(result, stats, reads)
  local out = { computed = { store_bytes = result.store.total_bytes:tonumber(),
    kv_bytes = result.read.kv_bytes:tonumber(), index_bytes = result.read.index_bytes:tonumber() },
    measured = measured(stats, reads), differing = {} }
  for i = 1, #result.layout do
    local c = count.layer(result, i)
    local computed = { store_bytes = c.store + c.filled, kv_bytes = c.selected + c.window, index_bytes = c.keys }
    local own = measured(stats.layers[i], reads.layers[i])
    for _, figure in ipairs(FIGURES) do
      if computed[figure] ~= exact(own[figure]) then
        out.differing[#out.differing + 1] = { layer = i, figure = figure, computed = computed[figure]:tonumber(),
          measured = own[figure] }
      end
    end
  end
  out.equal = #out.differing == 0
  for _, figure in ipairs(FIGURES) do out.equal = out.equal and out.computed[figure] == out.measured[figure] end
  return out
end

-- measure.free(m, seq): the memory of the pages goes here, not when the collector comes.
function measure.free(m, seq)
  seq:free()
  for _, of_limit in pairs(m.pools) do
    for _, pool in pairs(of_limit) do pool:free() end
  end
end

-- measure.counted(result, { records =, memory =, model = }) -> the measurement of a count. `records` are those of the
-- count; `model` is that of measure.model, if it has been made already. A model is used up.
function measure.counted(result, options)
  options = options or {}
  local refusal = measure.refusal(result, options.memory)
  if refusal then error(refusal, 0) end
  local N = result.context
  local m = options.model or measure.model(result)
  local seq = m:sequence { records = options.records }
  local seconds = { fill = 0, select = 0, attention = 0 }
  local ok, out = pcall(function()
    local began = core.base.now()
    for i, one in ipairs(seq.cells) do one:reserve(0, N, m.layers[i].shape.ratio or 1) end
    measure.fill(seq, N - 1)
    collectgarbage() -- not in the middle of the step
    seconds.fill = core.base.now() - began
    seq:reset()
    step(seq, seconds)
    local stats = seq:stats()
    local found = compare(result, stats, seq:reads())
    found.allocated_bytes = stats.allocated_bytes
    return found
  end)
  measure.free(m, seq)
  if not ok then error(out, 0) end
  seconds.step = seconds.select + seconds.attention
  out.name, out.context, out.count, out.seconds = result.name, N, result, seconds
  return out
end

-- kv.measure(L, options): see meta/measure.lua.
function measure.layout(L, options)
  L = layout.of(L, 'measure')
  options = options or {}
  opts.check(options, { 'context', 'records', 'widths', 'memory' }, 'measure')
  local memory = options.memory and opts.whole(options.memory, 1, 'measure: memory')
  local result = count.layout(L, { context = options.context, records = options.records, widths = options.widths })
  return measure.counted(result, { records = options.records, memory = memory })
end

return measure
