---@meta
local kv, json, suggest = {}, {}, {}

--- The whole toolkit: `local kv = require 'kvlab'`.
---@within kv

--- Prints what a function, module, object or name is; without an argument a map of everything.
---
--- A name may be given in full ('kv.json.encode', 'Record:plan') or as its last part; for an unknown one the
--- nearest is suggested. Nothing is returned.
--- Example:
---   kv.help('json.encode')  --> nil
---@param ... any  at most one: a function, a module table, an object of kvlab or a string
function kv.help(...) end

--- JSON text (RFC 8259) from Lua values and back, with exact integers.
---@within kv.json

--- Marks a list, so that it is written as an array even when it is empty.
---
--- Errors: t is not a table.
--- Example:
---   kv.json.encode(kv.json.array {})  --> []
---@param t table  a list; it is copied, not changed
---@return table array  the values 1 to #t
function json.array(t) end

--- Gives an object whose keys are written in this order instead of sorted.
---
--- A pair without a value is left out; kv.json.null writes null.
--- Errors: an entry is not a pair with a string first, or a key is there twice.
--- Example:
---   kv.json.encode(kv.json.object { { 'name', 'x' }, { 'bytes', 2 } })  --> {"name":"x","bytes":2}
---@param pairs_in_order table  a list of pairs {'key', value}
---@return table object
function json.object(pairs_in_order) end

--- Writes a value as JSON text.
---
--- Integers digit by digit; floats with the fewest digits that read back to the same value, always
--- recognisable as floats; NaN and infinity as null. A table with elements is an array, any other an object
--- with sorted keys (an empty one too: see kv.json.array). A value whose metatable has `__tojson` writes the text
--- which that function returns.
--- Errors: a function or another value without JSON form, a table that contains itself, has holes or both
--- elements and keys, a string that is not UTF-8, more than 512 levels; each with the path to the place.
--- Source: RFC 8259.
--- Example:
---   kv.json.encode({ b = 3514.25, a = { 1, 2 } })  --> {"a":[1,2],"b":3514.25}
---   kv.json.encode({ 2.0, 0 / 0 })  --> [2.0,null]
---@param value any
---@param options? table  {indent = n}: members on lines of their own, n (0 to 16) spaces deeper each level
---@return string text
function json.encode(value, options) end

--- Reads JSON text.
---
--- An integer in 64 bits becomes a Lua integer, any other number a float; null becomes kv.json.null, which is a
--- true value. An object becomes a plain table, an array a list that is written as an array again.
--- Errors: whatever RFC 8259 does not allow, a key that is there twice, invalid UTF-8, half of a surrogate pair,
--- a number beyond the range of a float, more than 512 levels; each with line and column.
--- Source: RFC 8259.
--- Example:
---   kv.json.decode('{"bytes": [1, 2.5]}').bytes[2]  --> 2.5
---   kv.json.decode('null') == kv.json.null  --> true
---@param text string  UTF-8
---@return any value
function json.decode(text) end

--- What an error says about a name that it does not know.
---@within kv.suggest

--- Finds the name that was probably meant.
---
--- One edit (insert, delete, replace, swap neighbours) for three letters is forgiven, upper and lower case are the
--- same; after that a word which begins a name, or a name which begins the word.
--- Example:
---   kv.suggest.nearest('reindx', { 'reuse', 'reindex' })  --> reindex
---   kv.suggest.nearest('window', { 'ratio' })  --> nil
---@param word string
---@param names table  a list of names, or a table with the names as keys
---@return string? name
function suggest.nearest(word, names) end

--- The end of a message: `; did you mean 'reindex'?`, or the empty string when nothing is near.
--- Example:
---   'unknown kind' .. kv.suggest.phrase('reindx', { 'reuse', 'reindex' })  --> unknown kind; did you mean 'reindex'?
---@param word string
---@param names table  as for kv.suggest.nearest
---@return string text
function suggest.phrase(word, names) end

--- Makes an `__index` for a table in which a name that is not there is an error.
---
--- Errors: the function that is returned raises `what`, the name and the nearest name of the table.
--- Example:
---   type(kv.suggest.strict({ swa = 1 }, 'there is no'))  --> function
---@param t table  the table that gets it; its string keys are the names
---@param what string  how the message begins: 'kvlab has no'
---@return function index
function suggest.strict(t, what) end

--- The names as words of a sentence, in alphabetical order.
--- Example:
---   kv.suggest.list { 'b', 'c', 'a' }  --> a, b and c
---@param names table  as for kv.suggest.nearest
---@return string text
function suggest.list(names) end
