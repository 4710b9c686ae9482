/* test_pool.c - thousands of random operations against a model: tables as plain arrays of rows, a
 * ring as an array that says which entry each slot holds. Bytes and values of the model come from
 * the records' plain twins, references from counting the block tables. */
#include "kvlab/pool.h"

#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "rand.h"

enum { CHANNELS = 32, MAX_BYTES = 4 * CHANNELS, MAX_ENTRIES = 160, TABLES = 6 };

/* --- records ---------------------------------------------------------------------------------- */

typedef struct record_row {
    const char *name;
    kvl_number number;
    int64_t group; /* 0: a plain cast */
    kvl_place place;
    int64_t pad, entries, align, bytes; /* bytes: of an entry */
} record_row;

static const record_row records[] = {
    {"f32", KVL_F32, 0, KVL_PLACE_SPLIT, 0, 4, 1, 128},
    {"bf16", KVL_BF16, 0, KVL_PLACE_SPLIT, 0, 3, 100, 64},
    {"e4m3 split", KVL_E4M3, 16, KVL_PLACE_SPLIT, 2, 8, 96, 36},
    {"e2m1 before", KVL_E2M1, 8, KVL_PLACE_BEFORE, 0, 1, 32, 20},
};
enum { RECORDS = sizeof records / sizeof records[0] };

static kvl_record *make_record(const record_row *row) {
    kvl_field f = {.channels = CHANNELS, .number = row->number, .place = row->place};
    if (row->group) {
        f.scaled = true;
        f.scale = (kvl_scale){.number = KVL_UE8M0,
                              .rule = KVL_RULE_POW2_UP,
                              .group = row->group,
                              .floor_amax = 1e-4f};
        if (row->place == KVL_PLACE_SPLIT) f.scale_pad = row->pad;
    }
    kvl_record *rec = NULL;
    kvl_error err = {0};
    CHECK(kvl_record_compile(&rec, &f, 1, row->entries, row->align, &err) == KVL_OK, "%s: %s",
          row->name, err.msg);
    if (!rec) exit(1);
    const kvl_record_info *info = kvl_record_about(rec);
    CHECK(info->data_bytes + info->scale_bytes == row->bytes, "%s: %lld + %lld bytes", row->name,
          (long long)info->data_bytes, (long long)info->scale_bytes);
    return rec;
}

/* --- the model -------------------------------------------------------------------------------- */

typedef struct model {
    kvl_table *table; /* NULL: there is none */
    int64_t n, ring, window;
    int64_t holds[MAX_ENTRIES]; /* rings: the entry in each slot, -1 for none */
    uint8_t bytes[MAX_ENTRIES][MAX_BYTES];
    float values[MAX_ENTRIES][CHANNELS];
} model;

/* Entries repeat their place in these arrays modulo MAX_ENTRIES, far beyond any ring here. */
static int64_t at(int64_t entry) {
    return entry % MAX_ENTRIES;
}

static bool held(const model *m, int64_t entry) {
    if (entry < 0 || entry >= m->n) return false;
    return !m->ring || m->holds[entry % m->ring] == entry;
}

static void model_append(model *m, const kvl_record *rec, const float *rows, int64_t count) {
    const kvl_record_info *info = kvl_record_about(rec);
    for (int64_t i = 0; i < count; i++) {
        double exact[CHANNELS];
        int64_t e = m->n++;
        uint8_t *bytes = m->bytes[at(e)];
        kvl_record_encode_ref(rec, bytes, bytes + info->data_bytes, rows + i * CHANNELS);
        kvl_record_decode_ref(rec, exact, bytes, bytes + info->data_bytes);
        for (int64_t c = 0; c < CHANNELS; c++)
            m->values[at(e)][c] = (float)exact[c];
        if (m->ring) m->holds[e % m->ring] = e;
    }
}

/* All the entries of the window before the new end must be there. */
static bool model_may_cut(const model *m, int64_t n) {
    if (n < 0 || n > m->n) return false;
    for (int64_t e = n - m->window; m->ring && e < n; e++)
        if (e >= 0 && !held(m, e)) return false;
    return true;
}

static void model_cut(model *m, int64_t n) {
    m->n = n;
    for (int64_t s = 0; s < m->ring; s++)
        if (m->holds[s] >= n) m->holds[s] = -1;
}

/* --- comparing -------------------------------------------------------------------------------- */

static int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

static void compare_table(const model *m, const kvl_record *rec) {
    const kvl_record_info *info = kvl_record_about(rec);
    int64_t bytes = info->data_bytes + info->scale_bytes, n_held = 0, first = m->n;
    uint8_t stored[MAX_BYTES];
    float x[CHANNELS];
    kvl_error err = {0};
    CHECK(kvl_table_count(m->table) == m->n, "%lld entries, expected %lld",
          (long long)kvl_table_count(m->table), (long long)m->n);
    for (int64_t e = m->n; e >= 0 && e >= m->n - MAX_ENTRIES; e--) {
        if (!held(m, e)) {
            CHECK(kvl_table_row(m->table, e) == -1, "entry %lld is held", (long long)e);
            continue;
        }
        n_held++;
        first = e;
        CHECK(kvl_table_bytes(m->table, stored, e, &err) == KVL_OK, "%s", err.msg);
        CHECK(!memcmp(stored, m->bytes[at(e)], (size_t)bytes), "bytes of entry %lld", (long long)e);
        CHECK(kvl_table_peek(m->table, x, CHANNELS, e, 1, &err) == KVL_OK, "%s", err.msg);
        CHECK(!memcmp(x, m->values[at(e)], sizeof x), "values of entry %lld", (long long)e);
    }
    CHECK(kvl_table_first(m->table) <= first, "first held %lld, expected %lld",
          (long long)kvl_table_first(m->table), (long long)first);

    kvl_table_stats s = kvl_table_about(m->table);
    int64_t n_pages, window = m->ring && m->window < n_held ? m->window : n_held;
    kvl_table_pages(m->table, &n_pages);
    CHECK(s.entries == n_held && s.stored == window * bytes &&
              s.rollback == (n_held - window) * bytes,
          "entries %lld stored %lld rollback %lld", (long long)s.entries, (long long)s.stored,
          (long long)s.rollback);
    CHECK(s.allocated == n_pages * info->page_bytes &&
              s.allocated == s.stored + s.rollback + s.unused + s.alignment &&
              s.alignment == n_pages * (info->page_bytes - info->page_entries * bytes),
          "allocated %lld alignment %lld", (long long)s.allocated, (long long)s.alignment);
    CHECK(n_pages >= ceil_div(m->ring && m->n > m->ring ? m->ring : m->n, info->page_entries) ||
              m->ring,
          "%lld pages for %lld entries", (long long)n_pages, (long long)m->n);
}

static void compare_pool(const kvl_pool *pool, const model *models) {
    kvl_pool_stats s = kvl_pool_about(pool);
    int64_t used = 0, shared = 0;
    for (int64_t page = 0; page < s.made; page++) {
        int64_t holders = 0;
        for (int i = 0; i < TABLES; i++) {
            if (!models[i].table) continue;
            int64_t n;
            const int32_t *pages = kvl_table_pages(models[i].table, &n);
            for (int64_t k = 0; k < n; k++)
                holders += pages[k] == page;
        }
        CHECK(kvl_pool_references(pool, page) == holders, "page %lld: %lld, expected %lld",
              (long long)page, (long long)kvl_pool_references(pool, page), (long long)holders);
        used += holders > 0;
        shared += holders > 1;
    }
    CHECK(s.used == used && s.free == s.made - used && s.shared == shared,
          "used %lld of %lld, expected %lld", (long long)s.used, (long long)s.made,
          (long long)used);
    CHECK(s.allocated_bytes == used * s.page_bytes, "allocated %lld", (long long)s.allocated_bytes);
    CHECK(s.max_pages == 0 || s.made <= s.max_pages, "%lld pages made", (long long)s.made);
}

/* A random list or range through the reader: values, errors and counters. */
static void compare_read(const model *m, const kvl_record *rec) {
    enum { MOST = 40 };
    const kvl_record_info *info = kvl_record_about(rec);
    kvl_counters counters = {{0}, {0}};
    const kvl_table *tables[2] = {NULL, m->table};
    kvl_reader reader = {tables, 2, (kvl_read_kind)rand_int(KVL_READ_KINDS), &counters};
    int64_t rows = m->ring ? m->ring : m->n, count = rand_int(MOST), good = 0;
    bool range = rand_int(2), hostile = rand_int(8) == 0;
    int64_t first = rand_int(rows + 1) - hostile;
    int32_t list[MOST];
    float x[MOST][CHANNELS];
    if (range && !hostile && count > rows - first) count = rows - first;
    for (int64_t i = 0; i < count; i++) {
        bool next = i > 0 && rand_int(2); /* runs, so that neighbours are decoded together */
        list[i] = (int32_t)(range ? first + i : next ? list[i - 1] + 1 : rand_int(rows + 1));
        if (!hostile && rows > 0 && list[i] >= rows) list[i] = (int32_t)(rows - 1);
    }
    memset(x, 0, sizeof x);
    kvl_error err = {0};
    kvl_status status = kvl_table_read(&reader, 1, range ? NULL : list, first, count, x[0], &err);
    for (; good < count; good++) {
        int64_t entry = m->ring && list[good] >= 0 && list[good] < m->ring ? m->holds[list[good]]
                        : m->ring                                          ? -1
                                                                           : list[good];
        if (!held(m, entry)) break;
        CHECK(!memcmp(x[good], m->values[at(entry)], sizeof x[good]), "row %d of a read",
              list[good]);
    }
    CHECK((status == KVL_OK) == (good == count), "status %d after %lld of %lld rows: %s", status,
          (long long)good, (long long)count, err.msg);
    for (int kind = 0; kind < KVL_READ_KINDS; kind++) {
        int64_t expected = kind == (int)reader.kind ? good : 0;
        CHECK(counters.rows[kind] == expected &&
                  counters.bytes[kind] == expected * (info->data_bytes + info->scale_bytes),
              "kind %d: %lld rows, %lld bytes, expected %lld rows", kind,
              (long long)counters.rows[kind], (long long)counters.bytes[kind], (long long)expected);
    }
}

/* --- random operations ------------------------------------------------------------------------ */

static int pick(const model *models, bool live) {
    int found = -1, seen = 0;
    for (int i = 0; i < TABLES; i++)
        if ((models[i].table != NULL) == live && rand_int(++seen) == 0) found = i;
    return found;
}

static void step(kvl_pool *pool, model *models, const kvl_record *rec, int64_t max_pages) {
    kvl_error err = {0};
    int old = pick(models, true), new = pick(models, false);
    int64_t op = rand_int(16);
    if (old < 0 || (op == 0 && new >= 0)) {
        model *m = &models[new];
        memset(m, 0, sizeof *m);
        if (rand_int(2)) m->ring = 1 + rand_int(20);
        m->window = m->ring ? 1 + rand_int(m->ring) : 0;
        memset(m->holds, 0xff, sizeof m->holds);
        CHECK(kvl_table_new(&m->table, pool, m->ring, m->window, &err) == KVL_OK, "%s", err.msg);
        return;
    }
    model *m = &models[old];
    kvl_status status = KVL_OK;
    if (op <= 6) {
        int64_t count = rand_int(rand_int(4) ? 4 : 70);
        if (!m->ring && m->n + count > MAX_ENTRIES) count = MAX_ENTRIES - m->n;
        float *rows = rand_floats(count * CHANNELS);
        bool ahead = rand_int(3) == 0;
        if (ahead) status = kvl_table_reserve(m->table, count + rand_int(3), &err);
        if (!status && ahead) kvl_alloc_fail_after(0); /* what was reserved needs no memory */
        if (!status) status = kvl_table_append(m->table, rows, CHANNELS, count, &err);
        kvl_alloc_fail_after(-1);
        CHECK(status == KVL_OK || (status == KVL_EFULL && max_pages), "append: %s", err.msg);
        if (!status) model_append(m, rec, rows, count);
        free(rows);
    } else if (op <= 8 && new >= 0) {
        status = kvl_table_fork(&models[new].table, m->table, &err);
        CHECK(status == KVL_OK, "fork: %s", err.msg);
        kvl_table *fork = models[new].table;
        models[new] = *m;
        models[new].table = fork;
    } else if (op <= 9 && new >= 0) {
        int64_t n = m->n - rand_int(rand_int(2) ? 4 : m->n + 2);
        kvl_table *part = NULL;
        status = kvl_table_share(&part, m->table, n, &err);
        CHECK(status == KVL_OK ? model_may_cut(m, n)
                               : !part && (status == KVL_EFULL || !model_may_cut(m, n)),
              "share of %lld of %lld: %s", (long long)n, (long long)m->n, err.msg);
        models[new] = *m;
        models[new].table = part;
        if (!status) model_cut(&models[new], n);
    } else if (op <= 11) {
        int64_t n = m->n - rand_int(rand_int(2) ? 4 : m->n + 2);
        status = kvl_table_truncate(m->table, n, &err);
        CHECK((status == KVL_OK) == model_may_cut(m, n), "truncate %lld to %lld: %s",
              (long long)m->n, (long long)n, err.msg);
        if (!status) model_cut(m, n);
    } else if (op == 12) {
        kvl_table_free(m->table);
        m->table = NULL;
    } else {
        compare_read(m, rec);
    }
}

static void test_random(int steps) {
    for (int r = 0; r < RECORDS; r++)
        for (int limited = 0; limited < 2; limited++) {
            static model models[TABLES];
            kvl_record *rec = make_record(&records[r]);
            int64_t max_pages = limited ? 60 / records[r].entries : 0;
            kvl_pool *pool;
            kvl_error err = {0};
            CHECK(kvl_pool_new(&pool, rec, max_pages, &err) == KVL_OK, "%s", err.msg);
            memset(models, 0, sizeof models);
            for (int i = 0; i < steps; i++) {
                step(pool, models, rec, max_pages);
                for (int k = 0; k < TABLES; k++)
                    if (models[k].table) compare_table(&models[k], rec);
                compare_pool(pool, models);
                if (checks_failed) {
                    fprintf(stderr, "record %s, step %d\n", records[r].name, i);
                    return;
                }
            }
            kvl_pool_free(pool); /* the tables keep it alive */
            for (int k = 0; k < TABLES; k++)
                kvl_table_free(models[k].table);
            kvl_record_free(rec);
        }
}

/* --- single cases ----------------------------------------------------------------------------- */

/* A small pool of bf16 records, 3 entries a page, 192 of 200 bytes. */
static kvl_pool *small_pool(int64_t max_pages) {
    kvl_record *rec = make_record(&records[1]);
    kvl_pool *pool = NULL;
    kvl_error err = {0};
    CHECK(kvl_pool_new(&pool, rec, max_pages, &err) == KVL_OK, "%s", err.msg);
    kvl_record_free(rec); /* the pool has its own */
    return pool;
}

static void test_sharing(void) {
    kvl_pool *pool = small_pool(0);
    kvl_table *a, *b, *c;
    kvl_error err = {0};
    float *rows = rand_floats(8 * CHANNELS);
    kvl_table_new(&a, pool, 0, 0, &err);
    kvl_table_append(a, rows, CHANNELS, 8, &err); /* pages of 3, 3 and 2 */
    kvl_table_fork(&b, a, &err);
    CHECK(kvl_pool_about(pool).used == 3 && kvl_pool_about(pool).shared == 3, "a fork is free");
    kvl_table_append(b, rows, CHANNELS, 1, &err);
    CHECK(kvl_pool_about(pool).used == 4 && kvl_pool_about(pool).shared == 2,
          "the partial page was copied: %lld used", (long long)kvl_pool_about(pool).used);
    kvl_table_append(a, rows, CHANNELS, 1, &err);
    CHECK(kvl_pool_about(pool).used == 4, "the last holder writes in place");
    kvl_table_share(&c, a, 4, &err);
    CHECK(kvl_pool_about(pool).used == 5 && kvl_table_count(c) == 4, "one shared, one copied");
    kvl_table_free(a);
    kvl_table_free(b);
    CHECK(kvl_pool_about(pool).used == 2 && kvl_pool_about(pool).shared == 0, "c's are left");
    kvl_table_free(c);
    CHECK(kvl_pool_about(pool).used == 0, "nothing is held");
    kvl_pool_free(pool);
    free(rows);
}

static void test_full(void) {
    kvl_pool *pool = small_pool(3);
    kvl_table *a, *b = NULL;
    kvl_error err = {0};
    float *rows = rand_floats(12 * CHANNELS);
    kvl_table_new(&a, pool, 0, 0, &err);
    CHECK(kvl_table_append(a, rows, CHANNELS, 10, &err) == KVL_EFULL, "10 entries need 4 pages");
    CHECK(strstr(err.msg, "4 more are needed, 3 of 3 are free") != NULL, "%s", err.msg);
    CHECK(kvl_table_count(a) == 0 && kvl_pool_about(pool).used == 0, "as it was");
    CHECK(kvl_table_append(a, rows, CHANNELS, 8, &err) == KVL_OK, "%s", err.msg);
    CHECK(kvl_table_share(&b, a, 7, &err) == KVL_EFULL && !b, "no page for the copy");
    kvl_table_fork(&b, a, &err);
    CHECK(kvl_table_append(b, rows, CHANNELS, 1, &err) == KVL_EFULL, "no page for the copy");
    CHECK(kvl_table_reserve(b, 1, &err) == KVL_EFULL, "no page for the copy");
    CHECK(kvl_table_count(b) == 8 && kvl_pool_about(pool).shared == 3, "as it was");
    kvl_table_truncate(b, 6, &err);
    CHECK(kvl_table_append(a, rows, CHANNELS, 1, &err) == KVL_OK, "%s", err.msg);
    CHECK(kvl_table_reserve(a, (int64_t)1 << 40, &err) == KVL_EINVAL, "int32 rows");
    CHECK(kvl_table_reserve(a, -1, &err) == KVL_EINVAL, "negative");
    kvl_table_free(a);
    kvl_table_free(b);
    kvl_pool_free(pool);

    /* Without a limit memory is the limit, and refusing is immediate. */
    pool = small_pool(0);
    kvl_table_new(&a, pool, 0, 0, &err);
    kvl_table_append(a, rows, CHANNELS, 2, &err);
    kvl_alloc_fail_after(0);
    CHECK(kvl_table_reserve(a, INT32_MAX - 2, &err) == KVL_ENOMEM, "%s", err.msg);
    kvl_alloc_fail_after(-1);
    CHECK(kvl_table_count(a) == 2 && kvl_pool_about(pool).used == 1, "as it was");
    kvl_table_free(a);
    kvl_pool_free(pool);
    free(rows);
}

static void test_ring(void) {
    kvl_pool *pool = small_pool(0);
    kvl_table *t = NULL;
    kvl_error err = {0};
    float *rows = rand_floats(40 * CHANNELS);
    CHECK(kvl_table_new(&t, pool, 4, 5, &err) == KVL_EINVAL && !t, "window above the ring");
    CHECK(kvl_table_new(&t, pool, 0, 1, &err) == KVL_EINVAL && !t, "window in a list");
    CHECK(kvl_table_new(&t, pool, -1, 0, &err) == KVL_EINVAL && !t, "negative ring");
    kvl_table_new(&t, pool, 10, 8, &err); /* rolls back by 2 */
    kvl_table_append(t, rows, CHANNELS, 5, &err);
    CHECK(kvl_table_truncate(t, 0, &err) == KVL_OK, "nothing was overwritten: %s", err.msg);
    CHECK(kvl_pool_about(pool).used == 0, "and its pages go");
    kvl_table_append(t, rows, CHANNELS, 40, &err);
    CHECK(kvl_table_first(t) == 30, "first %lld", (long long)kvl_table_first(t));
    kvl_table_stats s = kvl_table_about(t);
    CHECK(s.stored == 8 * 64 && s.rollback == 2 * 64 && s.allocated == 4 * 200 &&
              s.unused == 2 * 64 && s.alignment == 4 * 8,
          "stored %lld rollback %lld", (long long)s.stored, (long long)s.rollback);
    CHECK(kvl_table_truncate(t, 37, &err) == KVL_EINVAL, "3 are too many");
    CHECK(kvl_table_truncate(t, 38, &err) == KVL_OK, "%s", err.msg);
    CHECK(kvl_table_truncate(t, 37, &err) == KVL_EINVAL, "2 and 1 are too many");
    kvl_table_append(t, rows, CHANNELS, 2, &err);
    CHECK(kvl_table_truncate(t, 38, &err) == KVL_OK, "again: %s", err.msg);
    kvl_table_free(t);
    kvl_pool_free(pool);
    free(rows);
}

/* Every stored byte changes some value or some byte of its own entry, and nothing of any other. */
static void test_poke(void) {
    for (int r = 0; r < RECORDS; r++) {
        kvl_record *rec = make_record(&records[r]);
        kvl_pool *pool;
        kvl_table *t;
        kvl_error err = {0};
        float *rows = rand_floats(5 * CHANNELS), before[5 * CHANNELS], after[5 * CHANNELS];
        kvl_pool_new(&pool, rec, 0, &err);
        kvl_table_new(&t, pool, 0, 0, &err);
        kvl_table_append(t, rows, CHANNELS, 5, &err);
        kvl_table_peek(t, before, CHANNELS, 0, 5, &err);
        for (int64_t e = 0; e < 5; e++)
            for (int64_t byte = 0; byte < records[r].bytes; byte++) {
                CHECK(kvl_table_poke(t, e, byte, 0x11, &err) == KVL_OK, "%s", err.msg);
                kvl_table_peek(t, after, CHANNELS, 0, 5, &err);
                for (int64_t k = 0; k < 5; k++) {
                    bool same = !memcmp(before + k * CHANNELS, after + k * CHANNELS,
                                        CHANNELS * sizeof(float));
                    bool padding = byte >= records[r].bytes - records[r].pad;
                    CHECK(same == (k != e || padding), "%s: byte %lld of %lld, entry %lld",
                          records[r].name, (long long)byte, (long long)e, (long long)k);
                }
                CHECK(kvl_table_poke(t, e, byte, 0x11, &err) == KVL_OK, "%s", err.msg);
            }
        CHECK(kvl_table_poke(t, 5, 0, 1, &err) == KVL_EINVAL, "no entry");
        CHECK(kvl_table_poke(t, -1, 0, 1, &err) == KVL_EINVAL, "no entry");
        CHECK(kvl_table_poke(t, 0, records[r].bytes, 1, &err) == KVL_EINVAL, "no byte");
        CHECK(kvl_table_poke(t, 0, -1, 1, &err) == KVL_EINVAL, "no byte");
        kvl_table_free(t);
        kvl_pool_free(pool);
        kvl_record_free(rec);
        free(rows);
    }
}

/* Refuse the k-th allocation of a fixed scenario, for every k: errors, never damage or a leak. */
static bool scenario(const kvl_record *rec, const float *rows) {
    kvl_pool *pool = NULL;
    kvl_table *t[4] = {NULL};
    kvl_status s = kvl_pool_new(&pool, rec, 0, NULL);
    if (!s) s = kvl_table_new(&t[0], pool, 0, 0, NULL);
    if (!s) s = kvl_table_new(&t[1], pool, 9, 7, NULL);
    for (int i = 0; i < 12 && !s; i++) {
        int64_t list = kvl_table_count(t[0]), ring = kvl_table_count(t[1]);
        s = kvl_table_append(t[0], rows, CHANNELS, 5, NULL);
        if (s) CHECK(kvl_table_count(t[0]) == list, "a failed append changed the list");
        if (!s) s = kvl_table_append(t[1], rows, CHANNELS, 4, NULL);
        if (s) CHECK(kvl_table_count(t[1]) <= ring + 4, "a failed append changed the ring");
        if (!s && i == 5) s = kvl_table_fork(&t[2], t[1], NULL);
        if (!s && i == 8) s = kvl_table_share(&t[3], t[0], 17, NULL);
    }
    for (int i = 0; i < 4; i++)
        kvl_table_free(t[i]);
    kvl_pool_free(pool);
    return !s;
}

static void test_refused_memory(void) {
    kvl_record *rec = make_record(&records[2]);
    float *rows = rand_floats(5 * CHANNELS);
    size_t live = kvl_live_bytes();
    int64_t k = 0;
    bool done = false;
    for (; k < 1000 && !done; k++) {
        kvl_alloc_fail_after(k);
        done = scenario(rec, rows);
        kvl_alloc_fail_after(-1);
        CHECK(kvl_live_bytes() == live, "%zu bytes leaked at allocation %lld",
              kvl_live_bytes() - live, (long long)k);
    }
    CHECK(done && k > 10, "the sweep ended after %lld allocations", (long long)k);
    free(rows);
    kvl_record_free(rec);
}

/* The parallel path and the serial one store the same bytes. */
static void test_many(void) {
    enum { MANY = 1000 };
    kvl_pool *pool = small_pool(0);
    kvl_table *a, *b;
    kvl_error err = {0};
    float *rows = rand_floats(MANY * CHANNELS);
    uint8_t x[64], y[64];
    kvl_table_new(&a, pool, 0, 0, &err);
    kvl_table_new(&b, pool, 0, 0, &err);
    CHECK(kvl_table_append(a, rows, CHANNELS, MANY, &err) == KVL_OK, "%s", err.msg);
    for (int64_t i = 0; i < MANY; i++)
        kvl_table_append(b, rows + i * CHANNELS, CHANNELS, 1, &err);
    for (int64_t i = 0; i < MANY; i++) {
        kvl_table_bytes(a, x, i, &err);
        kvl_table_bytes(b, y, i, &err);
        CHECK(!memcmp(x, y, sizeof x), "entry %lld", (long long)i);
    }
    kvl_cancel();
    CHECK(kvl_table_append(a, rows, CHANNELS, MANY, &err) == KVL_ECANCEL, "cancelled");
    kvl_cancel_clear();
    CHECK(kvl_table_count(a) == MANY, "nothing was appended");
    kvl_table_free(a);
    kvl_table_free(b);
    kvl_pool_free(pool);
    free(rows);
}

int main(void) {
    test_sharing();
    test_full();
    test_ring();
    test_poke();
    test_refused_memory();
    test_many();
    test_random(1500);
    CHECK(kvl_live_bytes() == 0, "%zu bytes are still held", kvl_live_bytes());
    return check_done();
}
