---@meta
local kv = {}

---@within kv

--- Prints whole values: every entry of a table and of the tables in it, every line of a text. The prompt shows the beginning
--- only; `show(_)` there prints the rest.
---
--- A tensor is shown by the elements at its edges, as ever. A table inside itself is {...}.
--- Example:
---   kv.show('a text')  --> nil
---@param ... any
function kv.show(...) end

--- Counts from first to last in a `for` loop, with a line on the terminal that says how far the loop is and how long it
--- will take: for step in kv.progress(1, 300, 'training') do ... end
---
--- The line appears after half a second, at most ten times a second, on the standard error and only if that is a terminal
--- which can draw over a line; at the end, also after `break` and an error, it is gone. A loop inside the loop has no line
--- of its own.
--- Errors: first or last is not a whole number; the label is no text.
--- Example:
---   (function() local sum = 0 for i in kv.progress(1, 4) do sum = sum + i end return sum end)()  --> 10
---@param first integer
---@param last integer
---@param label? string  what is done
---@return function next
---@return nil state
---@return nil control
---@return any bar  closed by the loop
function kv.progress(first, last, label) end
