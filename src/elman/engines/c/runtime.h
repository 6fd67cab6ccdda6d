/* What every generated kernel stands on: vectors, loads and stores, elementary functions, workers.
 *
 * The text before this defines VL (elements per vector) and, for float64, ELMAN_F64.
 * Vector code is written with gcc's vector extensions (clang has them too); NaN and infinities pass
 * through every function as in torch, so -ffast-math is never used.
 */
#define _GNU_SOURCE
#include <math.h>
#include <sched.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#ifdef ELMAN_F64
typedef double T;
typedef int64_t Int;
#else
typedef float T;
typedef int32_t Int;
#endif
typedef T V __attribute__((vector_size(VL * sizeof(T)), may_alias));
typedef T VU __attribute__((vector_size(VL * sizeof(T)), aligned(sizeof(T)), may_alias));
typedef Int M __attribute__((vector_size(VL * sizeof(T)), may_alias));

#define INLINE static inline __attribute__((always_inline))
#define NOINLINE static __attribute__((noinline))
#define UNUSED __attribute__((unused))

INLINE V ld(const T *p) { return *(const VU *)p; }
INLINE void st(T *p, V v) { *(VU *)p = v; }
INLINE V bc(T x) { return x - (V){}; }
/* a vector at unit u of an array of n units: what lies behind the end is neither read nor written */
INLINE V ldn(const T *p, long u, long n) {
    if (__builtin_expect(u + VL <= n, 1)) return ld(p + u);
    V v = {};
    if (n > u) memcpy(&v, p + u, (size_t)(n - u) * sizeof(T));
    return v;
}
INLINE void stn(T *p, long u, long n, V v) {
    if (__builtin_expect(u + VL <= n, 1)) st(p + u, v);
    else if (n > u) memcpy(p + u, &v, (size_t)(n - u) * sizeof(T));
}

INLINE V pick(M m, V a, V b) { return (V)((m & (M)a) | (~m & (M)b)); }
INLINE V truth(M m) { return (V)(m & (M)bc(1)); }
/* the second operand wins where the first is NaN or they are unordered, as in x86's min and max */
#if defined(__AVX512F__) && VL * 4 == 64 && !defined(ELMAN_F64)
INLINE V lesser(V a, V b) { return (V)_mm512_min_ps((__m512)a, (__m512)b); }
INLINE V larger(V a, V b) { return (V)_mm512_max_ps((__m512)a, (__m512)b); }
INLINE V v_sqrt(V x) { return (V)_mm512_sqrt_ps((__m512)x); }
#elif defined(__AVX2__) && VL * 4 == 32 && !defined(ELMAN_F64)
INLINE V lesser(V a, V b) { return (V)_mm256_min_ps((__m256)a, (__m256)b); }
INLINE V larger(V a, V b) { return (V)_mm256_max_ps((__m256)a, (__m256)b); }
INLINE V v_sqrt(V x) { return (V)_mm256_sqrt_ps((__m256)x); }
#else
INLINE V lesser(V a, V b) { return pick(a < b, a, b); }
INLINE V larger(V a, V b) { return pick(a > b, a, b); }
INLINE V v_sqrt(V x) {
    for (int i = 0; i < VL; i++) x[i] = (T)sqrt((double)x[i]);
    return x;
}
#endif

/* exp: x = n ln 2 + r, a polynomial in r, and 2^n in two factors so that 0, subnormals and infinity come
 * out right. Constants: Cephes (Moshier), expf.c; float64: the Taylor polynomial, |r| <= ln 2 / 2. */
#ifdef ELMAN_F64
#define EXP_LOW -746.0
#define EXP_HIGH 710.0
#define EXP_MAGIC 6755399441055744.0
#define EXP_BIAS 1023
#define EXP_SHIFT 52
#else
#define EXP_LOW -104.5f
#define EXP_HIGH 89.0f
#define EXP_MAGIC 12582912.0f
#define EXP_BIAS 127
#define EXP_SHIFT 23
#endif
INLINE V v_exp(V x) {
    x = lesser(bc((T)EXP_HIGH), larger(bc((T)EXP_LOW), x));
    V m = x * (T)1.44269504088896341 + (T)EXP_MAGIC;
    V n = m - (T)EXP_MAGIC;
#ifdef ELMAN_F64
    V r = x - n * 6.93145751953125e-1;
    r = r - n * 1.42860682030941723212e-6;
    V p = bc(1.0 / 6227020800.0);
    p = p * r + 1.0 / 479001600.0;
    p = p * r + 1.0 / 39916800.0;
    p = p * r + 1.0 / 3628800.0;
    p = p * r + 1.0 / 362880.0;
    p = p * r + 1.0 / 40320.0;
    p = p * r + 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
#else
    V r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    V p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
#endif
    p = p * (r * r) + (r + (T)1);
    M k = (M)m - (M)bc((T)EXP_MAGIC);
    M half = k >> 1;
    V low = (V)((half + EXP_BIAS) << EXP_SHIFT);
    V high = (V)((k - half + EXP_BIAS) << EXP_SHIFT);
    return p * low * high;
}
INLINE V v_sigmoid(V x) { return (T)1 / ((T)1 + v_exp(-x)); }
INLINE V v_abs(V x) { return (V)((M)x & ~(M)bc((T)-0.0)); }
/* tanh: an odd polynomial or rational near 0 (Cephes, tanhf.c and tanh.c), 1 - 2 / (exp(2|x|) + 1) beyond */
INLINE V v_tanh(V x) {
    V a = v_abs(x);
    V s = x * x;
#ifdef ELMAN_F64
    V p = s * -9.64399179425052238628e-1 + -9.92877231001918586564e1;
    p = p * s + -1.61468768441708447952e3;
    V q = s + 1.12811678491632931402e2;
    q = q * s + 2.23548839060100448583e3;
    q = q * s + 4.84406305325125486048e3;
    V near = a + a * s * (p / q);
#else
    V p = s * -5.70498872745e-3f + 2.06390887954e-2f;
    p = p * s + -5.37397155531e-2f;
    p = p * s + 1.33314422036e-1f;
    p = p * s + -3.33332819422e-1f;
    V near = a + a * s * p;
#endif
    V far = (T)1 - (T)2 / (v_exp(a + a) + (T)1);
    return (V)((M)pick(a < (T)0.625, near, far) | ((M)x & (M)bc((T)-0.0)));
}
INLINE V v_relu(V x) { return larger(bc(0), x); }
INLINE V v_min(V a, V b) { return pick(a != a, a, pick(a < b, a, b)); }
INLINE V v_max(V a, V b) { return pick(a != a, a, pick(a > b, a, b)); }
INLINE V v_sign(V x) { return pick(x > (T)0, bc(1), pick(x < (T)0, bc(-1), bc(0))); }
/* not `c != 0`: gcc 12 without SSE4 stops with an internal error when c is itself a comparison */
INLINE V v_where(V c, V a, V b) { return pick((M)v_abs(c) != 0, a, b); }
#define LANES(name, call)                                                                              \
    UNUSED NOINLINE V name(V x) {                                                                      \
        for (int i = 0; i < VL; i++) x[i] = (T)call((double)x[i]);                                     \
        return x;                                                                                      \
    }
LANES(v_log, log)
LANES(v_sin, sin)
LANES(v_cos, cos)
LANES(v_erf, erf)
INLINE double softplus_(double x) { return x > 20.0 ? x : log1p(exp(x)); }
LANES(v_softplus, softplus_)

/* reductions over n units of one array */
UNUSED NOINLINE T sum_of(const T *p, long n) {
    V s = {};
    long u = 0;
    for (; u + VL <= n; u += VL) s += ld(p + u);
    T total = 0;
    for (int i = 0; i < VL; i++) total += s[i];
    for (; u < n; u++) total += p[u];
    return total;
}
UNUSED NOINLINE T square_of(const T *p, long n, T mean) {
    V s = {};
    long u = 0;
    for (; u + VL <= n; u += VL) { V d = ld(p + u) - mean; s += d * d; }
    T total = 0;
    for (int i = 0; i < VL; i++) total += s[i];
    for (; u < n; u++) { T d = p[u] - mean; total += d * d; }
    return total;
}
UNUSED NOINLINE T max_of(const T *p, long n, T best) {
    for (long u = 0; u < n; u++) best = p[u] > best || p[u] != p[u] ? p[u] : best;
    return best;
}

/* sum over rows of a column of vectors, added to what stands there if acc */
UNUSED NOINLINE void column_sum(const T *p, long stride, long rows, long u, long n, T *out, int acc) {
    V a = acc ? ld(out) : (V){}, b = {};
    long r = 0;
    if (u + VL <= n) {
        for (; r + 1 < rows; r += 2) { a += ld(p + r * stride + u); b += ld(p + (r + 1) * stride + u); }
        if (r < rows) a += ld(p + r * stride + u);
    } else {
        for (; r < rows; r++) a += ldn(p + r * stride, u, n);
    }
    st(out, a + b);
}

/* VL rows of VL elements to VL columns; written out by tiles.py for this VL */
INLINE void transpose(T *to, long step, const T *from, long row);
/* packing. A panel holds, for each k, `columns` vectors side by side; one call fills one vector column:
 * dst[k * columns * VL + i] = src[i * unit + k * inner] for i < units, 0 beyond */
UNUSED NOINLINE void pack_column(T *dst, long columns, const T *src, long unit, long inner, long units, long K) {
    long step = columns * VL;
    if (unit == 1) {
        for (long k = 0; k < K; k++) st(dst + k * step, ldn(src + k * inner, 0, units));
        return;
    }
    if (units < VL) for (long k = 0; k < K; k++) st(dst + k * step, (V){});
    long n = units < VL ? units : VL, done = 0;
    if (n == VL && inner == 1)
        for (; done + VL <= K; done += VL) transpose(dst + done * step, step, src + done, unit);
    for (long k0 = done; k0 < K; k0 += 16) {
        long k1 = k0 + 16 < K ? k0 + 16 : K;
        for (long i = 0; i < n; i++)
            for (long k = k0; k < k1; k++) dst[k * step + i] = src[i * unit + k * inner];
    }
}
/* rows [0, K) of columns [m, m + count) of an array, as tiles [k][count] */
UNUSED NOINLINE void pack_rows(T *dst, const T *src, long stride, long K, long count) {
    enum { WIDE = 32 / sizeof(T) };
    long k = 0;
    /* a whole vector per row: what it writes too much, the next row overwrites */
    if (count <= WIDE / 2 && stride >= WIDE)
        for (; k + 2 < K; k++) memcpy(dst + k * count, src + k * stride, 16);
    else if (count <= WIDE && stride >= WIDE)
        for (; k + 4 < K; k++) memcpy(dst + k * count, src + k * stride, 32);
    for (; k < K; k++)
        for (long i = 0; i < count; i++) dst[k * count + i] = src[k * stride + i];
}

/* products with weights as they lie, for calls of so few rows that packing would cost more than it gains:
 * C[r, i] (+)= sum over k of A[r, k] W[i, k] for one vector of units; W's rows are dotted with A's */
INLINE T total_of(V v) {
#if defined(__AVX512F__) && VL * 4 == 64 && !defined(ELMAN_F64)
    return _mm512_reduce_add_ps((__m512)v);
#else
    T total = 0;
    for (int i = 0; i < VL; i++) total += v[i];
    return total;
#endif
}
UNUSED NOINLINE void dots(long m, const T *A, long lda, const T *W, long ldw, long units, long K, T *C, long ldc, int acc) {
    long n = units < VL ? units : VL;
    if (!acc) for (long r = 0; r < m; r++) st(C + r * ldc, (V){});
    for (long i = 0; i < n; i += 4) {
        long left = n - i;
        const T *w0 = W + i * ldw, *w1 = left > 1 ? w0 + ldw : w0, *w2 = left > 2 ? w1 + ldw : w0, *w3 = left > 3 ? w2 + ldw : w0;
        for (long r = 0; r < m; r++) {
            const T *a = A + r * lda;
            V s0 = {}, s1 = {}, s2 = {}, s3 = {};
            long k = 0;
            for (; k + VL <= K; k += VL) {
                V x = ld(a + k);
                s0 += x * ld(w0 + k); s1 += x * ld(w1 + k); s2 += x * ld(w2 + k); s3 += x * ld(w3 + k);
            }
            if (k < K) {
                V x = ldn(a, k, K);
                s0 += x * ldn(w0, k, K); s1 += x * ldn(w1, k, K); s2 += x * ldn(w2, k, K); s3 += x * ldn(w3, k, K);
            }
            T sums[4] = {total_of(s0), total_of(s1), total_of(s2), total_of(s3)};
            T *c = C + r * ldc + i;
            for (long j = 0; j < (left < 4 ? left : 4); j++) c[j] += sums[j];
        }
    }
}
/* C[r, i] (+)= sum over k of A[r, k] W[k, i]: rows of W are scaled and added */
UNUSED NOINLINE void scaled_rows(long m, const T *A, long lda, const T *W, long ldw, long units, long K, T *C, long ldc, int acc) {
    for (long r = 0; r < m; r++) {
        V s = acc ? ld(C + r * ldc) : (V){};
        for (long k = 0; k < K; k++) s += A[r * lda + k] * ldn(W + k * ldw, 0, units);
        st(C + r * ldc, s);
    }
}

/* workers: the process's one OpenMP pool (torch's own), found at run time and handed in once */
typedef void (*parallel_fn)(void (*)(void *), void *, unsigned, unsigned);
typedef int (*number_fn)(void);
static parallel_fn run_parallel;
static number_fn thread_number, thread_count;
__attribute__((visibility("default"))) void elman_threads(void *parallel, void *number, void *count) {
    run_parallel = (parallel_fn)parallel;
    thread_number = (number_fn)number;
    thread_count = (number_fn)count;
}
typedef struct { volatile long seen, stolen; char pad[112]; } Flag;
typedef struct { Flag *flags; long id, workers, epoch; } Worker;
#if defined(__x86_64__)
#define RELAX() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define RELAX() __asm__ volatile("yield")
#else
#define RELAX() ((void)0)
#endif
/* until a count that another thread raises is high enough: spin first, then give the core away, so that an
 * oversubscribed machine goes on */
INLINE void wait_for(const volatile long *count, long enough) {
    for (long spins = 0; __atomic_load_n(count, __ATOMIC_ACQUIRE) < enough; spins++) {
        if (spins < 500) RELAX();
        else sched_yield();
    }
}
/* all workers of a call meet */
INLINE void meet(Worker *w) {
    if (w->workers == 1) return;
    long epoch = ++w->epoch;
    __atomic_store_n(&w->flags[w->id].seen, epoch, __ATOMIC_RELEASE);
    for (long i = 0; i < w->workers; i++)
        if (i != w->id) wait_for(&w->flags[i].seen, epoch);
}
INLINE long nanoseconds(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}
/* time since a start in which this thread did not have a core: others took it (ns) */
INLINE long without_core(void) {
    return nanoseconds(CLOCK_MONOTONIC) - nanoseconds(CLOCK_THREAD_CPUTIME_ID);
}
/* what every argument block begins with. Rows are cut into `shares` whatever the number of workers, who
 * take them in turn: how rows meet in a tile decides about the last bit. `done` counts the steps of this call that others may read;
 * `awaits` is the count of the call whose results this one reads, or null */
typedef struct { long T, B, chunk, workers, split, shares; Flag *flags; long done; const long *awaits; } __attribute__((may_alias)) Head;
UNUSED INLINE void tell(Head *call, const Worker *w, long steps) { /* after all workers have met */
    if (!w->id) __atomic_store_n(&call->done, steps, __ATOMIC_RELEASE);
}
/* calls side by side on the threads of one pool. Teams of workers take the calls in turn, each team in
 * the order of the calls, and a call waits for earlier ones only: however few threads there are, the first
 * call that is not done goes on */
typedef struct { void (*prepare)(void *), (*run)(void *, Worker *); Head *call; } Seat;
typedef struct { Seat *seats; long count; } Crew;
static void crew_enter(void *p) {
    Crew *crew = p;
    long threads = thread_count(), id = thread_number(), team = crew->seats->call->workers;
    if (team > threads) team = threads;
    long teams = threads / team;
    for (long k = id / team; k < crew->count && id < team * teams; k += teams) {
        Head *call = crew->seats[k].call;
        Worker w = {call->flags, id % team, team, 0};
        long start = without_core();
        crew->seats[k].run(call, &w);
        call->flags[w.id].stolen = without_core() - start;
    }
}
/* run calls whose workspace is at hand, as many at once as there are threads for; returns for how long a
 * worker had no core to run on, less an eighth of the time taken (us) */
UNUSED static long run_seats(Seat *seats, long count, long threads) {
    for (long k = 0; k < count; k++) seats[k].prepare(seats[k].call);
    if (threads == 1 || !run_parallel) {
        for (long k = 0; k < count; k++) {
            Worker w = {seats[k].call->flags, 0, 1, 0};
            seats[k].run(seats[k].call, &w);
        }
        return 0;
    }
    for (long k = 0; k < count; k++) memset(seats[k].call->flags, 0, seats[k].call->workers * sizeof(Flag));
    Crew crew = {seats, count};
    long start = nanoseconds(CLOCK_MONOTONIC), most = 0;
    run_parallel(crew_enter, &crew, threads, 0);
    long elapsed = nanoseconds(CLOCK_MONOTONIC) - start;
    for (long k = 0; k < count; k++)
        for (long i = 0; i < seats[k].call->workers; i++)
            if (seats[k].call->flags[i].stolen > most) most = seats[k].call->flags[i].stolen;
    return (most - elapsed / 8) / 1000;
}
__attribute__((visibility("default"))) long elman_crew(Seat *seats, long count, long threads) {
    return run_seats(seats, count, threads);
}
INLINE long share(long n, long id, long workers) { return n * id / workers; }
INLINE long max2(long a, long b) { return a > b ? a : b; }
/* bytes of n elements, rounded up to whole cache lines */
INLINE long bytes_of(long n) { return (n * (long)sizeof(T) + 63) / 64 * 64; }
/* a row of a caller's array, or zeros if there is none, into a padded row */
INLINE void copy_in(T *to, const T *from, long n) {
    for (long u = 0; u < n; u += VL) st(to + u, from ? ldn(from, u, n) : (V){});
}
