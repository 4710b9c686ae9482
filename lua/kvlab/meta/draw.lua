---@meta
local Layout, Layer, Attention = {}, {}, {}

---@within Layout

--- Draws the layout, a row for each layer: whose global KV it reads, whose selection, its window, and where the encoder
--- ends. Or draws one of its layers, as Attention:draw does.
---
--- Equal neighbours share a row; groups that repeat in a long layout are written once. A cache and a selection have a
--- lane each: they begin where they are made and end at the last layer that reads them.
--- Options: layer = i draws that layer, borrowed parts included, with order and parts as for Attention:draw; widths
--- (changes; of one layer beside those that kv.count takes); width in characters (what the terminal has, 100 in a file);
--- ascii; file = 'x.svg', .png or .pdf: the picture as a file, through gnuplot.
--- Errors: an unknown option; no such layer; a width that the layer needs and nobody gave; file without gnuplot.
--- Source: the article's Figures 23, 24 and 26; DeepSeek-V4.1 report 2.2-2.4.
--- Example:
---   kv.layout('full/2 reuse*5'):draw { ascii = true }:match '2%-6.-of 1'  --> 2-6    reuse x5     yes  o of 1
---@param options? table
---@return string text  or the name of the file
function Layout:draw(options) end

---@within Layer

--- Draws the layer as boxes with the shapes that the widths give it, as Attention:draw does.
---
--- Without widths those of v4.1-flash. Options as for Attention:draw.
--- Errors: a layer that borrows, which Layout:draw { layer = i } draws; a width that is missing.
--- Example:
---   kv.mha:draw({ hidden_size = 8, num_attention_heads = 2, head_dim = 4 }):match 'keeps [^;]+'  --> keeps 16 values for every token
---@param widths? table
---@param options? table
---@return string text  or the name of the file
function Layer:draw(widths, options) end

---@within Attention

--- Draws the layer as boxes: what it makes of its input X, what it keeps in the cache, how it selects, attends and
--- projects its output, with the shapes of all of it.
---
--- Frames tell weights, values, what is kept, and what is another layer's. T is the number of tokens, R of rows that a
--- query reads; an arrow multiplies with the weight that it leads to. Weights have the names of `w`.
--- Options: order = 'expand', 'absorb' or 'merged' (MLA; else that of the object, or all three); parts, a list of what is
--- drawn: query, cache, keys, indexer, window, attention, output; width in characters; ascii; file, as for Layout:draw.
--- Errors: an unknown option or order; a part that the layer does not have.
--- Source: the article's Figures 3 to 6, 8, 12, 15, 16, 18 and 22.
--- Example:
---   kv.attention(kv.mqa, { hidden_size = 8, num_attention_heads = 2, head_dim = 4 }):draw { ascii = true }:match 'k_proj +# *%- (%a+)'  --> RoPE
---@param options? table
---@return string text  or the name of the file
function Attention:draw(options) end
