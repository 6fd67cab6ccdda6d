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
/* a bit per element of m rows of K numbers, and how many are ones; -1 if there are not few or other numbers than 0 and 1 */
static long bits_of(long m, const T *A, long lda, long K, uint64_t *words) {
    long step = (K + WORD - 1) / WORD, count = 0;
    int odd = 0;
    for (long r = 0; r < m; r++, A += lda) {
        for (long k = 0; k < K; k += WORD) {
            uint64_t word = not_zero(A + k, K - k < WORD ? K - k : WORD, &odd);
            words[r * step + k / WORD] = word;
            count += __builtin_popcountll(word);
        }
        if (count > FEW(m * K) || odd) return -1;
    }
    return count;
}
/* where the ones of m rows of K numbers are, row after row: `at` has their k, ends[r] how many there are up to row r.
 * False, and nothing is told, if there are not few or other numbers than 0 and 1 */
SHARED int ones_of(long m, const T *A, long lda, long K, unsigned short *at, int *ends) {
    long step = (K + WORD - 1) / WORD, count = 0;
    uint64_t words[m * step];
    if (bits_of(m, A, lda, K, words) < 0) return 0;
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

/* sums for a matrix whose right operand is zeros and ones: lists of rows, unit by unit */
typedef struct { uint64_t *words; int *ends; unsigned short *at; } Lists;
static Lists lists_in(const T *memory, long units, long rows) {
    Lists found = {.words = (uint64_t *)memory};
    found.ends = (int *)(found.words + rows * ((units + WORD - 1) / WORD));
    found.at = (unsigned short *)(found.ends + units);
    return found;
}
SHARED int list_ones(const T *right, long right_row, long units, long rows, T *memory) {
    enum { FEWEST = 64, MOST = 65535 }; /* rows: fewer do not pay, a list's entry has 16 bits */
    Lists to = lists_in(memory, units, rows);
    long step = (units + WORD - 1) / WORD;
    if (rows < FEWEST || rows > MOST || bits_of(rows, right, right_row, units, to.words) < 0) return 0;
    memset(to.ends, 0, units * sizeof(int));
    for (long place = 0; place < rows * step; place++)
        for (uint64_t word = to.words[place]; word; word &= word - 1) to.ends[place % step * WORD + __builtin_ctzll(word)]++;
    for (long u = 0, sum = 0; u < units; u++) {
        long count = to.ends[u];
        to.ends[u] = (int)sum; /* where the unit's list begins; its end once it is written */
        sum += count;
    }
    for (long r = 0; r < rows; r++)
        for (long k = 0; k < step; k++)
            for (uint64_t word = to.words[r * step + k]; word; word &= word - 1)
                to.at[to.ends[k * WORD + __builtin_ctzll(word)]++] = (unsigned short)r;
    return 1;
}
/* columns [u, u + n) of rows of memory as a panel of WIDEST vectors; whether all are finite */
static int copied(T *panel, const T *src, long row, long rows, long u, long n) {
    V zero = {0};
    for (long r = 0; r < rows; r++)
        for (long v = 0; v < WIDEST; v++) {
            V x = ldn(src + r * row + u, v * VL, n);
            zero += x * 0;
            st(panel + (r * WIDEST + v) * VL, x);
        }
    T sum = 0;
    for (int i = 0; i < VL; i++) sum += LANE(zero, i);
    return sum == 0;
}
SHARED void add_listed(const Worker *w, long turn, const T *left, long left_row, long size, long most, const T *right, long right_row,
                       long units, long rows, const T *memory, T *panel, T *C, long ldc, int acc, Picked *picked) {
    Lists from = lists_in(memory, units, rows);
    T sums[VL * WIDEST * VL] __attribute__((aligned(64))), transposed[VL * VL] __attribute__((aligned(64)));
    Share own = tiles_of(w, turn, size, most);
    for (long m = own.begin; m < own.end; m += WIDEST * VL) {
        long n = own.end - m < WIDEST * VL ? own.end - m : WIDEST * VL;
        if (!copied(panel, left, left_row, rows, m, n)) {
            Worker alone = {0, 0, 1, 0};
            plain_outer(&alone, left + m, left_row, n, right, right_row, units, rows, C + m * ldc, ldc, acc);
            continue;
        }
        for (long u = 0; u < units; u += VL) {
            long columns = units - u < VL ? units - u : VL;
            for (long i = 0; i < n; i++) __builtin_prefetch(C + (m + i) * ldc + u, 1);
            picked(columns, from.at, u ? from.ends[u - 1] : 0, from.ends + u, panel, sums, WIDEST * VL, 0);
            for (long v = 0; v < n; v += VL) {
                transpose(transposed, VL, sums + v, WIDEST * VL);
                for (long i = 0; i < VL && v + i < n; i++) {
                    T *to = C + (m + v + i) * ldc;
                    V x = ld(transposed + i * VL);
                    if (acc) x += ldn(to, u, units);
                    stn(to, u, units, x);
                }
            }
        }
    }
}
