/* Linear layers for few rows: y = x W' · scale + bias. After runtime.h, and lines that define WEIGHT_BITS
 * (8 for integers, 16 for bfloat16, 32 for float32) and BLOCK. Or experts: W of each row of y is one of several.
 *
 * For so few rows a product takes as long as the weights take to be read. So they are read once for all rows, and
 * converted to float32 in registers, a vector at a time; x stays in float32. Where instructions multiply integers of
 * 16 bits, weights of eight meet inputs of 16. */
#if WEIGHT_BITS < 32 && (defined(__AVX512F__) && VL == 16 || defined(__AVX2__) && VL == 8)
#include <immintrin.h> /* compilers convert such vectors by element */
#define BY_INSTRUCTION 1
#endif
#if WEIGHT_BITS == 8
typedef int8_t Weight;
INLINE T number(Weight q) { return q; }
#elif WEIGHT_BITS == 32
typedef T Weight;
INLINE T number(Weight q) { return q; }
INLINE V load_weights(const Weight *p) { return ld(p); }
#else
typedef uint16_t Weight;
INLINE T number(Weight q) {
    uint32_t bits = (uint32_t)q << 16;
    T x;
    __builtin_memcpy(&x, &bits, sizeof x);
    return x;
}
#if BY_INSTRUCTION && VL == 16
INLINE V load_weights(const Weight *p) { return (V)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)p)), 16); }
#elif BY_INSTRUCTION
INLINE V load_weights(const Weight *p) { return (V)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p)), 16); }
#endif
#endif
#if !defined(BY_INSTRUCTION) && WEIGHT_BITS < 32
INLINE V load_weights(const Weight *p) {
    V v;
    for (int i = 0; i < VL; i++) LANE(v, i) = number(p[i]);
    return v;
}
#endif
typedef struct {
    Head head;
    long rows, inputs, outputs; /* rows of y */
    long experts, choices;      /* a row of x has so many rows of y in a row, one for each of its experts */
    const T *x;                 /* [rows / choices][inputs] */
    const Weight *weight;       /* [experts][outputs][inputs] */
    const T *scale, *bias;      /* [experts][outputs], or null */
    T *y;
    int16_t *rounded;      /* [rows / choices][blocks][BLOCK], of weights in eight bits */
    T *factors;            /* [rows / choices][blocks] */
    const int64_t *expert; /* [rows], or null: all rows have the same weights */
    int64_t *order;        /* [rows], by experts */
} Linear;
enum { GRAIN = 16, MANY = 8, AHEAD = 2048 }; /* AHEAD: of weights (bytes), which pages' ends stop the processor from fetching */

/* rows of y and of x that are at a place in the order of rows */
INLINE long row_of(const Linear *l, long at) { return l->expert ? l->order[at] : at; }
INLINE long input_of(const Linear *l, long at) { return row_of(l, at) / l->choices; }
INLINE T total(V v) {
    T sum = 0;
    for (int i = 0; i < VL; i++) sum += LANE(v, i);
    return sum;
}
#define EACH(i, n) _Pragma("GCC unroll 8") for (int i = 0; i < n; i++)
#if WEIGHT_BITS == 8 && BY_INSTRUCTION
/* Weights of eight bits times inputs that are rounded to 16, in blocks of which each has a factor: integers are
 * multiplied twice as many at once as numbers, and need no conversion. */
enum { STEP = 2 * VL, MOST = 32767 };
#if VL == 16
typedef __m512i Wide;
INLINE Wide wide(const Weight *p) { return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const void *)p)); }
INLINE Wide inputs_at(const int16_t *p) { return _mm512_loadu_si512(p); }
INLINE Wide sum_of_two(Wide a, Wide b) { return _mm512_add_epi32(a, b); }
#ifdef __AVX512VNNI__
INLINE Wide add_products(Wide sum, Wide a, Wide b) { return _mm512_dpwssd_epi32(sum, a, b); }
#else
INLINE Wide add_products(Wide sum, Wide a, Wide b) { return _mm512_add_epi32(sum, _mm512_madd_epi16(a, b)); }
#endif
INLINE V numbers(Wide x) { return (V)_mm512_cvtepi32_ps(x); }
INLINE void store_rounded(int16_t *p, V x) { _mm256_storeu_si256((void *)p, _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32((__m512)x))); }
#else
typedef __m256i Wide;
INLINE Wide wide(const Weight *p) { return _mm256_cvtepi8_epi16(_mm_loadu_si128((const void *)p)); }
INLINE Wide inputs_at(const int16_t *p) { return _mm256_loadu_si256((const void *)p); }
INLINE Wide sum_of_two(Wide a, Wide b) { return _mm256_add_epi32(a, b); }
INLINE Wide add_products(Wide sum, Wide a, Wide b) { return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b)); }
INLINE V numbers(Wide x) { return (V)_mm256_cvtepi32_ps(x); }
INLINE void store_rounded(int16_t *p, V x) {
    __m256i q = _mm256_cvtps_epi32((__m256)x);
    _mm_storeu_si128((void *)p, _mm_packs_epi32(_mm256_castsi256_si128(q), _mm256_extracti128_si256(q, 1)));
}
#endif
INLINE long blocks_of(const Linear *l) { return (l->inputs + BLOCK - 1) / BLOCK; }
static void round_inputs(const Linear *l) {
    const long blocks = blocks_of(l);
    for (long at = 0; at < l->rows / l->choices * blocks; at++) {
        const long begin = at % blocks * BLOCK, n = l->inputs - begin < BLOCK ? l->inputs - begin : BLOCK;
        const T *x = l->x + at / blocks * l->inputs + begin;
        V most = {0};
        for (long i = 0; i < n; i += VL) most = v_max(most, v_abs(ldn(x, i, n)));
        T largest = LANE(most, 0);
        for (int i = 1; i < VL; i++) largest = LANE(v_max(bc(largest), bc(LANE(most, i))), 0);
        const V inverse = bc(largest > (T)1e-30 ? MOST / largest : 0);
        for (long i = 0; i < BLOCK; i += VL) store_rounded(l->rounded + at * BLOCK + i, ldn(x, i, n) * inverse);
        l->factors[at] = largest / MOST;
    }
}
INLINE void integers(const Linear *l, long n, int outputs, int streams, long r, int rows) {
    const long inputs = l->inputs, blocks = blocks_of(l), width = blocks * BLOCK;
    const Weight *w = l->weight + n * inputs;
    const int16_t *x[4];
    const T *factors[4];
    EACH(j, rows) x[j] = l->rounded + input_of(l, r + j) * width, factors[j] = l->factors + input_of(l, r + j) * blocks;
    V sums[4][4] = {0};
    for (long b = 0; b < blocks; b++) {
        Wide parts[2][4][4] = {0};
        long k = b * BLOCK;
        const long end = inputs - k < BLOCK ? inputs : k + BLOCK;
        for (; k + streams * STEP <= end; k += streams * STEP)
            EACH(q, streams) {
                const long at = k + q * STEP;
                Wide values[4];
                EACH(j, rows) values[j] = inputs_at(x[j] + at);
                EACH(i, outputs) {
                    __builtin_prefetch((const void *)((uintptr_t)(w + i * inputs + at) + (uintptr_t)(outputs * inputs)));
                    Wide weight = wide(w + i * inputs + at);
                    EACH(j, rows) parts[q][i][j] = add_products(parts[q][i][j], weight, values[j]);
                }
            }
        for (; k < end; k += STEP)
            EACH(i, outputs) {
                Weight some[STEP] = {0};
                __builtin_memcpy(some, w + i * inputs + k, (unsigned long)(end - k < STEP ? end - k : STEP));
                Wide weight = wide(some);
                EACH(j, rows) parts[0][i][j] = add_products(parts[0][i][j], weight, inputs_at(x[j] + k));
            }
        EACH(i, outputs) EACH(j, rows) {
            Wide all = streams > 1 ? sum_of_two(parts[0][i][j], parts[1][i][j]) : parts[0][i][j];
            sums[i][j] += numbers(all) * bc(factors[j][b]);
        }
    }
    EACH(i, outputs) EACH(j, rows) {
        T sum = total(sums[i][j]);
        if (l->scale) sum *= l->scale[n + i];
        l->y[row_of(l, r + j) * l->outputs + n + i] = l->bias ? sum + l->bias[n + i] : sum;
    }
}
#define TOGETHER (VL == 16 ? 4 : 2) /* outputs of four rows whose sums stay in registers */
static void four_by_one(const Linear *l, long n, long r) { integers(l, n, 4, 2, r, 1); }
static void four_by_two(const Linear *l, long n, long r) { integers(l, n, 4, 1, r, 2); }
static void some_by_four(const Linear *l, long n, long r) { integers(l, n, TOGETHER, 1, r, 4); }
static void one_by_one(const Linear *l, long n, long r) { integers(l, n, 1, 2, r, 1); }
static void outputs_from(const Linear *l, long n, long end) {
    for (; n + 4 <= end; n += 4) {
        long r = 0;
        for (; r + 4 <= l->rows; r += 4)
            for (int i = 0; i < 4; i += TOGETHER) some_by_four(l, n + i, r);
        for (; r + 2 <= l->rows; r += 2) four_by_two(l, n, r);
        if (r < l->rows) four_by_one(l, n, r);
    }
    for (; n < end; n++)
        for (long r = 0; r < l->rows; r++) one_by_one(l, n, r);
}
#else
/* some outputs of some rows, some vectors of inputs at a time: weights are read as they lie, for all rows at once */
INLINE void block(const Linear *l, long n, int outputs, int vectors, long r, int rows) {
    const T *x[4];
    EACH(j, rows) x[j] = l->x + input_of(l, r + j) * l->inputs;
    const Weight *w = l->weight + n * l->inputs;
    long inputs = l->inputs, k = 0;
    V sums[4][4][4] = {0};
    for (; k + vectors * VL <= inputs; k += vectors * VL)
        EACH(q, vectors) {
            __builtin_prefetch((const void *)((uintptr_t)(w + k + q * VL) + AHEAD));
            V values[4];
            EACH(j, rows) values[j] = ld(x[j] + k + q * VL);
            EACH(i, outputs) {
                V weight = load_weights(w + i * inputs + k + q * VL);
                EACH(j, rows) sums[q][i][j] += weight * values[j];
            }
        }
    EACH(i, outputs) EACH(j, rows) {
        V all = sums[0][i][j];
        for (int q = 1; q < vectors; q++) all += sums[q][i][j];
        T sum = total(all);
        for (long q = k; q < inputs; q++) sum += number(w[i * inputs + q]) * x[j][q];
        if (l->scale) sum *= l->scale[n + i];
        l->y[row_of(l, r + j) * l->outputs + n + i] = l->bias ? sum + l->bias[n + i] : sum;
    }
}
static void round_inputs(const Linear *l) { (void)l; }
static void one_by_one(const Linear *l, long n, long r) { block(l, n, 1, 4, r, 1); }
static void one_by_two(const Linear *l, long n, long r) { block(l, n, 1, 4, r, 2); }
static void one_by_four(const Linear *l, long n, long r) { block(l, n, 1, 2, r, 4); }
static void two_by_four(const Linear *l, long n, long r) { block(l, n, 2, 1, r, 4); }
/* an output of all rows: weights are read in one stream */
static void one(const Linear *l, long n) {
    long r = 0;
    for (; r + 4 <= l->rows; r += 4) one_by_four(l, n, r);
    for (; r + 2 <= l->rows; r += 2) one_by_two(l, n, r);
    if (r < l->rows) one_by_one(l, n, r);
}
static void outputs_from(const Linear *l, long n, long end) {
    if (l->rows >= MANY && l->rows % 4 == 0) /* products take longer than weights */
        for (; n + 2 <= end; n += 2)
            for (long r = 0; r < l->rows; r += 4) two_by_four(l, n, r);
    for (; n < end; n++) one(l, n);
}
#endif
static void prepare(void *p) { (void)p; }
static void run(void *p, Worker *w) {
    const Linear *l = p;
    long grains = (l->outputs + GRAIN - 1) / GRAIN;
    long n = share(grains, w->id, w->workers) * GRAIN, end = share(grains, w->id + 1, w->workers) * GRAIN;
    if (end > l->outputs) end = l->outputs;
    if (!l->expert) {
        outputs_from(l, n, end);
        return;
    }
    Linear one = *l; /* the rows of one expert */
    for (long first = 0; first < l->rows; first += one.rows) {
        const int64_t expert = l->expert[l->order[first]];
        for (one.rows = 1; first + one.rows < l->rows && l->expert[l->order[first + one.rows]] == expert;) one.rows++;
        one.order = l->order + first;
        one.weight = l->weight + expert * l->outputs * l->inputs;
        one.scale = l->scale ? l->scale + expert * l->outputs : NULL;
        one.bias = l->bias ? l->bias + expert * l->outputs : NULL;
        if (expert >= 0 && expert < l->experts) outputs_from(&one, n, end);
        else /* no such expert: of models whose experts are in several processes */
            for (long at = 0; at < one.rows; at++) memset(l->y + row_of(&one, at) * l->outputs + n, 0, (unsigned long)(end - n) * sizeof(T));
    }
}
static void sort_rows(const Linear *l) {
    for (long row = 0, at; l->expert && row < l->rows; l->order[at] = row, row++)
        for (at = row; at > 0 && l->expert[l->order[at - 1]] > l->expert[row]; at--) l->order[at] = l->order[at - 1];
}
/* how long a worker had no core, as of run_tasks (us) */
__attribute__((visibility("default"))) long elman_linear(Linear *l) {
    Flag flags[l->head.workers];
    memset(flags, 0, sizeof flags);
    l->head.flags = flags;
    round_inputs(l);
    sort_rows(l);
    Task task = {prepare, run, &l->head};
    return run_tasks(&task, 1, l->head.workers);
}
