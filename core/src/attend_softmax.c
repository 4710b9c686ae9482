/* attend_softmax.c - loops over the logits of a tile, S [n, m]: row r of the tile, logit row j. All
 * logit rows go side by side, so that vectors are full however few rows there are. See attend.h.
 */
#include "attend.h"

#include "kvlab/vmath.h"
#include "vexp.h"

KVL_CLONES
void kvl_attend_hide(float *restrict s, const int32_t *restrict lo, const int32_t *restrict hi,
                     float value, int64_t n, int64_t m) {
    for (int32_t r = 0; r < n; r++)
        for (int64_t j = 0; j < m; j++)
            s[r * m + j] = r < lo[j] || r >= hi[j] ? value : s[r * m + j];
}

KVL_CLONES
void kvl_attend_raise_max(float *restrict max, const float *restrict s, int64_t n, int64_t m) {
    for (int64_t r = 0; r < n; r++)
        for (int64_t j = 0; j < m; j++)
            max[j] = s[r * m + j] > max[j] ? s[r * m + j] : max[j];
}

KVL_CLONES
void kvl_attend_weigh(float *restrict s, float *restrict sum, const float *restrict shift,
                      int64_t n, int64_t m) {
    for (int64_t r = 0; r < n; r++)
        for (int64_t j = 0; j < m; j++) {
            float e = kvl_exp_neg(s[r * m + j] - shift[j]);
            s[r * m + j] = e;
            sum[j] += e;
        }
}

KVL_CLONES
void kvl_attend_weigh_grad(float *restrict s, float *restrict d, const float *restrict lse,
                           const float *restrict delta, int64_t n, int64_t m) {
    for (int64_t r = 0; r < n; r++)
        for (int64_t j = 0; j < m; j++) {
            float p = kvl_exp_neg(s[r * m + j] - lse[j]);
            s[r * m + j] = p;
            d[r * m + j] = p * (d[r * m + j] - delta[j]);
        }
}
