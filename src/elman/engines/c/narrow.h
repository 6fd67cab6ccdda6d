/* Linear layers whose weights are held in few bits, for few rows: y = x W' · scale + bias. After runtime.h, and a
 * line that defines HELD: 8 for integers of eight bits, 16 for bfloat16.
 *
 * For so few rows a product is as fast as the weights are read. So they are widened in registers, a vector at a
 * time, for all rows that lie in them; x stays as it is, in full precision. */
#if defined(__AVX512F__) && VL == 16 || defined(__AVX2__) && VL == 8
#include <immintrin.h> /* compilers convert such vectors by element */
#define BY_INSTRUCTION 1
#endif
#if HELD == 8
typedef int8_t Narrow;
INLINE T widened(Narrow q) { return q; }
#if BY_INSTRUCTION && VL == 16
INLINE V wide(const Narrow *p) { return (V)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)p))); }
#elif BY_INSTRUCTION
INLINE V wide(const Narrow *p) { return (V)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)p))); }
#endif
#else
typedef uint16_t Narrow;
INLINE T widened(Narrow q) {
    uint32_t bits = (uint32_t)q << 16;
    T x;
    __builtin_memcpy(&x, &bits, sizeof x);
    return x;
}
#if BY_INSTRUCTION && VL == 16
INLINE V wide(const Narrow *p) { return (V)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)p)), 16); }
#elif BY_INSTRUCTION
INLINE V wide(const Narrow *p) { return (V)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p)), 16); }
#endif
#endif
#ifndef BY_INSTRUCTION
INLINE V wide(const Narrow *p) {
    V v;
    for (int i = 0; i < VL; i++) LANE(v, i) = widened(p[i]);
    return v;
}
#endif
typedef struct {
    Head head;
    long rows, inputs, outputs;
    const T *x;
    const Narrow *weight; /* [outputs][inputs] */
    const T *scale, *bias; /* [outputs], or null */
    T *y;
} Linear;
enum { GRAIN = 16 };

INLINE T total(V v) {
    T sum = 0;
    for (int i = 0; i < VL; i++) sum += LANE(v, i);
    return sum;
}
/* some outputs of some rows: what both have many of is read once for all of the other */
#define EACH(i, n) _Pragma("GCC unroll 8") for (int i = 0; i < n; i++)
INLINE void block(const Linear *l, long n, int outputs, long r, int rows) {
    const T *x = l->x + r * l->inputs;
    const Narrow *w = l->weight + n * l->inputs;
    long inputs = l->inputs, k = 0;
    V sums[8][4] = {0};
    for (; k + VL <= inputs; k += VL) {
        V values[4];
        EACH(j, rows) values[j] = ld(x + j * inputs + k);
        EACH(i, outputs) {
            V weight = wide(w + i * inputs + k);
            EACH(j, rows) sums[i][j] += weight * values[j];
        }
    }
    EACH(i, outputs) EACH(j, rows) {
        T sum = total(sums[i][j]);
        for (long q = k; q < inputs; q++) sum += widened(w[i * inputs + q]) * x[j * inputs + q];
        if (l->scale) sum *= l->scale[n + i];
        l->y[(r + j) * l->outputs + n + i] = l->bias ? sum + l->bias[n + i] : sum;
    }
}
static void eight_by_one(const Linear *l, long n, long r) { block(l, n, 8, r, 1); }
static void four_by_two(const Linear *l, long n, long r) { block(l, n, 4, r, 2); }
static void two_by_four(const Linear *l, long n, long r) { block(l, n, 2, r, 4), block(l, n + 2, 2, r, 4); }
static void one_by_one(const Linear *l, long n, long r) { block(l, n, 1, r, 1); }
/* eight outputs of all rows */
static void eight(const Linear *l, long n) {
    long r = 0;
    for (; r + 4 <= l->rows; r += 4) two_by_four(l, n, r), two_by_four(l, n + 4, r);
    for (; r + 2 <= l->rows; r += 2) four_by_two(l, n, r), four_by_two(l, n + 4, r);
    if (r < l->rows) eight_by_one(l, n, r);
}
static void prepare(void *p) { (void)p; }
static void run(void *p, Worker *w) {
    const Linear *l = p;
    long grains = (l->outputs + GRAIN - 1) / GRAIN;
    long n = share(grains, w->id, w->workers) * GRAIN, end = share(grains, w->id + 1, w->workers) * GRAIN;
    if (end > l->outputs) end = l->outputs;
    for (; n + 8 <= end; n += 8) eight(l, n);
    for (; n < end; n++)
        for (long r = 0; r < l->rows; r++) one_by_one(l, n, r);
}
/* how long a worker had no core, as of run_tasks (us) */
__attribute__((visibility("default"))) long elman_linear(Linear *l) {
    Flag flags[l->head.workers];
    memset(flags, 0, sizeof flags);
    l->head.flags = flags;
    Task task = {prepare, run, &l->head};
    return run_tasks(&task, 1, l->head.workers);
}
