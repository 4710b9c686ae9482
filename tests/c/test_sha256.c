/* test_sha256.c - the examples of FIPS 180-4 (NIST's SHA-2 test vectors), every way of cutting the
 * data, and lengths around the padding against digests by coreutils' sha256sum. */
#include <string.h>

#include "check.h"
#include "kvlab/sha256.h"

static const struct row {
    const char *text;
    int repeat;
    const char *digest;
} rows[] = {
    {"", 1, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
    {"abc", 1, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
    {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 1,
     "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
    {"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnop"
     "qrsmnopqrstnopqrstu",
     1, "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"},
    {"a", 1000000, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"},
    {"a", 55, "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318"},
    {"a", 56, "b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a"},
    {"a", 63, "7d3e74a05d7db15bce4ad9ec0658ea98e3f06eeecf16b4c6fff2da457ddc2f34"},
    {"a", 64, "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb"},
    {"a", 65, "635361c48bb9eab14198e76ea8ab7f1a41685d6ad62aa9146d301d4f17eb0ae0"},
    {"a", 119, "31eba51c313a5c08226adf18d4a359cfdfd8d2e816b13f4af952f7ea6584dcfb"},
    {"a", 120, "2f3d335432c70b580af0e8e1b3674a7c020d683aa5f73aaaedfdc55af904c21c"},
    {"a", 128, "6836cf13bac400e9105071cd6af47084dfacad4e5e302c94bfed24e013afb73e"},
};

static void digest(char hex[65], const char *data, size_t bytes, size_t piece) {
    kvl_sha256 s;
    kvl_sha256_init(&s);
    for (size_t at = 0; at < bytes; at += piece)
        kvl_sha256_add(&s, data + at, bytes - at < piece ? bytes - at : piece);
    kvl_sha256_hex(&s, hex);
}

int main(void) {
    static char data[1000000];
    char hex[65];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        size_t length = strlen(rows[i].text), bytes = 0;
        for (int r = 0; r < rows[i].repeat; r++, bytes += length)
            memcpy(data + bytes, rows[i].text, length);
        for (size_t piece = 1; piece <= 129; piece++) {
            if (bytes > 1000 && piece % 64 != 0) continue;
            digest(hex, data, bytes, piece);
            CHECK(strcmp(hex, rows[i].digest) == 0, "row %d in pieces of %d: %s", (int)i,
                  (int)piece, hex);
        }
    }
    return check_done();
}
