---@meta
local kv, Layer, Layout = {}, {}, {}

---@within kv

--- Makes a layout, the list of layers of a model, checked when it is made (docs/layouts.md).
---
--- `spec` is a list of layers, groups, layouts and lists of these, in the order of the model; or a table with
--- `encoder` and `decoder`, two such lists; or text such as 'swa*2 [full/2 reuse*5]*3'. Beside the layers a table
--- may have name (text), widths (docs/layouts.md), records { main =, index =, window =, heads =, latent =,
--- entry = } and strict (a warning becomes an error).
--- Errors: no layers, more than 4,194,304, an unknown field, a layer that shares what no earlier layer has; each
--- names the layer, counted from 1 and as layer_id from 0. Errors of text name the column.
--- Source: DeepSeek-V4.1 report 2.2-2.4 for Full, Reindex, Reuse and the encoder-decoder; DeepSeek-V4 report 2.3.
--- Example:
---   #kv.layout { kv.swa * 2, kv.group { kv.full { ratio = 2 }, kv.reuse * 5 } * 3 }  --> 20
---   kv.layout { encoder = { kv.swa }, decoder = { kv.full, kv.reuse } }  --> swa | full/1 reuse
---   kv.layout '[Full, Reuse×5]'  --> full/1 reuse*5
---@param spec table|string
---@return Layout layout
function kv.layout(spec) end

--- Puts layers together, to be repeated with `*` or set into a layout. Groups nest.
---
--- Errors: nothing here; what is no layer is refused by kv.layout.
--- Example:
---   kv.layout { kv.group { kv.csa, kv.hca } * 2 }  --> [csa hca]*2
---@param items table|Layer|Layout  a list of layers, groups, layouts; or one of these
---@return Group group
function kv.group(items) end

--- Makes a layer from nothing, without cache, selection or window until `fields` say so.
---
--- For designs that no kind comes close to. The fields and their defaults are in docs/layouts.md.
--- Errors: an unknown field, a value out of range, fields that contradict each other, nothing to read.
--- Example:
---   kv.layer { window = 64 }.kind  --> layer
---   kv.layer { cache = 'own', form = 'entry', ratio = 8, select = 'all', window = 16 }.form  --> entry
---@param fields table
---@return Layer layer
function kv.layer(fields) end

--- Per-head keys and values for every query head, all read. Row: key and value of num_attention_heads heads.
---
--- Source: DeepSeek-V2 report 2.1.1.
--- Example:
---   kv.mha.num_key_value_heads  --> all
---@type Layer
kv.mha = ...

--- One key and one value, shared by all query heads, all read.
---
--- Source: DeepSeek-V2 report 2.1.1.
--- Example:
---   kv.mqa.num_key_value_heads  --> 1
---@type Layer
kv.mqa = ...

--- Keys and values of num_key_value_heads heads, all read; query head h reads head h // (H / num_key_value_heads).
---
--- Example:
---   kv.gqa { num_key_value_heads = 8 }  --> gqa{num_key_value_heads=8}
---@type Layer
kv.gqa = ...

--- A latent (kv_lora_rank values) and a rotary key (qk_rope_head_dim) for every token, all read.
---
--- Source: DeepSeek-V2 report 2.1.2-2.1.3.
--- Example:
---   kv.mla.form  --> latent
---@type Layer
kv.mla = ...

--- mla that reads the index_topk tokens which its lightning indexer picks; stores an index key a token.
---
--- Source: DeepSeek-V3.2 report 2.1.
--- Example:
---   kv.dsa.keys  --> input
---@type Layer
kv.dsa = ...

--- Local KV only: the last sliding_window tokens, the current one included. A row is one K = V entry; with
--- form = 'heads' it is keys and values of num_key_value_heads heads (gpt-oss, Gemma).
---
--- Source: DeepSeek-V4 report 2.3.
--- Example:
---   kv.swa { form = 'heads', window = 1024 }  --> swa{form=heads,window=1024}
---@type Layer
kv.swa = ...

--- Owns one entry for 128 tokens and reads all of them, beside its window.
---
--- Source: DeepSeek-V4 report 2.3 (heavily compressed attention).
--- Example:
---   kv.hca.ratio  --> 128
---@type Layer
kv.hca = ...

--- Owns one entry for 4 tokens (each made from 8, overlapping), with an index key from a compressor of its own;
--- reads the index_topk best, beside its window.
---
--- Source: DeepSeek-V4 report 2.3 (compressed sparse attention).
--- Example:
---   kv.csa.overlap  --> true
---@type Layer
kv.csa = ...

--- Owns one entry for `ratio` tokens (1 unless given), with an index key projected from the entry; reads the
--- index_topk best, beside its window. Not a dense layer: 'Full' is its mode in CSA2.
---
--- Source: DeepSeek-V4.1 report 2.3.
--- Example:
---   kv.full { ratio = 2 }  --> full/2
---@type Layer
kv.full = ...

--- Stores no global KV and selects anew among the entries of an earlier owner, over that owner's index keys. Its
--- window is of its own, with the owner's size.
---
--- Source: DeepSeek-V4.1 report 2.3-2.4.
--- Example:
---   kv.layout { kv.full, kv.reindex }:owner(2)  --> 1
---@type Layer
kv.reindex = ...

--- Stores no global KV and reads the entries of an earlier owner that an earlier layer selected. Its window is of its
--- own, with the owner's size.
---
--- Source: DeepSeek-V4.1 report 2.3.
--- Example:
---   kv.layout { kv.full, kv.reindex, kv.reuse }:selector(3)  --> 2
---@type Layer
kv.reuse = ...

--- Loads a layout that comes with kvlab, with the widths and records of the released model.
---
--- Errors: an unknown name, with the nearest.
--- Example:
---   kv.preset 'v4-flash'  --> swa*2 [csa hca]*20 csa
---   kv.preset 'v4-flash'.widths.sliding_window  --> 128
---@param name string  one of kv.presets
---@return Layout layout
function kv.preset(name) end

--- The names of the presets, in the order of their publication.
---
--- Example:
---   table.concat(kv.presets, ' ')  --> mha v2 v2-lite v3 v3.2 v4-flash v4-pro v4.1-flash
---@type string[]
kv.presets = ...

--- One layer of a layout, an immutable value. Equal layers are the same Lua value.
---
---   l.kind, l.ratio, ...   a field; nil when it is open and the widths will fill it (docs/layouts.md has all)
---   l { window = 64 }      a changed copy
---   l * 5, 5 * l           a group of five
---   tostring(l)            its text: 'csa{window=64}'
---@within Layer

--- A list of layers that has been resolved and checked; an immutable value. Layers are counted from 1.
---
---   #L, L[i]               how many layers; layer i, or nil
---   L.name, L.widths, L.records   labels, nil when not given; not part of what == compares
---   L.cut                  the number of encoder layers, or nil
---   L .. M                 the layers of both, with the labels of the first that has any; one may have a cut
---   L == M                 the same layers and cut
---   tostring(L)            its text: kv.layout(tostring(L)) == L
---@within Layout

--- A copy with layer i replaced, checked as a new layout.
---
--- Errors: i is no layer of L, `replacement` is no layer, or the new layout is not valid.
--- Example:
---   kv.layout 'full reuse*3':with(3, kv.reindex)  --> full/1 reuse reindex reuse
---@param i integer  from 1
---@param replacement Layer
---@return Layout layout
function Layout:with(i, replacement) end

--- A copy with every layer replaced by what f returns for it; nil keeps a layer.
---
--- Errors: f returns something else, or the new layout is not valid.
--- Example:
---   kv.layout 'full/2 reuse*2':map(function(l) return l.cache == 'own' and l { ratio = 4 } or nil end)  --> full/4 reuse*2
---@param f fun(layer: Layer, i: integer): Layer?
---@return Layout layout
function Layout:map(f) end

--- The same layers under other labels; a label that is not given stays.
---
--- Errors: a name that is no text, widths or records that are no table, an unknown role in records.
--- Example:
---   kv.preset 'v4-flash':labelled { name = 'mine' }.name  --> mine
---   kv.count(kv.layout 'swa csa':labelled { widths = kv.preset 'v4-pro'.widths }).borrowed_widths  --> false
---@param labels table  { name =, widths =, records = }
---@return Layout layout
function Layout:labelled(labels) end

--- The layer whose global cache layer i reads, i itself or an earlier one; nil without a global cache.
---
--- Errors: i is no layer of L.
--- Example:
---   kv.preset 'v4.1-flash':owner(40)  --> 21
---   kv.preset 'v4.1-flash':owner(1)  --> nil
---@param i integer  from 1
---@return integer? owner
function Layout:owner(i) end

--- The layer that chose the entries which layer i reads, i itself or an earlier one; nil without a global cache.
---
--- Errors: i is no layer of L.
--- Example:
---   kv.preset 'v4.1-flash':selector(40)  --> 37
---@param i integer  from 1
---@return integer? selector
function Layout:selector(i) end

--- The candidate pool inside which layer i searches, or nil when it searches every entry.
---
--- The owner that builds the pool searches everything itself: nil.
--- Errors: i is no layer of L. Source: DeepSeek-V4.1 report 2.4 (hierarchical indexer).
--- Example:
---   kv.preset 'v4.1-flash':pool(25).blocks  --> 2048
---   kv.preset 'v4.1-flash':pool(21)  --> nil
---@param i integer  from 1
---@return table? pool  { blocks =, block = entries of a block }
function Layout:pool(i) end

--- The tokens that layer i keeps as local KV; 0 without a window.
---
--- Errors: i is no layer of L; the window is open and there is no width sliding_window.
--- Example:
---   kv.preset 'v4.1-flash':window(22)  --> 128
---   kv.layout 'swa':window(1, { sliding_window = 64 })  --> 64
---@param i integer  from 1
---@param widths? table  for a layer that leaves its window open; the layout's own when not given
---@return integer tokens
function Layout:window(i, widths) end

--- The form of a row of layer i, 'heads' (keys and values), 'latent' (latent and rotary key) or 'entry' (K = V).
---
--- A sharing layer has the form of its owner. Errors: i is no layer of L.
--- Example:
---   kv.layout 'gqa reuse':form(2)  --> heads
---@param i integer  from 1
---@return string form
function Layout:form(i) end

--- The name by which messages call layer i, counted from 1 and as layer_id from 0.
---
--- Errors: i is no layer of L.
--- Example:
---   kv.layout 'gqa reuse':called(2)  --> layer 2 (layer_id 1), reuse
---@param i integer  from 1
---@return string text
function Layout:called(i) end

--- Groups layers that are alike in themselves, in their owner and in their selector: what is counted for one holds
--- for all, so that a million layers cost what their classes cost.
---
--- Example:
---   #kv.preset 'v4.1-flash':classes()  --> 7
---   kv.preset 'mha':classes()[1].count  --> 60
---@return table classes  a list of { first = index, count = layers }
---@return table class_of  for each layer its entry of `classes`
function Layout:classes() end

--- Says which tokens are out of reach for a while, those of an open block that the window does not show.
---
--- A list of texts, one for each class of layers with ratio - 1 > window; empty when all is well. `strict` in
--- kv.layout and --strict raise the first one.
--- Errors: as Layout:window. Source: visibility of entries, DeepSeek-V4 report 2.3.
--- Example:
---   #kv.layout 'hca/256':warnings { sliding_window = 128 }  --> 1
---   #kv.preset 'v4-flash':warnings()  --> 0
---@param widths? table  as for Layout:window
---@return string[] texts
function Layout:warnings(widths) end
