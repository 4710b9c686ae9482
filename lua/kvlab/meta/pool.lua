---@meta
local kv, Pool, Table, Counters = {}, {}, {}, {}

---@within kv

--- A pool: pages for the entries of one record, made when they are needed.
---
--- Tables of the pool hold its pages; several may hold the same one. What a table does not need goes back to the
--- pool, what the pool has made it keeps until it and its tables are gone.
--- Errors: `max_pages` is not a positive integer.
--- Example:
---   kv.pool(kv.record_named('v4.1-main'):plan()):stats().page_bytes  --> 18432
---   kv.pool(kv.record_named('v4.1-main'):plan(), 4):table()  --> kvlab.Table: 0 entries in 0 pages
---@param plan Plan  of a record (Record:plan)
---@param max_pages? integer  missing: as many as memory allows
---@return Pool pool
function kv.pool(plan, max_pages) end

--- Counters of what readers of tables decoded; they start at 0.
--- Example:
---   kv.counters()  --> kvlab.Counters: bytes read: 0 selected, 0 window, 0 index
---@return Counters counters
function kv.counters() end

--- Pages of one record, shared by tables. docs/pools.md explains pages, rings and sharing.
---@within Pool

--- An empty table: a list that grows, or a ring that keeps the newest entries.
---
--- A ring of R slots with a window of W can be rolled back by R - W entries.
--- Errors: a size that is not positive, a window larger than the ring.
--- Example:
---   kv.pool(kv.record_named('v4-main'):plan()):table(130, 128):stats().window  --> 128
---@param ring? integer  slots; missing: a list
---@param window? integer  entries of the ring that count as stored, and that a rollback leaves; missing: all slots
---@return Table table
function Pool:table(ring, window) end

--- What the pool has: `max_pages` (nil without a limit); pages `made`, of which `used` and `free`, and `shared` by
--- more than one table; `page_bytes`, `page_entries`, `entry_bytes`; `allocated_bytes`, used pages x page bytes.
--- Example:
---   kv.pool(kv.record_named('index-fp4'):plan()):stats().entry_bytes  --> 68
---@return table stats
function Pool:stats() end

--- How many tables hold a page.
---
--- Errors: there is no such page.
--- Example:
---   pcall(function() return kv.pool(kv.record_named('v4-main'):plan()):references(1) end)  --> false
---@param page integer  a page number, as in Table:pages
---@return integer tables
function Pool:references(page) end

--- Gives the pool up; its tables stay usable, and the memory goes with the last of them.
--- Example:
---   kv.pool(kv.record_named('v4-main'):plan()):free()  --> nil
---@return nil
function Pool:free() end

--- The same as Pool:free, for `local pool <close>`.
--- Example:
---   kv.pool(kv.record_named('v4-main'):plan()):close()  --> nil
---@return nil
function Pool:close() end

--- The entries of one cache of one sequence, on pages of a pool. Entries count from 1, in rings by position.
---@within Table

--- Encodes rows as new entries and returns the table. Pages shared with other tables are copied first.
---
--- A ring overwrites its oldest entries; of more rows than it has slots it keeps the last.
--- Errors: rows of another shape or type; out of pages, which leaves everything as it was.
--- Example:
---   #kv.pool(kv.record_named('v4.1-main'):plan()):table():append(kv.zeros(3, 512))  --> 3
---@param rows Tensor  float32 {n, channels} or {1, n, channels}
---@return Table table  itself
function Table:append(rows) end

--- Takes all the pages that the next `more` entries need, so that appending them cannot fail before the next fork or
--- truncate. Returns the table.
---
--- Errors: out of pages, which leaves everything as it was.
--- Example:
---   #kv.pool(kv.record_named('v4.1-main'):plan()):table():reserve(65):pages()  --> 2
---@param more integer
---@return Table table  itself
function Table:reserve(more) end

--- A table with the same entries on the same pages: nothing is copied before one of them is written to.
--- Example:
---   #kv.pool(kv.record_named('v4-main'):plan()):table():append(kv.zeros(3, 512)):fork()  --> 3
---@return Table table
function Table:fork() end

--- A table with the first n entries: complete pages are shared, a partial one is copied.
---
--- Errors: n entries are not there, or a ring does not hold the window before them; out of pages.
--- Source: as vLLM and SGLang share prefixes, page by page.
--- Example:
---   #kv.pool(kv.record_named('v4-main'):plan()):table():append(kv.zeros(3, 512)):share(2)  --> 2
---@param n integer
---@return Table table
function Table:share(n) end

--- Rolls back to the first n entries, gives the pages behind them back and returns the table.
---
--- Errors: n entries are not there. A ring must still hold its whole window before the new end; n = 0 always goes.
--- Example:
---   #kv.pool(kv.record_named('v4-main'):plan()):table():append(kv.zeros(3, 512)):truncate(1)  --> 1
---@param n integer
---@return Table table  itself
function Table:truncate(n) end

--- The entries appended and not rolled back; also `#table`. A ring holds only the newest of them.
--- Example:
---   kv.pool(kv.record_named('v4-main'):plan()):table(2):append(kv.zeros(3, 512)):count()  --> 3
---@return integer entries
function Table:count() end

--- The oldest entry that is held: 1 unless a ring has overwritten it.
--- Example:
---   kv.pool(kv.record_named('v4-main'):plan()):table(2):append(kv.zeros(3, 512)):first()  --> 2
---@return integer entry
function Table:first() end

--- Decodes entries without counting: for looking at a cache, not for computing with it.
---
--- Errors: an entry that is not held.
--- Example:
---   kv.pool(kv.record_named('v4-main'):plan()):table():append(kv.zeros(3, 512)):rows(2, 3).shape[1]  --> 2
---@param first? integer  missing: the oldest held
---@param last? integer  included; missing: the newest
---@return Tensor rows  float32 {n, channels}
function Table:rows(first, last) end

--- Decodes entries and counts them: `read(ids, kind, counters)` or `read(first, last, kind, counters)`.
---
--- Every row counts, a row that is read twice counts twice. kind is 'selected', 'window' or 'index'.
--- Errors: an entry that is not held; an unknown kind.
--- Example:
---   kv.pool(kv.record_named('bf16'):plan { channels = 4 }):table():append(kv.zeros(2, 4)):read(1, 2, 'index', kv.counters()).ndim  --> 2
---@param ... any  ids, an int32 tensor {n} that counts from 0, or the first and last entry; then kind and counters
---@return Tensor rows  float32 {n, channels}
function Table:read(...) end

--- The stored bytes of one entry: its data row, then its scale row.
---
--- Errors: an entry that is not held.
--- Example:
---   #kv.pool(kv.record_named('v4-main'):plan()):table():append(kv.zeros(3, 512)):bytes(3)  --> 584
---@param entry integer
---@return string bytes
function Table:bytes(entry) end

--- Damages one stored byte, for tests and lessons: of every table that holds the page.
---
--- Errors: an entry that is not held, a byte that the record does not have.
--- Example:
---   kv.pool(kv.record_named('v4-main'):plan()):table():append(kv.zeros(1, 512)):poke(1, 584, 255)  --> nil
---@param entry integer
---@param byte integer  1 is the first of Table:bytes
---@param flip integer  the bits to flip, 0 to 255
---@return nil
function Table:poke(entry, byte, flip) end

--- The block table: the numbers of the pages that the entries lie in, in order.
--- Example:
---   kv.pool(kv.record_named('v4-main'):plan()):table():append(kv.zeros(70, 512)):pages()[2]  --> 2
---@return table pages  a list of integers
function Table:pages() end

--- What the table takes, in bytes: `allocated_bytes` (pages x page bytes; a shared page counts here for every table)
--- = `stored_bytes` + `rollback_bytes` + `unused_bytes` + `alignment_bytes`.
---
--- Stored are the entries, of a ring those of its window; rollback are the entries a ring holds beyond it; unused are
--- slots without an entry; alignment are the zeroes at the ends of pages. Padding inside a record belongs to its
--- entries. Further `entries` (held), `pages` and, of rings, `ring` and `window`.
--- Example:
---   kv.pool(kv.record_named('v4-main'):plan()):table():append(kv.zeros(70, 512)):stats().alignment_bytes  --> 128
---@return table stats
function Table:stats() end

--- Gives its pages back. Any later use of the table is an error.
--- Example:
---   kv.pool(kv.record_named('v4-main'):plan()):table():free()  --> nil
---@return nil
function Table:free() end

--- The same as Table:free, for `local table <close>`.
--- Example:
---   kv.pool(kv.record_named('v4-main'):plan()):table():close()  --> nil
---@return nil
function Table:close() end

--- Rows and bytes that readers of tables decoded, by kind.
---@within Counters

--- The counts: `selected_rows`, `selected_bytes` (entries of global caches), `window_rows`, `window_bytes` (entries of
--- local windows), `index_rows`, `index_bytes` (index keys that were scored).
--- Example:
---   kv.counters():get().index_bytes  --> 0
---@return table counts
function Counters:get() end

--- Sets all counts to 0.
--- Example:
---   counters = kv.counters()
---   counters:reset()
---   counters:get().index_rows  --> 0
---@return nil
function Counters:reset() end
