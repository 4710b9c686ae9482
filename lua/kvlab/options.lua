-- options.lua: checks of option tables and names, with a suggestion for what was misspelt.
local options = {}

-- Edit distance of two short words (Levenshtein), for suggestions only.
local function distance(a, b)
  local row = {}
  for j = 0, #b do row[j] = j end
  for i = 1, #a do
    local diagonal = row[0]
    row[0] = i
    for j = 1, #b do
      local cost = a:byte(i) == b:byte(j) and 0 or 1
      diagonal, row[j] = row[j], math.min(row[j] + 1, row[j - 1] + 1, diagonal + cost)
    end
  end
  return row[#b]
end

-- nearest(word, words) -> the word of the list that `word` was probably meant to be, or nil.
function options.nearest(word, words)
  local best, least
  word = tostring(word):sub(1, 64):lower()
  for _, candidate in ipairs(words) do
    local d = distance(word, candidate:lower())
    -- 'v4' means 'v4-main' more than it means 'v3'
    if candidate:lower():find(word, 1, true) then d = math.min(d, 1) end
    if not least or d < least then best, least = candidate, d end
  end
  if best and least <= math.max(2, #best // 3) then return best end
  return nil
end

-- suggest(word, words) -> "; did you mean 'x'?", or the whole list when it is short, or nothing.
function options.suggest(word, words)
  local near = options.nearest(word, words)
  if near then return (" - did you mean '%s'?"):format(near) end
  if #words <= 12 then return ' - expected ' .. table.concat(words, ', ') end
  return ''
end

-- check(t, allowed, where): t is a table whose keys are all in the list `allowed`.
function options.check(t, allowed, where)
  if type(t) ~= 'table' then
    error(('%s: expected a table, not a %s'):format(where, type(t)), 0)
  end
  for key in pairs(t) do
    local known = false
    for _, name in ipairs(allowed) do known = known or name == key end
    if not known then
      error(("%s: unknown key '%s'%s"):format(where, tostring(key), options.suggest(key, allowed)), 0)
    end
  end
end

-- word(value, words, where): value is one of the words; returns it.
function options.word(value, words, where)
  for _, name in ipairs(words) do
    if name == value then return value end
  end
  local shown = type(value) == 'string' and ("'%s'"):format(value) or tostring(value)
  error(('%s: %s is unknown%s'):format(where, shown, options.suggest(value, words)), 0)
end

-- whole(value, low, where): value is a whole number, low or more; returns it as an integer.
function options.whole(value, low, where)
  local n = type(value) == 'number' and math.tointeger(value)
  if not n or n < low then
    local shown = type(value) == 'string' and ("'%s'"):format(value) or tostring(value)
    error(('%s is %s, expected a whole number, %d or more'):format(where, shown, low), 0)
  end
  return n
end

return options
