---@meta
local plot = {}

--- Pictures as text that fits the terminal, or as a file (docs/plots.md). Every axis is labelled, a log axis says so,
--- and colour never says anything alone.
---
--- Options of all: title; width, in characters (else COLUMNS, what the terminal says, or 80); ascii = true for plain
--- ASCII (the default when the locale is not UTF-8); note = a sentence below; file = 'x.svg', .png or .pdf draws the
--- same with gnuplot and returns the name instead of the text.
--- Errors of all: an unknown option; a file with another ending, that cannot be written, or without gnuplot.
---@within kv.plot

--- Draws horizontal bars.
---
--- rows: a list of { label, value } or { label, { value, ... } }, each with text = what stands after the bar (the
--- value), note = lines below it, mark = true for a `>` in front. Values are numbers >= 0.
--- scale: 'linear' or 'log'. On a log scale the length of a bar is its total, and its parts split that length by
--- their true ratio, because logarithms cannot be stacked; the axis begins at the power of ten below the smallest.
--- Also: unit (below the axis), parts (names for the legend), from and upto (values that widen the axis, so that
--- several pictures share one). width is that of the axis.
--- Errors: no rows, a value that is negative or no number, an unknown scale.
--- Example:
---   kv.plot.bars { ascii = true, width = 10, rows = { { 'a', 4 }, { 'b', { 1, 1 } } } }:match '|[#=]+'  --> |##########
---   kv.plot.bars { ascii = true, width = 10, rows = { { 'a', 4 }, { 'b', { 1, 1 } } } }:match 'b (|[#=]+)'  --> |###==
---@param options table
---@return string text  or the name of the file
function plot.bars(options) end

--- Draws lines over two axes.
---
--- series: a list of { name, points }. points is a list of { x, y }, a tensor {n, 2}, or the y alone as a list or a
--- tensor {n}, with x = 1, 2, ... or the field x. Fields: error, for each point a half length or { low, high };
--- style = 'line', 'points' or 'path' (a line without marks); mark, its character. nan leaves a gap.
--- x and y: labels with their units. scale is of y, xscale of x: 'linear' or 'log'. from and upto widen the y axis;
--- height: rows of the text (16).
--- Errors: no series, no point that can be drawn, lists of different lengths, what is no number.
--- Example:
---   kv.plot.line { ascii = true, width = 24, height = 3, series = { { 'a', { 1, 2, 3 } } } }:match '1 (.-)\n'  --> +*....
---@param options table
---@return string text  or the name of the file
function plot.line(options) end

--- Draws a matrix as shades from light to dark, or as digits 0 to 9.
---
--- values: a tensor {rows, columns} or a list of lists; nan and infinite ones are left blank. rows, columns: labels;
--- else they are numbered from 1. x and y: what the columns and the rows are; unit: what the values are. scale:
--- 'linear' or 'log'; from and upto: the values of the lightest and the darkest shade. digits = true: digits instead
--- of shades. marks: a list of { row, column, character } put on top, explained by legend, a list of { character,
--- meaning }. A matrix that is too large is shown as means of blocks; height: rows at most (40).
--- Errors: rows of different lengths, labels of another number, marks outside.
--- Example:
---   kv.plot.heat { digits = true, values = { { 0, 1 }, { 2, 9 } } }:match '%d |.-|'  --> 1 |0011|
---@param options table
---@return string text  or the name of the file
function plot.heat(options) end

--- Draws a row of characters for each layer, a column for each position; the characters carry the meaning.
---
--- rows: a list of { label, characters }, where characters is a text or a list of single ones. legend: a list of
--- { character, meaning }. x: what the positions are; from: the first one (1). In rows that are too long a character
--- stands for several positions and shows which of theirs comes first in the legend.
--- Errors: no rows, a cell that is not one character.
--- Example:
---   kv.plot.strip { rows = { { 'full', '##..' }, { 'swa', '..ww' } } }:match 'swa.*'  --> swa  |..ww
---@param options table
---@return string text  or the name of the file
function plot.strip(options) end
