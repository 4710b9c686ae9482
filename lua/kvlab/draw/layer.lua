-- draw/layer.lua: one layer as boxes: what it makes of its input, what it keeps, selects and reads.
--
-- What is drawn follows the layer's own fields and the list of its weights (kvlab.weights), never the name of its kind:
-- a weight that the layer does not have has no box. The steps are those of kvlab.attention, in its order.
local attention = require 'kvlab.attention'
local boxes = require 'kvlab.draw.boxes'
local format = require 'kvlab.format'
local opts = require 'kvlab.options'
local page = require 'kvlab.draw.page'
local screen = require 'kvlab.plot.screen'
local weights = require 'kvlab.weights'

local draw = {}

local number = format.number

local class = {}
local meta = { __index = class }

-- --- words --------------------------------------------------------------------------------------------------------

local function join(...)
  local parts = {}
  for i = 1, select('#', ...) do parts[i] = tostring((select(i, ...))) end
  return table.concat(parts, ' x ')
end

function class.value(_, name, ...) return { 'value', name, join(...) } end
function class:kept(name, ...) return { self.shape.owns and 'kept' or 'borrowed', name, join(...) } end
function class:input() return self:value('X', 'T', self.D) end

-- The matrix of that name, or nil. A checkpoint has it as {outputs, inputs}.
function class:weight(name)
  local spec = self.specs[name]
  if not spec then return nil end
  local short = name:gsub('%.weight$', '')
  return { 'weight', short, #spec.shape == 2 and join(spec.shape[2], spec.shape[1]) or join(table.unpack(spec.shape)) }
end

function class:first_of(...)
  for _, name in ipairs { ... } do
    if self.specs[name] then return self:weight(name) end
  end
end

local function op(text) return { 'op', text } end
local function sign(text) return { 'sign', text } end
local function list(...) return table.pack(...) end -- with false where there is no box

-- section(title, items, ...): flows under a title. Missing boxes (false) are left out.
function class:section(title, ...)
  self.lines[#self.lines + 1] = ''
  for _, line in ipairs(screen.words(title, self.width - 2)) do self.lines[#self.lines + 1] = '  ' .. line end
  for _, given in ipairs { ... } do
    local items = {}
    for i = 1, given.n or #given do
      local item = given[i]
      if item then
        items[#items + 1] = item
        self.used[item[1]] = true
      end
    end
    for _, line in ipairs(boxes.flow(self.ascii and items or self.pretty(items), self.width, self.ascii, '    ')) do
      self.lines[#self.lines + 1] = line
    end
  end
end

local SIGNS = { ['.'] = '·', ['*'] = '⊙' }

-- Signs of multiplication, where they can be shown.
function class.pretty(items)
  local out = {}
  for i, item in ipairs(items) do
    local text = item[1] == 'sign' and SIGNS[item[2]] or item[2]:gsub('^x ', '× '):gsub(' x ', ' × ')
    out[i] = { item[1], text, item[3] and (item[3]:gsub(' x ', ' × ')) }
  end
  return out
end

-- --- rotation -----------------------------------------------------------------------------------------------------

function class:rotated()
  local get = self.shape.get
  if self.no_rope then return 0 end
  return self.shape.form == 'heads' and get 'head_dim' or get('qk_rope_head_dim', true) or 0
end

-- RoPE of the last channels of `width`, or nothing.
function class:rope(width, where)
  local n = self:rotated()
  if n == 0 then return false end
  return op(('RoPE%s%s'):format(n < width and (' on the last %d'):format(n) or '', where or ''))
end

function class:index_rope(where)
  local get, d = self.shape.get, self.shape.index.channels
  local n = math.min(self:rotated(), d)
  if n == 0 then return false end
  local place = get('index_rope', true) == 'first' and 'first' or 'last'
  return op(('RoPE%s%s'):format(n < d and (' on the %s %d'):format(place, n) or '', where or ''))
end

function class:hadamard() return self.shape.get('index_hadamard', true) and op 'Hadamard' or false end

-- --- the parts ----------------------------------------------------------------------------------------------------

-- c^Q, where queries are compressed.
function class:query_latent()
  local rank = self.shape.form ~= 'heads' and self.shape.get('q_lora_rank', true)
  return rank and self:value('c^Q', 'T', rank) or nil
end

function class:query()
  local s, H = self.shape, self.H
  local get = s.get
  local down = self:first_of('q_a_proj.weight', 'wq_a.weight')
  local up = self:first_of('q_b_proj.weight', 'q_proj.weight', 'wq_b.weight', 'wq.weight')
  local width = self.query_width
  local items = list(self:input(), down or false, down and op 'RMSNorm' or false, self:query_latent() or false, up,
    s.form == 'entry' and get('query_head_norm', true) and op 'RMSNorm of each head' or false, self:rope(width),
    self:value(s.form == 'latent' and '[q^C | q^R]' or 'q', 'T', H .. ' heads',
      s.form == 'latent' and ('(%d + %d)'):format(get 'qk_nope_head_dim', get 'qk_rope_head_dim') or width))
  self:section('query', items)
end

-- One row a token becomes one a block: scores, softmax over the tokens of a block for every channel by itself, and with
-- these weights the sum of the candidates. pooled(prefix, letters, columns) -> the flow of scores, and how that of the
-- sum begins; nothing when a token is a row.
function class:pooled(prefix, mark, columns)
  local l = self.shape.layer
  local gate = self:weight(prefix .. 'wgate.weight')
  if not gate then return nil end
  local halves, bias = l.overlap and 2 or 1, self.specs[prefix .. 'ape']
  local S = self:value('S' .. mark .. ', for an entry', l.ratio * halves, columns // halves)
  local C = self:value('C' .. mark .. (l.overlap and ', a and b' or ''), l.ratio * halves, columns // halves)
  local scores = list(self:input(), gate, bias and op('+ bias ' .. join(bias.shape[1], bias.shape[2])) or false,
    self:value('Z' .. mark, 'T', columns), op 'softmax over its tokens', S)
  return scores, list(S, sign '*', C, op 'sum over the tokens')
end

-- Says which tokens an entry is made of.
function class:block_text()
  local l = self.shape.layer
  if l.ratio == 1 then return '' end
  if not l.overlap then return (': an entry for %s tokens, each channel pooled by itself'):format(number(l.ratio)) end
  return (': an entry for %s tokens, each channel pooled by itself, from %s: a of the block before, b of its own')
    :format(number(l.ratio), number(2 * l.ratio))
end

local function joined(...)
  local out, n = {}, 0
  for _, part in ipairs { ... } do
    for i = 1, part.n or #part do
      n = n + 1
      out[n] = part[i]
    end
  end
  out.n = n
  return out
end

function class:rows_of_cache()
  local m = self.shape.ratio
  return m > 1 and ('T/%d'):format(m) or 'T', m > 1 and ', at the first token' or ''
end

function class:entries()
  local s, l = self.shape, self.shape.layer
  local c, columns = s.main.channels, s.main.channels * (l.overlap and 2 or 1)
  local rows, at = self:rows_of_cache()
  local title = (self.encoder and 'global KV, made from the output of the encoder (X is that output, normed)'
    or 'global KV') .. self:block_text()
  local gate, sum = self:pooled('compressor.', '', columns)
  if s.form == 'heads' then return self:heads_entries(title, gate, sum) end
  local candidates, finish
  if s.form == 'entry' then
    candidates = list(self:input(), self:weight 'compressor.wkv.weight',
      self:value(l.overlap and 'C = [a | b]' or 'C', 'T', columns))
    finish = list(op 'RMSNorm', self:rope(c, at), self:kept('E, K = V', rows, c))
  else
    candidates = list(self:input(), self:weight 'kv_a_proj_with_mqa.weight',
      self:value(gate and 'C' or '[C^KV | K^R]', 'T', c))
    finish = list(op 'RMSNorm of C^KV', not self.no_rope and op('RoPE of K^R' .. at),
      self:kept('C^KV', rows, s.get 'kv_lora_rank'), sign '|', self:kept('K^R', rows, s.get 'qk_rope_head_dim'))
  end
  if gate then self:section(title, candidates, gate, joined(sum, finish))
  else self:section(title, joined(candidates, finish)) end
end

function class:heads_entries(title, gate, sum)
  local dims = self.shape.main
  local heads, d_k, d_v = dims.kv_heads, dims.key // dims.kv_heads, dims.value // dims.kv_heads
  local rows, at = self:rows_of_cache()
  if not gate then
    return self:section(title, list(self:input(), self:weight 'k_proj.weight', self:rope(d_k),
      self:kept('K', rows, heads .. ' heads', d_k)),
      list(self:input(), self:weight 'v_proj.weight', self:kept('V', rows, heads .. ' heads', d_v)))
  end
  self:section(title, list(self:input(), self:weight 'k_proj.weight', self:value('C of K', 'T', dims.key)),
    list(self:input(), self:weight 'v_proj.weight', self:value('C of V', 'T', dims.value)), gate,
    joined(sum, list(not self.no_rope and op('RoPE of K' .. at), self:kept('K', rows, heads .. ' heads', d_k), sign '|',
      self:kept('V', rows, heads .. ' heads', d_v))))
end

function class:borrowed()
  local s = self.shape
  local rows = s.ratio > 1 and ('T/%d'):format(s.ratio) or 'T'
  local items = s.form == 'latent' and list(self:kept('C^KV', rows, s.get 'kv_lora_rank'), sign '|',
      self:kept('K^R', rows, s.get 'qk_rope_head_dim'))
    or s.form == 'heads' and list(self:kept('K', rows, s.main.key), sign '|', self:kept('V', rows, s.main.value))
    or list(self:kept('E, K = V', rows, s.main.channels))
  if s.topk then
    items[items.n + 1], items[items.n + 2] = sign ' ', self:kept('k^I', rows, s.index.channels)
    items.n = items.n + 2
  end
  self:section(('global KV, borrowed from layer %d'):format(s.owner), items)
end

function class:index_keys()
  local s, l = self.shape, self.shape.layer
  local d, rows, at = s.index.channels, self:rows_of_cache()
  local finish = list(self:index_rope(at), self:hadamard(), self:kept('k^I', rows, d))
  if l.keys == 'input' then
    return self:section('index keys, from the input', joined(list(self:input(), self:weight 'indexer.wk.weight',
      op 'LayerNorm'), finish))
  elseif l.keys == 'entry' then
    local from = s.form == 'latent' and self:value('C^KV, normed', rows, s.get 'kv_lora_rank')
      or self:value('E before RoPE', rows, s.main.channels)
    return self:section('index keys, from the entries', joined(list(from, self:weight 'indexer.wk.weight',
      op 'RMSNorm'), finish))
  end
  local columns = d * (l.overlap and 2 or 1)
  local gate, sum = self:pooled('indexer.compressor.', '^I', columns)
  local candidates = list(self:input(), self:weight 'indexer.compressor.wkv.weight', self:value('C^I', 'T', columns))
  local title = 'index keys, from a compressor of their own'
  if gate then self:section(title, candidates, gate, joined(sum, list(op 'RMSNorm'), finish))
  else self:section(title, joined(candidates, list(op 'RMSNorm'), finish)) end
end

function class:index()
  local s, l = self.shape, self.shape.layer
  local heads, d = s.get 'index_n_heads', s.index.channels
  local rows = s.ratio > 1 and ('T/%d'):format(s.ratio) or 'T'
  local from = s.form ~= 'heads' and self:query_latent() or self:input()
  self:section('indexer: queries, head weights, scores, selection',
    list(from, self:weight 'indexer.wq_b.weight', self:index_rope(), self:hadamard(),
      self:value('q^I', 'T', heads .. ' heads', d)),
    list(self:input(), self:weight 'indexer.weights_proj.weight', self:value('w^I', 'T', heads)),
    list(self:value('q^I', 'T', heads, d), sign '.', self:kept('k^I', rows, d), op 'ReLU',
      op(('x w^I, sum of %d heads'):format(heads)), self:value('I', 'T', rows),
      op(('top-%s%s'):format(number(s.topk), s.pool and ' inside the pool' or '')),
      self:value('list', 'T', ('min(%s, entries)'):format(number(s.topk)))))
  if l.pool then
    self:section(('pool for later layers: the best %s blocks of %d entries, the newest block among them'):format(
      number(l.pool.blocks), l.pool.block))
  elseif s.pool then
    self:section(('the pool is that of layer %d: %s blocks of %d entries'):format(s.owner,
      number(s.pool.blocks), s.pool.block))
  end
end

function class:window()
  local s = self.shape
  local W, own = s.window, s.owns and 'window.' or ''
  local title = ('local KV, the last %s tokens'):format(number(W))
  local c = s.local_kv.channels
  if s.form == 'entry' then
    self:section(title, list(self:input(), self:weight 'wkv.weight', op 'RMSNorm', self:rope(c),
      { 'kept', 'E^win, K = V', join(W, c) }))
  elseif s.form == 'latent' then
    self:section(title, list(self:input(), self:weight(own .. 'kv_a_proj_with_mqa.weight'), op 'RMSNorm of C^KV',
      not self.no_rope and op 'RoPE of K^R' or false, { 'kept', 'C^KV', join(W, s.get 'kv_lora_rank') }, sign '|',
      { 'kept', 'K^R', join(W, s.get 'qk_rope_head_dim') }))
  else
    local heads = s.local_kv.kv_heads
    self:section(title, list(self:input(), self:weight(own .. 'k_proj.weight'), self:rope(s.local_kv.key // heads),
      { 'kept', 'K^win', join(W, heads .. ' heads', s.local_kv.key // heads) }),
      list(self:input(), self:weight(own .. 'v_proj.weight'), { 'kept', 'V^win', join(W, heads .. ' heads',
        s.local_kv.value // heads) }))
  end
end

-- --- attention ----------------------------------------------------------------------------------------------------

-- How many rows a query reads, in words.
function class:rows_text()
  local s, parts = self.shape, {}
  if s.window > 0 then parts[1] = ('the last %s tokens'):format(number(s.window)) end
  if s.owner then
    local what = s.ratio > 1 and ('complete entries of %d tokens'):format(s.ratio) or 'tokens'
    if s.topk then parts[#parts + 1] = ('the %s best %s'):format(number(s.topk), what)
    elseif s.selector and s.selector ~= self.at then
      parts[#parts + 1] = ('the %s that layer %d selects'):format(what, s.selector)
    else parts[#parts + 1] = 'all ' .. what end
  end
  return table.concat(parts, ' and ')
end

function class:softmax() return self.specs.attn_sink and 'softmax with sink' or 'softmax' end

function class:attend()
  local s, H = self.shape, self.H
  local title = ('attention over R rows: %s'):format(self:rows_text())
  local dims = s.main or s.local_kv
  local P = self:value('P', 'T', H, 'R')
  if s.form == 'latent' then return self:attend_latent(title, P) end
  local width = self.query_width
  local q = self:value('q', 'T', H, width)
  if s.form == 'entry' then
    self:section(title, list(q, sign '.', self:value('rows', 'R', width),
      op(('/ sqrt(%d)'):format(width)), op(self:softmax()), P, sign '.', self:value('the same rows', 'R', width),
      self:rotated() > 0 and op 'inverse RoPE, at the query' or false, self:value('O', 'T', H, width)))
  else
    local d_v = dims.value // dims.kv_heads
    self:section(title, list(q, sign '.', self:value('K', 'R', dims.kv_heads, width), op(('/ sqrt(%d)'):format(width)),
      op 'softmax', P, sign '.', self:value('V', 'R', dims.kv_heads, d_v), self:value('O', 'T', H, d_v)))
  end
end

local ORDER_TITLES = { expand = 'expand: keys and values of every head are made from the rows',
  absorb = 'absorb: the key expansion goes to the query, the value expansion behind the sum',
  merged = 'merged: the same with both weights on a side multiplied beforehand' }

function class:attend_latent(title, P)
  local s, H = self.shape, self.H
  local get = s.get
  local nope, rope, d_v, rank = get 'qk_nope_head_dim', get 'qk_rope_head_dim', get 'v_head_dim', get 'kv_lora_rank'
  local C, KR, qR = self:value('C^KV', 'R', rank), self:value('K^R', 'R', rope), self:value('q^R', 'T', H, rope)
  local qC, up = self:value('q^C', 'T', H, nope), self:weight 'kv_b_proj.weight'
  local scale = op('x ' .. ('%.4g'):format(self.scale))
  local orders = self.order and { self.order } or attention.orders
  self:section(title .. (#orders > 1 and ': three orders, one result' or ''))
  for _, order in ipairs(orders) do
    local q_hat = self:value('q^', 'T', H, rank)
    if order == 'expand' then
      self:section(ORDER_TITLES[order], list(C, up, self:value('[K^C | V]', 'R', H, ('(%d + %d)'):format(nope, d_v))),
        list(qC, sign '.', self:value('K^C', 'R', H, nope), sign '+', qR, sign '.', KR, scale, op(self:softmax()), P,
          sign '.', self:value('V', 'R', H, d_v), self:value('O', 'T', H, d_v)))
    else
      local merged = order == 'merged'
      local from, w = qC, { 'weight', 'W^UK of each head', join(nope, rank) }
      if merged then
        local latent = get('q_lora_rank', true)
        from = latent and self:query_latent() or self:input()
        w = { 'weight', (latent and 'W^UQ' or 'W^Q') .. ' W^UK, each head', join(latent or self.D, rank) }
      end
      self:section(ORDER_TITLES[order], list(from, w, q_hat),
        list(q_hat, sign '.', C, sign '+', qR, sign '.', KR, scale, op(self:softmax()), P, sign '.', C,
          self:value('U', 'T', H, rank)),
        merged and list(self:value('U', 'T', H, rank), { 'weight', 'W^UV W^O, each head', join(rank, self.D) },
            op(('sum of %d heads'):format(H)), self:value('Y', 'T', self.D))
          or list(self:value('U', 'T', H, rank), { 'weight', 'W^UV of each head', join(rank, d_v) },
            self:value('O', 'T', H, d_v)))
    end
  end
end

function class:output()
  local s, H, D = self.shape, self.H, self.D
  if s.form == 'latent' and self.order == 'merged' then return end
  local width = s.form == 'entry' and s.get 'head_dim' or s.get('v_head_dim', true) or s.get 'head_dim'
  local O, Y = self:value('O', 'T', H .. ' heads', width), self:value('Y', 'T', D)
  local groups = s.form == 'entry' and self.specs['wo_a.weight'] and s.get 'o_groups'
  if groups then
    local rank = s.get 'o_lora_rank'
    self:section(('output: %d groups of %d heads, a weight for each group, then one for all'):format(groups,
      H // groups), list(O, op(('%d groups'):format(groups)),
        { 'weight', 'wo_a of each group', join(H // groups * width, rank) },
        self:value('O^a', 'T', groups, rank), self:weight 'wo_b.weight', Y))
  else
    self:section('output', list(O, op 'heads side by side', self:first_of('o_proj.weight', 'wo.weight'), Y))
  end
end

-- --- the picture --------------------------------------------------------------------------------------------------

local OPTIONS = { 'width', 'ascii', 'order', 'parts', 'file' }
local PARTS = { 'query', 'cache', 'keys', 'indexer', 'window', 'attention', 'output' }

-- The parts that the layer has, and what draws each.
function class:parts()
  local s = self.shape
  return { query = class.query, cache = s.owner and (s.owns and class.entries or class.borrowed),
    keys = s.owns and s.layer.keys and class.index_keys, indexer = s.topk and class.index,
    window = s.window > 0 and class.window, attention = class.attend, output = class.output }
end

-- asked(parts, given) -> which of them are drawn: all, or those of the list that was given.
local function asked(parts, given)
  if given == nil then return parts end
  if type(given) ~= 'table' or #given == 0 then
    error(('draw: parts: expected a list of %s, got %s'):format(table.concat(PARTS, ', '),
      type(given) == 'table' and 'an empty one' or tostring(given)), 0)
  end
  local chosen = {}
  for _, part in ipairs(given) do
    opts.word(part, PARTS, 'draw: parts')
    if not parts[part] then error(("draw: parts: this layer has no '%s'"):format(part), 0) end
    chosen[part] = parts[part]
  end
  return chosen
end

-- What is kept for the whole context and what for the window, in values.
function class:kept_text()
  local s, parts = self.shape, {}
  if s.owns then
    local values = s.main.channels + (s.index and s.index.channels or 0)
    parts[1] = ('keeps %s values for every %s'):format(number(values), s.ratio > 1
      and ('%d tokens'):format(s.ratio) or 'token')
  else
    parts[1] = 'keeps nothing for the whole context'
  end
  if s.window > 0 then
    parts[2] = ('and %s for each of the last %s tokens'):format(number(s.local_kv.channels),
      number(s.window))
  end
  return ('%s; %s weights'):format(table.concat(parts, ' '), number(weights.count(s)))
end

-- draw.layer(s, title, scale, { order =, no_rope =, encoder = }, options) -> text, or the name of the file: a layer,
-- s its shape (kvlab.shape).
function draw.layer(s, title, scale, how, options)
  local o = page.options(opts.check(options or {}, OPTIONS, 'draw', 'option'))
  if o.order then opts.word(o.order, attention.orders, 'draw: order') end
  local self = setmetatable({ shape = s, specs = {}, lines = {}, used = {}, scale = scale, at = how.at or 1,
    order = o.order or how.order, no_rope = how.no_rope, encoder = how.encoder, ascii = screen.ascii(o.ascii),
    width = screen.size(o.width, math.min(screen.columns(), 120), 40, 1000, 'draw: width') }, meta)
  for _, spec in ipairs(weights.of(s)) do self.specs[spec.name] = spec end
  self.D, self.H = s.get 'hidden_size', s.get 'num_attention_heads'
  self.query_width = s.form == 'latent' and s.get 'qk_nope_head_dim' + s.get 'qk_rope_head_dim' or s.get 'head_dim'
  for _, line in ipairs(screen.words(title, self.width)) do self.lines[#self.lines + 1] = line end
  for _, line in ipairs(screen.words(self:kept_text(), self.width - 2)) do
    self.lines[#self.lines + 1] = '  ' .. line
  end
  local parts = asked(self:parts(), o.parts)
  for _, part in ipairs(PARTS) do
    if parts[part] then parts[part](self) end
  end
  self.lines[#self.lines + 1] = ''
  for _, line in ipairs(screen.wrap(boxes.legend(self.used, self.ascii), self.width, '  ')) do
    self.lines[#self.lines + 1] = line
  end
  for i, line in ipairs(self.lines) do self.lines[i] = screen.cut(line, self.width) end
  local text = table.concat(self.lines, '\n')
  return o.file and page.file(text, o.file, 'draw') or text
end

return draw
