-- draw/boxes.lua: values and weights as boxes in a row, with arrows between them. A row that is too long goes on below.
local screen = require 'kvlab.plot.screen'

local boxes = {}

-- Left top, horizontal, right top, vertical, left bottom, right bottom; told apart by their lines, not by colour.
local FRAMES = {
  utf8 = { value = { '┌', '─', '┐', '│', '└', '┘' }, weight = { '╔', '═', '╗', '║', '╚', '╝' },
    kept = { '┏', '━', '┓', '┃', '┗', '┛' }, borrowed = { '┌', '╌', '┐', '╎', '└', '┘' } },
  ascii = { value = { '+', '-', '+', '|', '+', '+' }, weight = { '#', '=', '#', '#', '#', '#' },
    kept = { '*', '*', '*', '*', '*', '*' }, borrowed = { '+', '.', '+', ':', '+', '+' } },
}

boxes.SIGNS = { utf8 = { line = '─', head = '▶', times = '×', dot = '·' },
  ascii = { line = '-', head = '>', times = 'x', dot = '.' } }

-- The four lines of a box { kind, name, shape }.
local function box_lines(item, frames)
  local f = frames[item[1]]
  local width = math.max(screen.width(item[2]), screen.width(item[3]))
  local function text(line) return f[4] .. ' ' .. screen.pad(line, width) .. ' ' .. f[4] end
  return { f[1] .. f[2]:rep(width + 2) .. f[3], text(item[2]), text(item[3]), f[5] .. f[2]:rep(width + 2) .. f[6] }
end

-- What stands between two boxes, on the line of their names: an arrow with what happens on the way, or a sign.
local function link(item, sign)
  if item[1] == 'sign' then return ' ' .. item[2] .. ' ' end
  if not item[2] then return sign.line .. sign.head end
  return ('%s %s %s%s'):format(sign.line, item[2], sign.line, sign.head)
end

-- An item is a box { 'value' | 'weight' | 'kept' | 'borrowed', name, shape }, an operation on the way to the next box
-- { 'op', text }, or a sign between two boxes { 'sign', text }. Boxes that follow each other get an arrow.
local function links_of(items, sign)
  local out, before = {}, nil
  for _, item in ipairs(items) do
    local is_link = item[1] == 'op' or item[1] == 'sign'
    if not is_link and before == 'box' then out[#out + 1] = { link = true, text = link({ 'op' }, sign) } end
    if is_link then
      local last = out[#out]
      local text = link(item, sign)
      if last and last.link and item[1] == 'op' and last.words then -- one operation after the other: one arrow
        last.words = last.words .. ', ' .. item[2]
        last.text = link({ 'op', last.words }, sign)
      else
        out[#out + 1] = { link = true, text = text, words = item[1] == 'op' and item[2] or nil }
      end
    else
      out[#out + 1] = { box = item }
    end
    before = is_link and 'link' or 'box'
  end
  return out
end

-- boxes.flow(items, width, ascii, indent) -> lines no longer than width, unless one box is.
function boxes.flow(items, width, ascii, indent)
  local look = ascii and 'ascii' or 'utf8'
  local frames, sign = FRAMES[look], boxes.SIGNS[look]
  local lines, row = {}, nil
  local function flush()
    for _, line in ipairs(row or {}) do lines[#lines + 1] = (line:gsub('%s+$', '')) end
  end
  local function begin() row = { indent, indent, indent, indent } end
  local function add(parts)
    for i = 1, 4 do row[i] = row[i] .. parts[i] end
  end
  begin()
  local fresh, waiting = true, nil
  for _, part in ipairs(links_of(items, sign)) do
    if part.link then
      waiting = part.text
    else
      local drawn = box_lines(part.box, frames)
      local arrow = waiting or ''
      if not fresh and screen.width(row[2] .. arrow .. drawn[2]) > width then
        flush()
        begin()
        arrow = arrow ~= '' and '  ' .. arrow or ''
      end
      -- Operations that are too long for the line begin on lines of their own.
      if screen.width(row[2] .. arrow .. drawn[2]) > width and #arrow > 12 then
        local words = screen.words(arrow, width - #indent - 4)
        local last = words[#words]
        if #words == 1 or screen.width(indent .. last .. drawn[2]) + 2 > width then
          words[#words] = (last:gsub('%s*' .. sign.line .. sign.head .. '$', ''))
          words[#words + 1] = sign.line .. sign.head
        end
        for at = 1, #words - 1 do lines[#lines + 1] = ('%s  %s'):format(indent, words[at]) end
        arrow = '  ' .. words[#words]
      end
      local gap = (' '):rep(screen.width(arrow))
      add { gap, arrow, gap, gap }
      add(drawn)
      fresh, waiting = false, nil
    end
  end
  if waiting then row[2] = row[2] .. waiting end
  flush()
  return lines
end

-- What the frames mean, of those that `used` names.
function boxes.legend(used, ascii)
  local look = ascii and 'ascii' or 'utf8'
  local frames, out = FRAMES[look], {}
  for _, one in ipairs { { 'weight', ('learned weights, inputs %s outputs'):format(boxes.SIGNS[look].times) },
    { 'value', 'values, a row a token' },
    { 'kept', 'kept in the cache' }, { 'borrowed', "another layer's" } } do
    local f = frames[one[1]]
    if used[one[1]] then out[#out + 1] = ('%s%s%s %s'):format(f[4], f[2], f[4], one[2]) end
  end
  return out
end

return boxes
