---@meta
-- The errors that people meet, and what to do. The first example of each shows the message, an other how it is right;
-- `...` in the message stands for what varies.

--- The name before the brackets holds nothing: it is misspelt, was never assigned, or was a `local` of an earlier line of
--- the prompt, which ended with that line. Methods need a colon and an object that has them: TAB after `x:` lists them.
--- Example:
---   select(2, pcall(load 'laoyut()')):match 'attempt.*'  --> attempt to call a nil value (global 'laoyut')
---   type(kv.layout)  --> function
---@problem attempt to call a nil value

--- What stands before the dot, colon or bracket is nil: a misspelt name, a field that is not there, a function that gave
--- nothing, or a `local` of an earlier line of the prompt, which ended with that line.
--- Example:
---   select(2, pcall(load 'L.name = 1')):match 'attempt.*'  --> attempt to index a nil value (global 'L')
---   kv.layout('swa')[2]  --> nil
---@problem attempt to index a nil value

--- A value in an expression is nil: a misspelt name, or a `local` of an earlier line of the prompt.
--- Example:
---   select(2, pcall(load 'x = 1 + total')):match 'attempt.*'  --> attempt to perform arithmetic on a nil value (global 'total')
---@problem attempt to perform arithmetic on a nil value

--- Lua cannot read the text. `near` says where it gave up; the mistake is there or before it. A statement such as `x = 1`
--- cannot stand inside an expression; `==` compares, `~=` is "not equal", text needs quotes.
--- Example:
---   select(2, load 'x y'):match 'syntax.*'  --> syntax error near 'y'
---   load 'x = y' ~= nil  --> true
---@problem syntax error near

--- The text ends before the statement does: a bracket, a quote, `then`, `do` or `end` is missing. At the prompt such an
--- input goes on in the next line; Ctrl-C gives it up.
--- Example:
---   select(2, load 'for i = 1, 2 do'):match "'end'.*"  --> 'end' expected near <eof>
---@problem expected near <eof>

--- kvlab has no field of this name. TAB after `kv.` lists what there is, help() shows it by area.
--- Example:
---   select(2, pcall(function() return kv.laoyut end)):match 'kvlab.*'  --> kvlab has no 'laoyut'; did you mean 'layout'?
---@problem kvlab has no '...'

--- An option, key or field that the function does not know; it says which one was probably meant. help on the function lists
--- its options.
--- Example:
---   select(2, pcall(kv.count, kv.layout 'swa', { conetxt = 3 }))  --> count: unknown option 'conetxt'; did you mean 'context'?
---   kv.count(kv.layout 'swa', { context = 3 }).context  --> 3
---@problem : unknown ... '...'

--- A layer has only the fields of its kind's form; docs/layouts.md lists them.
--- Example:
---   select(2, pcall(function() return kv.csa.ratoi end)):match 'a layer.*'  --> a layer has no field 'ratoi'; did you mean 'ratio'?
---@problem has no field '...'

--- There is no layer of this kind: mha mqa gqa mla dsa swa hca csa full reindex reuse, and layer{...} for anything else.
--- Example:
---   select(2, pcall(kv.layout, 'swa reindx'))  --> layout text, column 5: unknown layer kind 'reindx'; did you mean 'reindex'?
---   kv.layout 'full reindex'  --> full/1 reindex
---@problem unknown layer kind

--- reuse and reindex read the cache of an earlier layer, so an owner (mha ... full) has to stand before them.
--- Example:
---   select(2, pcall(kv.layout, 'reuse')):match '^[^;]*'  --> layer 1 (layer_id 0), reuse: no earlier layer owns a cache to share
---   kv.layout 'full reuse'  --> full/1 reuse
---@problem no earlier layer owns a cache

--- Counting and running need numbers of the model that the layout does not bring: give `widths`, of a preset or a table.
--- Example:
---   select(2, pcall(kv.model, 'mha', { hidden_size = 8 })):match 'the width.-missing'  --> the width num_attention_heads is missing
---   kv.model('mha', { hidden_size = 8, num_attention_heads = 2, head_dim = 4, vocab_size = 9 })  --> kvlab.Model: 1 layers, mha
---@problem the width ... is missing

--- The layer takes its window from the widths: give sliding_window there, or the field: kv.csa { window = 64 }.
--- Example:
---   select(2, pcall(kv.layout('swa').window, kv.layout 'swa', 1)):match 'its window is open'  --> its window is open
---   kv.layout('swa{window=64}'):window(1)  --> 64
---@problem its window is open

--- There is no preset of this name; kv.presets lists them.
--- Example:
---   select(2, pcall(kv.preset, 'v4')):match '^[^;]*'  --> unknown preset 'v4'
---   kv.preset('v4-pro').name  --> DeepSeek-V4-Pro
---@problem unknown preset

--- There is no record of this name; kv.records() lists them, and kv.record makes one.
--- Example:
---   select(2, pcall(kv.record_named, 'v5')):match '^[^;]*'  --> no record named 'v5'
---   kv.record_named('bf16').about  --> plain bfloat16
---@problem no record named

--- Layers, layouts and records are values: they are not changed but copied with changes.
--- Example:
---   select(2, pcall(function() kv.csa.ratio = 8 end)):match 'a layer[^;]*'  --> a layer cannot be changed
---   kv.csa { ratio = 8 }  --> csa/8
---   kv.layout('csa hca'):with(2, kv.swa)  --> csa swa
---@problem cannot be changed

--- The sizes of two tensors do not fit. Counted from the last dimension, sizes have to be equal, or one of them 1; t.shape
--- says what a tensor has, unsqueeze, reshape and transpose change it.
--- Example:
---   select(2, pcall(function() return kv.zeros(2, 3) + kv.zeros(2, 4) end)):match 'shapes.-broadcast'  --> shapes {2, 3} and {2, 4} do not broadcast
---   (kv.zeros(2, 3) + kv.zeros(3)).shape[1]  --> 2
---@problem do not broadcast

--- A matrix product needs as many columns on the left as there are rows on the right. Checkpoints hold weights the other way
--- round: kv.linear(x, w) multiplies by those.
--- Example:
---   select(2, pcall(kv.matmul, kv.zeros(2, 3), kv.zeros(2, 3))):match 'inner.*'  --> inner sizes differ: {2, 3} x {2, 3}
---   kv.matmul(kv.zeros(2, 3), kv.zeros(2, 3):transpose(1, 2)).shape[2]  --> 2
---@problem inner sizes differ

--- A reshape keeps every element, so the product of the sizes has to stay; one size may be -1 and is computed.
--- Example:
---   select(2, pcall(kv.zeros(6).reshape, kv.zeros(6), 4)):match '%d elements.*'  --> 6 elements of shape {6} do not make {4}
---   kv.zeros(6):reshape(2, -1).shape[2]  --> 3
---@problem elements of shape ... do not make

--- Dimensions and indices count from 1, and -1 is the last.
--- Example:
---   select(2, pcall(kv.zeros(3).get, kv.zeros(3), 9)):match 'there are.*'  --> there are 1 .. 3, or -1 for the last one)
---   kv.arange(3):get(-1)  --> 2
---@problem there are 1 .. ...

--- Ids inside tensors count from 0, as in token lists: the last one is the number of rows less one.
--- Example:
---   select(2, pcall(kv.embedding, kv.zeros(3, 2), kv.tensor({ 3 }, 'int32'))):match 'id.*'  --> id 3 is outside 0 .. 2
---   kv.embedding(kv.zeros(3, 2), kv.tensor({ 2 }, 'int32')).shape[2]  --> 2
---@problem id ... is outside

--- Every tensor of random numbers gets a seed of its own, so that a run can be repeated.
--- Example:
---   select(2, pcall(kv.random, { 2 }))  --> random: seed is nil, expected an integer; give every tensor a seed of its own
---   kv.random({ 2, seed = 1 }).size  --> 2
---@problem seed is ..., expected an integer

--- The object was freed, by free(), close() or the end of a `<close>` variable. Make a new one; a tensor that is still needed
--- is not freed by hand.
--- Example:
---   select(2, pcall(function() local t = kv.zeros(2) t:free() return t:sum() end)):match 'the tensor was freed'  --> the tensor was freed
---@problem was freed

--- The pool of a sequence has a limit, `pages` of model:sequence, and it is used up. Free sequences that are done, or give
--- more pages; without `pages` there is no limit but memory.
--- Example:
---   select(2, pcall(function() local m = kv.model('mha', { hidden_size = 8, num_attention_heads = 2, head_dim = 4, vocab_size = 9 }) return m:sequence({ pages = 1 }):prefill(kv.zeros(300):to 'int32') end)):match 'out of pages'  --> out of pages
---@problem out of pages

--- More memory is asked for than the machine, or the control group that this process is in, has. Fewer tokens, smaller
--- widths, or freeing what is not needed help; the message says what would be needed.
--- Example:
---   select(2, pcall(kv.zeros, 1000000, 1000000)):match 'a tensor of shape {1000000, 1000000} takes'  --> a tensor of shape {1000000, 1000000} takes
---@problem a tensor of shape ... takes

--- The caches do not fit into memory; the message says which context would.
--- Example:
---   select(2, pcall(kv.measure, kv.preset 'mha', { context = 1000000000 })):match 'at 1,000,000,000 tokens needs'  --> at 1,000,000,000 tokens needs
---   kv.measure(kv.preset 'v4.1-flash', { context = 33 }).equal  --> true
---@problem tokens needs

--- Lua ran out of memory for tables and texts.
--- Example:
---   select(2, pcall(error, 'not enough memory', 0))  --> not enough memory
---@problem not enough memory

--- A sequence keeps as many tokens for taking back as it was asked to: model:sequence { rollback = n }.
--- Example:
---   select(2, pcall(function() local m = kv.model('mha', { hidden_size = 8, num_attention_heads = 2, head_dim = 4, vocab_size = 9 }) local s = m:sequence() s:prefill { 1, 2 } s:rollback(1) end)):match 'only 0 can be taken back'  --> only 0 can be taken back
---@problem can be taken back

--- Ctrl-C stopped the computation. What was being computed is gone; sequences are as they were before the call.
--- Example:
---   select(2, pcall(error, 'interrupted', 0))  --> interrupted
---@problem interrupted

--- Lua looks for a module under the names in package.path; for a file beside you run it: dofile 'file.lua'.
--- Example:
---   select(2, pcall(require, 'kvlab.nosuch')):match '^[^\n:]*'  --> module 'kvlab.nosuch' not found
---   require 'kvlab' == kv  --> true
---@problem module '...' not found

--- The file is not there, under this name, seen from the folder in which kvlab was started. TAB inside a string completes
--- the names of files.
--- Example:
---   select(2, pcall(kv.safetensors.open, '/nowhere'))  --> /nowhere: No such file or directory
---@problem No such file or directory

--- A function calls itself without end, or very deep.
--- Example:
---   select(2, pcall(load 'local function f() return 1 + f() end return f()')):match 'stack overflow'  --> stack overflow
---@problem stack overflow

--- A table or another value stands where a number or a text has to: `#t`, `t[1]` or tostring(x) may have been meant.
--- Example:
---   select(2, pcall(load 'return 1 + {}')):match 'attempt.*'  --> attempt to perform arithmetic on a table value
---@problem attempt to perform arithmetic on a ... value
