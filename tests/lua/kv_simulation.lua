-- kv_simulation.lua: an account of what a KV cache stores and reads that knows nothing of kvlab.
--
-- Tokens are fed one by one into simulated owners (an open block that completes, the halves that an overlapping
-- compressor keeps) and windows (rings). Then the query of the last token looks at real sets of entries: it
-- splits them into the blocks of a pool, pins the newest, picks, and what it touched is counted.
-- A layer is a plain table; everything in it is a number that the test writes down itself:
--   from    index of the layer whose cache it reads (itself for an owner), nil without a cache
--   by      index of the layer that selected for it (itself when it selects)
--   ratio, overlap                      of an owner
--   main, index                         bytes of an entry and of a search key, of an owner
--   width, index_width                  channels that its compressors pool, of an owner (index_width: own compressor)
--   k, pool = { blocks, block }         how it selects: nil k takes all, pool when it searches inside one
--   scores                              true when it scores keys
--   window, row                         tokens of the local KV and the bytes of one, window = 0 for none
local simulation = {}

-- feed(layers, N) -> what each layer holds after N tokens, token by token.
function simulation.feed(layers, N)
  local held = {}
  for i in ipairs(layers) do held[i] = { open = 0, entries = 0, previous = 0, ring = {}, filled = 0 } end
  for t = 0, N - 1 do
    for i, l in ipairs(layers) do
      local h = held[i]
      if l.from == i then
        h.open = h.open + 1
        if h.open == l.ratio then
          h.entries, h.open = h.entries + 1, 0
          h.previous = l.overlap and l.ratio or 0
        end
      end
      if l.window > 0 then
        local slot = t % l.window
        if h.ring[slot] == nil then h.filled = h.filled + 1 end
        h.ring[slot] = t
      end
    end
  end
  return held
end

-- The same for many tokens: one plain loop over the tokens for each distinct ratio.
function simulation.feed_many(layers, N)
  local by_ratio = {}
  local function stream(ratio)
    if not by_ratio[ratio] then
      local open, entries = 0, 0
      for _ = 1, N do
        open = open + 1
        if open == ratio then entries, open = entries + 1, 0 end
      end
      by_ratio[ratio] = { open, entries }
    end
    return table.unpack(by_ratio[ratio])
  end
  local held = {}
  for i, l in ipairs(layers) do
    local h = { open = 0, entries = 0, previous = 0, filled = l.window < N and l.window or N }
    if l.from == i then
      h.open, h.entries = stream(l.ratio)
      if l.overlap and h.entries > 0 then h.previous = l.ratio end
    end
    held[i] = h
  end
  return held
end

-- Picks `want` of the ids in `list`, at random: which ones does not matter for counting.
local function pick(list, want)
  if want >= #list then return list end
  local pool = table.move(list, 1, #list, 1, {})
  local out = {}
  for n = 1, want do
    local at = math.random(n, #pool)
    pool[n], pool[at] = pool[at], pool[n]
    out[n] = pool[n]
  end
  return out
end

-- The ids of the entries that a pool leaves to search in: whole blocks, the newest always among them.
local function pooled(visible, pool)
  local blocks = {}
  for _, id in ipairs(visible) do
    local b = id // pool[2]
    if not blocks[b + 1] then blocks[b + 1] = {} end
    table.insert(blocks[b + 1], id)
  end
  local newest = table.remove(blocks)
  local kept = newest and { newest } or {}
  local rest = {}
  for b = 1, #blocks do rest[b] = b end
  for _, b in ipairs(pick(rest, pool[1] - 1)) do kept[#kept + 1] = blocks[b] end
  local out = {}
  for _, block in ipairs(kept) do
    for _, id in ipairs(block) do out[#out + 1] = id end
  end
  return out
end

-- sets(layers, held, masked) -> how many keys and rows the last query touches in each layer, from real sets.
function simulation.sets(layers, held, masked)
  local chosen, visits = {}, {}
  for i, l in ipairs(layers) do
    local keys, rows = 0, 0
    if l.from then
      local visible = {}
      for id = 0, held[l.from].entries - 1 do visible[id + 1] = id end
      if l.by == i then
        local candidates = l.pool and not masked and pooled(visible, l.pool) or visible
        if l.scores then keys = #candidates end
        chosen[i] = l.k and not masked and pick(candidates, l.k) or visible
      end
      local seen = {}
      for _, id in ipairs(chosen[l.by]) do
        if not seen[id] then rows = rows + 1 end
        seen[id] = true
      end
    end
    visits[i] = { keys = keys, rows = rows }
  end
  return visits
end

-- The same from counts only, for contexts whose sets would not fit.
function simulation.counts(layers, held, masked)
  local chosen, visits = {}, {}
  for i, l in ipairs(layers) do
    local keys, rows = 0, 0
    if l.from then
      local visible = held[l.from].entries
      if l.by == i then
        local candidates = visible
        if l.pool and not masked then
          candidates = 0
          local last = visible
          for taken = 1, l.pool[1] do -- the newest block first; the others are all full
            if last == 0 then break end
            local size = taken == 1 and (last - 1) % l.pool[2] + 1 or l.pool[2]
            candidates, last = candidates + size, last - size
          end
        end
        if l.scores then keys = candidates end
        chosen[i] = l.k and not masked and l.k < candidates and l.k or candidates
      end
      rows = chosen[l.by]
    end
    visits[i] = { keys = keys, rows = rows }
  end
  return visits
end

-- totals(layers, held, visits) -> the bytes of each layer, and their sums.
function simulation.totals(layers, held, visits)
  local sum = { total = 0, fixed = 0, state = 0, selected = 0, window = 0, keys = 0 }
  local list = {}
  for i, l in ipairs(layers) do
    local h, v = held[i], visits[i]
    local c = { entries = l.from and held[l.from].entries or 0, filled = h.filled, keys_scored = v.keys, rows = v.rows }
    c.total = h.filled * (l.row or 0)
    c.window = c.total
    c.fixed = l.window * (l.row or 0)
    c.state = 0
    if l.from == i then
      c.total = c.total + h.entries * (l.main + (l.index or 0))
      if l.ratio > 1 then
        -- A candidate and a score for each channel, in float32; overlapping compressors have two halves.
        local floats = 2 * (l.width + (l.index_width or 0))
        c.state = 4 * floats * (h.open * (l.overlap and 2 or 1) + h.previous)
      end
    end
    c.selected = l.from and v.rows * layers[l.from].main or 0
    c.keys = v.keys > 0 and v.keys * layers[l.from].index or 0
    for name in pairs(sum) do sum[name] = sum[name] + c[name] end
    list[i] = c
  end
  return sum, list
end

-- Bytes per token as a reduced fraction 'p/q' or 'p'.
function simulation.slope(layers)
  local p, q = 0, 1
  for i, l in ipairs(layers) do
    if l.from == i then
      p, q = p * l.ratio + (l.main + (l.index or 0)) * q, q * l.ratio
      local a, b = p, q
      while b > 0 do a, b = b, a % b end
      p, q = p // a, q // a
    end
  end
  return q == 1 and ('%d'):format(p) or ('%d/%d'):format(p, q)
end

return simulation
