---@meta
local plot = {}

--- Pictures as text: no colour, every axis labelled.
---@within kv.plot

--- Draws horizontal bars.
---
--- rows: a list of { label, value } or { label, { value, ... } }, each with text = what stands after the bar (the
--- value), note = lines below it, mark = true for a `>` in front. Values are numbers >= 0.
--- scale: 'linear' or 'log'. On a log scale the length of a bar is its total, and its parts split that length by
--- their true ratio, because logarithms cannot be stacked; the axis begins at the power of ten below the smallest.
--- Also: title, unit (below the axis), parts (names for the legend), width of the axis in characters (50), from
--- and upto (values that widen the axis, so that several pictures share one), ascii = true for # = + . instead of
--- blocks (the default when the locale is not UTF-8).
--- Errors: an unknown option, no rows, a value that is negative or no number, an unknown scale.
--- Example:
---   kv.plot.bars { ascii = true, width = 10, rows = { { 'a', 4 }, { 'b', { 1, 1 } } } }:match '|[#=]+'  --> |##########
---   kv.plot.bars { ascii = true, width = 10, rows = { { 'a', 4 }, { 'b', { 1, 1 } } } }:match 'b (|[#=]+)'  --> |###==
---@param options table
---@return string text
function plot.bars(options) end
