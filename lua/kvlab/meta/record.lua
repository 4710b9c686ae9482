---@meta
local kv = {}

---@within kv
--- Makes a record - how one cache entry lies in bytes - and registers it under its name. All sizes are derived.
---
--- Keys: name (a word), fields (a list), page = {entries = 64, align = 1}, natural (widths for plan() without
--- arguments), about, source. A field: channels (a count, 'rest', 'rotary', 'key', 'value'), number, scale =
--- {number, group, rule, floor = {amax =} or {scale =}, ties, quotient}, block, place ('split', 'before',
--- 'after'), ties, order ('adjacent', 'halves'), nibbles ('low', 'high' first), pad, scale_pad (bytes). docs/records.md
--- explains each. A name of your own may be given again and then means the new record.
---
--- Errors: unknown keys and words (with a suggestion), sizes that do not divide (naming record and field), a
--- built-in name. Source: docs/records.md.
--- Example:
---   kv.record { name = 'half', fields = { { channels = 40, number = 'fp16' } } }:plan().bytes  --> 80
---@param spec table
---@return Record record
function kv.record(spec) end

--- The names of all records of this process, sorted.
---
--- Example:
---   kv.records()[1]  --> bf16
---@return string[] names
function kv.records() end

--- The record of that name.
---
--- Errors: an unknown name, with the nearest one.
--- Example:
---   kv.record_named('v4-main'):plan().bytes  --> 584
---@param name string
---@return Record record
function kv.record_named(name) end

local Record = {}

--- How one cache entry lies in bytes; an immutable value.
---@within Record
--- Compiles the record for given widths. Plans are cached per record and widths and freed by the collector.
---
--- Widths: channels (floats of the entry), rotary (how many of them are rotated), key, value; those that the
--- record names are needed. Without an argument the record's natural widths are used. A word that stands for 0 channels
--- drops its field.
---
--- Errors: a width that is missing, not whole, or does not fit the record.
--- Example:
---   kv.record_named('v4-main'):plan { channels = 160, rotary = 32 }.bytes  --> 195
---@param dims? table  channels, rotary, key, value
---@return Plan plan
function Record:plan(dims) end

--- A changed copy. Keys: name (registers the copy), about, source, natural, fields, page (entries or align), and
--- for all scaled fields at once: floor, ties.
---
--- Errors: unknown keys and whatever kv.record refuses.
--- Example:
---   kv.record_named('v4-main'):with { page = { entries = 2 } }:plan().page_bytes  --> 1728
---@param changes table
---@return Record copy
function Record:with(changes) end

--- The bytes of an entry as a line, the way papers write it.
---
--- Errors: as Record:plan.
--- Example:
---   kv.record_named('index-fp8'):formula()  --> 128 x 1 B (E4M3) + scale 1 x 4 B (FP32, one per 128) = 128 + 4 = 132 B
---@param dims? table  as for Record:plan
---@return string line
function Record:formula(dims) end

--- The terms of the formula: a list of {label = 'values', 'scale', 'minimum' or 'padding', count, bytes_each,
--- number, per (channels that share a scale), bytes}.
---
--- Errors: as Record:plan.
--- Example:
---   kv.record_named('v4-main'):terms()[2].count  --> 7
---@param dims? table  as for Record:plan
---@return table[] terms
function Record:terms(dims) end

local Plan = {}

--- A record at given widths: what lies where in an entry and in a page. Record:plan makes it.
---@within Plan
--- One entry as bytes. A plan has the fields name, channels, bytes (of an entry) = data_bytes + scale_bytes,
--- page_entries, page_bytes (with padding), page_padding.
---
--- Errors: a row that has not `channels` numbers.
--- Example:
---   kv.record_named('bf16'):plan { channels = 2 }:encode { 1, -2 }:byte(2)  --> 63
---@param row number[]  channels floats
---@return string data  data_bytes bytes
---@return string scale  scale_bytes bytes
function Plan:encode(row) end

--- The values of one entry. `scale` may be left out when scale_bytes is 0.
---
--- Errors: strings of another length.
--- Example:
---   kv.record_named('bf16'):plan { channels = 2 }:decode('\x80\x3f\x00\xc0')[2]  --> -2.0
---@param data string
---@param scale? string
---@return number[] row
function Plan:decode(data, scale) end

--- A page with the given rows in their slots (from 1), everything else zero.
---
--- Errors: a slot that the page has not, a row of another length, a page of more than 1 GiB.
--- Example:
---   #kv.record_named('v4-main'):plan():encode_page {}  --> 37440
---@param rows table<integer, number[]>
---@return string page  page_bytes bytes
function Plan:encode_page(rows) end

--- The values of the entry in a slot (from 1) of a page.
---
--- Errors: a page of another length, a slot that the page has not.
--- Example:
---   kv.record_named('bf16'):plan { channels = 1 }:decode_page(('\x80\x3f'):rep(64), 64)[1]  --> 1.0
---@param page string
---@param slot integer
---@return number[] row
function Plan:decode_page(page, slot) end

--- Encodes and decodes rows: what a cache of such entries gives back. Prefill computes with it.
---
--- Errors: the last size of rows is not the number of channels.
--- Example:
---   kv.record_named('v4-main'):plan():roundtrip(kv.zeros(2, 3, 512)).ndim  --> 3
---@param rows Tensor  float32 {..., channels}
---@return Tensor rows  of the same shape
function Plan:roundtrip(rows) end
