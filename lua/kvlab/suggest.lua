-- suggest.lua: what an error says about a name it does not know.
-- Every place that takes a name (fields, presets, records, subcommands, options) asks here, so that one
-- misspelling reads the same everywhere: "unknown kind 'reindx'; did you mean 'reindex'?".
-- Names come as a list, or as a table whose string keys are the names.
local suggest = {}

local function name_list(names)
  local list = {}
  if #names > 0 then
    for index, name in ipairs(names) do list[index] = tostring(name) end
  else
    for name in pairs(names) do
      if type(name) == 'string' then list[#list + 1] = name end
    end
  end
  table.sort(list)
  return list
end

-- Edits that turn a into b: insert, delete, replace, or swap two neighbours (optimal string alignment, the
-- form of the Damerau-Levenshtein distance that edits no letter twice).
local function distance(a, b)
  local before, last = {}, {}
  for j = 0, #b do last[j] = j end
  for i = 1, #a do
    local row = { [0] = i }
    local letter = a:byte(i)
    for j = 1, #b do
      local best = last[j - 1] + (letter == b:byte(j) and 0 or 1)
      best = math.min(best, last[j] + 1, row[j - 1] + 1)
      if i > 1 and j > 1 and letter == b:byte(j - 1) and a:byte(i - 1) == b:byte(j) then
        best = math.min(best, before[j - 2] + 1)
      end
      row[j] = best
    end
    before, last = last, row
  end
  return last[#b]
end

-- nearest(word, names) -> name or nil: the name that was probably meant. One edit for each three letters of
-- the longer word is forgiven; a word that begins a name, or a name that begins the word, comes after that.
-- Upper and lower case are the same; of equally near names the first in the alphabet wins.
function suggest.nearest(word, names)
  word = tostring(word):lower()
  local found, found_rank
  for _, name in ipairs(name_list(names)) do
    local lower = name:lower()
    local allowed = math.max(#word, #lower) // 3
    local rank
    if lower == word then
      rank = 0
    elseif math.abs(#word - #lower) <= allowed then
      local edits = distance(word, lower)
      if edits <= allowed then rank = edits end
    end
    if not rank then
      local begins = #word >= 2 and lower:sub(1, #word) == word
      local begun = #lower >= 3 and word:sub(1, #lower) == lower
      if begins or begun then rank = 1000 + math.abs(#word - #lower) end
    end
    if rank and (not found or rank < found_rank) then found, found_rank = name, rank end
  end
  return found
end

-- phrase(word, names) -> "; did you mean 'reindex'?", or "" when nothing is near.
function suggest.phrase(word, names)
  local name = suggest.nearest(word, names)
  return name and ("; did you mean '%s'?"):format(name) or ''
end

-- strict(t, what) -> an __index for the table t that raises what, the name and the nearest one for a name that is
-- not there.
function suggest.strict(t, what)
  return function(_, name)
    if type(name) ~= 'string' then return nil end
    error(("%s '%s'%s"):format(what, name, suggest.phrase(name, t)), 2)
  end
end

-- list(names) -> "a, b and c" in alphabetical order; "nothing" for no names.
function suggest.list(names)
  local list = name_list(names)
  if #list == 0 then return 'nothing' end
  if #list == 1 then return list[1] end
  return table.concat(list, ', ', 1, #list - 1) .. ' and ' .. list[#list]
end

return suggest
