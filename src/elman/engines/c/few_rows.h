/* Linear layers for few rows: y = x W' · scale + bias. After runtime.h, and a line that defines WEIGHT_BITS:
 * 8 for integers, 16 for bfloat16, 32 for float32.
 *
 * For so few rows a product takes as long as the weights take to be read. So they are read once for all rows, and
 * converted to float32 in registers, a vector at a time; x stays in float32. */
#if WEIGHT_BITS < 32 && (defined(__AVX512F__) && VL == 16 || defined(__AVX2__) && VL == 8)
#include <immintrin.h> /* compilers convert such vectors by element */
#define BY_INSTRUCTION 1
#endif
#if WEIGHT_BITS == 8
typedef int8_t Weight;
INLINE T number(Weight q) { return q; }
#if BY_INSTRUCTION && VL == 16
INLINE V load_weights(const Weight *p) { return (V)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)p))); }
#elif BY_INSTRUCTION
INLINE V load_weights(const Weight *p) { return (V)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)p))); }
#endif
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
    long rows, inputs, outputs;
    const T *x;
    const Weight *weight; /* [outputs][inputs] */
    const T *scale, *bias; /* [outputs], or null */
    T *y;
} Linear;
enum { GRAIN = 16, MANY = 8, AHEAD = 2048 }; /* AHEAD: of weights (bytes), which pages' ends stop the processor from fetching */

INLINE T total(V v) {
    T sum = 0;
    for (int i = 0; i < VL; i++) sum += LANE(v, i);
    return sum;
}
#define EACH(i, n) _Pragma("GCC unroll 8") for (int i = 0; i < n; i++)
/* some outputs of some rows, some vectors of inputs at a time: weights are read as they lie, for all rows at once */
INLINE void block(const Linear *l, long n, int outputs, int vectors, long r, int rows) {
    const T *x = l->x + r * l->inputs;
    const Weight *w = l->weight + n * l->inputs;
    long inputs = l->inputs, k = 0;
    V sums[4][4][4] = {0};
    for (; k + vectors * VL <= inputs; k += vectors * VL)
        EACH(q, vectors) {
            __builtin_prefetch((const void *)((uintptr_t)(w + k + q * VL) + AHEAD));
            V values[4];
            EACH(j, rows) values[j] = ld(x + j * inputs + k + q * VL);
            EACH(i, outputs) {
                V weight = load_weights(w + i * inputs + k + q * VL);
                EACH(j, rows) sums[q][i][j] += weight * values[j];
            }
        }
    EACH(i, outputs) EACH(j, rows) {
        V all = sums[0][i][j];
        for (int q = 1; q < vectors; q++) all += sums[q][i][j];
        T sum = total(all);
        for (long q = k; q < inputs; q++) sum += number(w[i * inputs + q]) * x[j * inputs + q];
        if (l->scale) sum *= l->scale[n + i];
        l->y[(r + j) * l->outputs + n + i] = l->bias ? sum + l->bias[n + i] : sum;
    }
}
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
static void prepare(void *p) { (void)p; }
static void run(void *p, Worker *w) {
    const Linear *l = p;
    long grains = (l->outputs + GRAIN - 1) / GRAIN;
    long n = share(grains, w->id, w->workers) * GRAIN, end = share(grains, w->id + 1, w->workers) * GRAIN;
    if (end > l->outputs) end = l->outputs;
    if (l->rows >= MANY && l->rows % 4 == 0) /* products take longer than weights */
        for (; n + 2 <= end; n += 2)
            for (long r = 0; r < l->rows; r += 4) two_by_four(l, n, r);
    for (; n < end; n++) one(l, n);
}
/* how long a worker had no core, as of run_tasks (us) */
__attribute__((visibility("default"))) long elman_linear(Linear *l) {
    Flag flags[l->head.workers];
    memset(flags, 0, sizeof flags);
    l->head.flags = flags;
    Task task = {prepare, run, &l->head};
    return run_tasks(&task, 1, l->head.workers);
}
