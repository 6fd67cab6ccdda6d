/* What every generated kernel stands on: vectors compared and picked, reductions, workers. After vectors.h,
 * before functions.h; what is only declared here is in runtime.c.
 *
 * NaN and infinities pass through every function as in torch, so -ffast-math is never used.
 */
#include <math.h>
#include <sched.h>
#include <string.h>
#include <time.h>

#if VL > 1
INLINE M bits(V x) { return (M)x; }
INLINE V value(M m) { return (V)m; }
INLINE V pick(M m, V a, V b) { return (V)((m & (M)a) | (~m & (M)b)); }
#else
INLINE M bits(V x) { M m; __builtin_memcpy(&m, &x, sizeof m); return m; }
INLINE V value(M m) { V x; __builtin_memcpy(&x, &m, sizeof x); return x; }
INLINE V pick(M m, V a, V b) { return m ? a : b; }
#endif
INLINE V truth(M m) { return pick(m, bc(1), bc(0)); }
INLINE V v_abs(V x) { return value(bits(x) & ~bits(bc((T)-0.0))); }
/* the second operand wins where the first is NaN or they are unordered, as in x86's min and max */
#ifdef ELMAN_F64
#define KIND pd
#define BITS (VL * 64)
#else
#define KIND ps
#define BITS (VL * 32)
#endif
#define JOIN_(a, b, c) a##b##c
#define JOIN(a, b, c) JOIN_(a, b, c)
#if defined(__AVX512F__) && BITS == 512 || defined(__AVX2__) && BITS == 256
typedef T F __attribute__((vector_size(BITS / 8), may_alias));
/* gcc's own names: reading immintrin.h takes longer than compiling a small kernel */
#if defined(__GNUC__) && !defined(__clang__) && defined(__has_builtin)
#if __has_builtin(__builtin_ia32_minps512_mask) && __has_builtin(__builtin_ia32_minps256)
#if BITS == 512
#define WIDE1(name, a) (V)JOIN(__builtin_ia32_##name, KIND, 512_mask)((F)(a), (F)(a), -1, 4)
#define WIDE2(name, a, b) (V)JOIN(__builtin_ia32_##name, KIND, 512_mask)((F)(a), (F)(b), (F)(a), -1, 4)
#else
#define WIDE1(name, a) (V)JOIN(__builtin_ia32_##name, KIND, 256)((F)(a))
#define WIDE2(name, a, b) (V)JOIN(__builtin_ia32_##name, KIND, 256)((F)(a), (F)(b))
#endif
#endif
#endif
#ifndef WIDE2
#include <immintrin.h>
#if BITS == 512
#define WIDE1(name, a) (V)JOIN(_mm512_##name, _, KIND)((F)(a))
#define WIDE2(name, a, b) (V)JOIN(_mm512_##name, _, KIND)((F)(a), (F)(b))
#else
#define WIDE1(name, a) (V)JOIN(_mm256_##name, _, KIND)((F)(a))
#define WIDE2(name, a, b) (V)JOIN(_mm256_##name, _, KIND)((F)(a), (F)(b))
#endif
#endif
#if BITS == 512
#define SCALED(a, n) WIDE2(scalef, a, n) /* a · 2^n, rounded once */
#endif
INLINE V lesser(V a, V b) { return WIDE2(min, a, b); }
INLINE V larger(V a, V b) { return WIDE2(max, a, b); }
INLINE V v_sqrt(V x) { return WIDE1(sqrt, x); }
#else
INLINE V lesser(V a, V b) { return pick(a < b, a, b); }
INLINE V larger(V a, V b) { return pick(a > b, a, b); }
INLINE V v_sqrt(V x) {
    for (int i = 0; i < VL; i++) LANE(x, i) = (T)sqrt((double)LANE(x, i));
    return x;
}
#endif

/* one lane at a time */
#if defined(ELMAN_F64) || defined(ELMAN_LIBM)
SHARED V v_sin(V x);
SHARED V v_cos(V x);
SHARED V v_erf(V x);
SHARED V v_atan(V x);
#endif
SHARED V far_turn(V x, int quarter); /* sin(x), or cos(x) */
SHARED V v_pow(V x, V y); /* the lanes together in float32 */
SHARED V v_remainder(V x, V y);
typedef struct { const T *p; long n; } Units; /* reductions are over those of some arrays */

/* products with weights as they lie, for calls of so few rows that packing would cost more than it gains */
SHARED void dots(long m, const T *A, long lda, const T *W, long ldw, long units, long K, T *C, long ldc, int acc);
SHARED void plain_dots(long m, const T *A, long lda, const T *W, long ldw, long units, long K, T *C, long ldc, int acc);
SHARED void scaled_rows(long m, const T *A, long lda, const T *W, long ldw, long units, long K, T *C, long ldc, int acc);

/* workers: the process's one OpenMP pool (torch's own), found at run time and handed in once */
typedef void (*parallel_fn)(void (*)(void *), void *, unsigned, unsigned);
typedef int (*number_fn)(void);
SHARED extern parallel_fn run_parallel;
SHARED extern number_fn thread_number, thread_count;
typedef struct { volatile long seen, stolen, infinite; char pad[104]; } Flag;
typedef struct { Flag *flags; long id, workers, epoch; } Worker;
/* until a count that another thread raises is high enough */
SHARED void wait_for(const volatile long *count, long enough);
SHARED void barrier_all(Worker *w);
/* wait for all workers of a call */
INLINE void barrier(Worker *w) {
    if (w->workers > 1) barrier_all(w);
}
/* what every argument block begins with. Rows are cut into `shares` whatever the number of workers, who
 * take them one after another: how rows share a tile decides about the last bit. `done` counts the steps of this call that others may read;
 * `awaits` is the count of the call whose results this one reads, or null */
typedef struct { long T, B, chunk, workers, split, shares; Flag *flags; long done; const long *awaits; } __attribute__((may_alias)) Head;
UNUSED INLINE void tell(Head *call, const Worker *w, long steps) { /* after a barrier */
    if (!w->id) __atomic_store_n(&call->done, steps, __ATOMIC_RELEASE);
}
/* calls side by side on the threads of one pool */
typedef struct { void (*prepare)(void *), (*run)(void *, Worker *); Head *call; } Task;
SHARED long run_tasks(Task *items, long count, long threads);
/* Results below the least normal number are zero while a kernel runs: on x86 an instruction that meets such a
 * number takes a hundred times as long, and decays and gradients fade through them. The thread's mode, which the
 * caller gets back, is read first. Numbers of that size in arguments are read as they are. */
#if defined(__x86_64__)
INLINE unsigned flush_small(void) {
    unsigned mode = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(mode | 0x8000);
    return mode;
}
INLINE void restore(unsigned mode) { __builtin_ia32_ldmxcsr(mode); }
#else
INLINE unsigned flush_small(void) { return 0; }
INLINE void restore(unsigned mode) { (void)mode; }
#endif
INLINE long share(long n, long id, long workers) { return n * id / workers; }
INLINE long max2(long a, long b) { return a > b ? a : b; }
/* bytes of n elements, rounded up to whole cache lines */
INLINE long bytes_of(long n) { return (n * (long)sizeof(T) + 63) / 64 * 64; }
/* a row of a caller's array, or zeros if there is none, into a padded row */
SHARED void copy_in(T *to, const T *from, long n);

/* products with zeros and ones (spikes.h) */
#define FEW(n) ((n) / 4) /* of n elements, as many may be 1: with more of them tiles are faster */
SHARED int ones_of(long m, const T *A, long lda, long K, unsigned short *at, int *ends);
SHARED void look_for_infinities(const Worker *w, const T *src, long row, long rows, long units);
SHARED int all_finite(const Flag *flags, long workers);
/* C[m, :] (+)= the sum of the panel's rows that are listed: from place i on, row r's up to ends[r] */
typedef void Picked(long m, const unsigned short *at, long i, const int *ends, const T *P, T *C, long ldc, int acc);
/* which rows of a right operand have a one, unit by unit, in a worker's own memory of that many elements: false as ones_of is */
SHARED int list_ones(const T *right, long right_row, long units, long rows, T *lists);
INLINE long lists_size(long rows, long units) {
    return bytes_of((rows * ((units + 63) / 64 * 8) + FEW(rows * units) * 2 + units * 4) / (long)sizeof(T) + 1) / (long)sizeof(T);
}
/* what add_outer computes, from these lists; `panel` has room for a panel of left's rows */
SHARED void add_listed(const Worker *w, long turn, const T *left, long left_row, long size, long most, const T *right, long right_row,
                       long units, long rows, const T *lists, T *panel, T *C, long ldc, int acc, Picked *picked);

/* weights into panels, and sums over rows for their gradients: what all workers of a call do together */
SHARED void pack_block(const Worker *w, T *pack, long vectors, long width, long accs, long acc, long total, long done,
                       const T *src, long unit, long inner, long size, long K);
SHARED void pack_right(const Worker *w, T *dst, const T *src, long stride, long vectors, long units, long rows);
SHARED void column_sums(const Worker *w, const T *src, long stride, long vectors, long units, long rows, T *out, int acc);
/* C[m, :] (+)= the sum over k of A[k, :] P[k, :], one vector or more of the right operand */
typedef void Across(long m, const T *A, long lda, const T *P, long ldp, long K, T *C, long ldc, int acc);
/* the same of A packed in tiles, P in panels */
typedef void Outer(long m, const T *A, long skip, const T *P, long K, T *C, long ldc, int acc, long done);
/* the same as a triple loop over memory, nothing packed: this worker's rows of C, all of right's units */
SHARED void plain_outer(const Worker *w, const T *left, long left_row, long size, const T *right, long right_row, long units,
                        long rows, T *C, long ldc, int acc);
/* the same in tiles of `most` rows, `block` rows of memory at a time; right as it lies, or as panels if its stride is -1 */
SHARED void add_outer(const Worker *w, long turn, const T *left, long left_row, long size, long most, const T *right, long right_row,
                      long vectors, long rows, long block, T *C, long ldc, int acc, Across *full, Across *rest);
