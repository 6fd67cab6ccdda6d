/* Products with vectors of zeros and ones: where few are ones, rows of the weights are added up sample by
 * sample; no other row is read. */
enum { WORD = 64 };
#ifdef ELMAN_F64
#define SIGNS(mask) __builtin_ia32_movmskpd256((double __attribute__((vector_size(32))))(mask))
#else
#define SIGNS(mask) __builtin_ia32_movmskps256((float __attribute__((vector_size(32))))(mask))
#endif
/* a bit per element: which are not 0; `odd` tells of those that are neither 0 nor 1, NaN among them */
INLINE uint64_t not_zero(const T *p, long n, int *odd) {
    uint64_t word = 0;
    long i = 0;
#if defined(__AVX2__)
    enum { HALF = 32 / sizeof(T) };
    typedef T H __attribute__((vector_size(32), aligned(sizeof(T)), may_alias));
    typedef Int HM __attribute__((vector_size(32)));
    HM other = {0};
    for (; i + HALF <= n; i += HALF) {
        H x = *(const H *)(p + i);
        HM ones = (HM)(x != (H){0});
        other |= ones & (HM)(x != (H){0} + 1);
        word |= (uint64_t)(unsigned)SIGNS(ones) << i;
    }
    *odd |= SIGNS(other);
#endif
    for (; i < n; i++) {
        word |= (uint64_t)(p[i] != 0) << i;
        *odd |= (p[i] != 0) & (p[i] != 1);
    }
    return word;
}
/* where the ones of m rows of K numbers are, row after row: `at` has their k, ends[r] how many there are up to row r.
 * False, and nothing is told, if there are more than `most` or other numbers than 0 and 1 */
SHARED int ones_of(long m, const T *A, long lda, long K, long most, unsigned short *at, int *ends) {
    long step = (K + WORD - 1) / WORD, count = 0;
    uint64_t words[m * step];
    int odd = 0;
    for (long r = 0; r < m; r++, A += lda) {
        for (long k = 0; k < K; k += WORD) {
            uint64_t word = not_zero(A + k, K - k < WORD ? K - k : WORD, &odd);
            words[r * step + k / WORD] = word;
            count += __builtin_popcountll(word);
        }
        if (count > most || odd) return 0;
    }
    count = 0;
    for (long r = 0; r < m; r++) {
        for (long w = 0; w < step; w++)
            for (uint64_t word = words[r * step + w]; word; word &= word - 1)
                at[count++] = (unsigned short)(w * WORD + __builtin_ctzll(word));
        ends[r] = (int)count;
    }
    return 1;
}
/* tell this worker's flag whether its rows of a matrix have only finite numbers: 0 · inf is NaN, which a sum
 * of some rows would not give */
SHARED void look_for_infinities(const Worker *w, const T *src, long row, long rows, long units) {
    M bad = bits((V){0});
    for (long i = share(rows, w->id, w->workers); i < share(rows, w->id + 1, w->workers); i++)
        for (long u = 0; u < units; u += VL) {
            V zero = ldn(src + i * row, u, units) * 0;
            bad |= (M)(zero != zero);
        }
    for (int i = 0; i < VL; i++) w->flags[w->id].infinite |= LANE(bad, i) != 0;
}
/* after a barrier: no worker has found any */
SHARED int all_finite(const Flag *flags, long workers) {
    long infinite = 0;
    for (long i = 0; i < workers; i++) infinite |= flags[i].infinite;
    return !infinite;
}
