/* What kernels share: compiled once for an instruction set and a dtype. After vectors.h, runtime.h and what
 * tiles.py writes out for this VL. */
/* one lane at a time */
SHARED V far_turn(V x, int quarter) {
    for (int i = 0; i < VL; i++) LANE(x, i) = (T)(quarter ? cos((double)LANE(x, i)) : sin((double)LANE(x, i)));
    return x;
}
#if defined(ELMAN_F64) || defined(ELMAN_LIBM)
#define LANES(name, call)                                                                              \
    SHARED V name(V x) {                                                                      \
        for (int i = 0; i < VL; i++) LANE(x, i) = (T)call((double)LANE(x, i));                         \
        return x;                                                                                      \
    }
LANES(v_sin, sin)
LANES(v_cos, cos)
LANES(v_erf, erf)
LANES(v_atan, atan)
#endif
INLINE V pow_of_lanes(V x, V y) {
    for (int i = 0; i < VL; i++) LANE(x, i) = (T)pow((double)LANE(x, i), (double)LANE(y, i));
    return x;
}
#if defined(ELMAN_F64) || defined(ELMAN_LIBM) || VL == 1
SHARED V v_pow(V x, V y) { return pow_of_lanes(x, y); }
#else
typedef float Half __attribute__((vector_size(VL * 2), may_alias));
typedef double Wide __attribute__((vector_size(VL * 4), may_alias));
typedef uint64_t WideBits __attribute__((vector_size(VL * 4), may_alias));
INLINE Wide wide(double x) { return x - (Wide){0}; }
INLINE Wide wide_pick(WideBits m, Wide a, Wide b) { return (Wide)((m & (WideBits)a) | (~m & (WideBits)b)); }
/* 2^(y log2 x) in float64, x >= 0: log2 by the series of artanh, both polynomials of least relative error */
INLINE Half half_pow(Half base, Half exponent) {
    Wide x = __builtin_convertvector(base, Wide), y = __builtin_convertvector(exponent, Wide);
    const WideBits one = (WideBits)wide(1);
    WideBits k = ((WideBits)x + (one - (WideBits)wide(0.70710678118654752))) >> 52; /* the exponent + 1023 */
    Wide m = (Wide)((WideBits)x + one - (k << 52)), s = (m - 1.0) / (m + 1.0), z = s * s;
    const Wide magic = wide(6755399441055744.0);
    Wide p = z * 0.282899284202996 + 0.319905754918779;
    p = p * z + 0.412209251057866;
    p = p * z + 0.57707794237676;
    p = p * z + 0.961796694113307;
    p = p * z + 2.88539008177785;
    Wide power = s * p + ((Wide)(k + (WideBits)magic) - (magic + 1023.0));
    power = y * wide_pick(x == 0.0, wide(-INFINITY), wide_pick(x == INFINITY, x, power));
    power = wide_pick(power > 300.0, wide(300), wide_pick(power < -300.0, wide(-300), power));
    Wide n = power + magic, r = power - (n - magic);
    Wide e = r * 1.520192264e-5 + 1.5469291131e-4;
    e = e * r + 1.33339225591e-3;
    e = e * r + 9.61802725371e-3;
    e = e * r + 5.55041035345e-2;
    e = e * r + 2.402265119816e-1;
    e = e * r + 6.9314718072844561e-1;
    e = e * r + 1.0;
    e = e * (Wide)(((WideBits)n + 1023) << 52);
    return __builtin_convertvector(wide_pick(y == 0.0, wide(1), e), Half);
}
SHARED V v_pow(V x, V y) {
    const M infinite = bits(bc(INFINITY));
    if (any_of((bits(x) < 0) | (bits(x) > infinite) | ((bits(y) & ~bits(bc(-0.0f))) >= infinite))) return pow_of_lanes(x, y);
    for (int i = 0; i < 2; i++) {
        Half base, exponent;
        __builtin_memcpy(&base, (T *)&x + i * VL / 2, sizeof base);
        __builtin_memcpy(&exponent, (T *)&y + i * VL / 2, sizeof exponent);
        base = half_pow(base, exponent);
        __builtin_memcpy((T *)&x + i * VL / 2, &base, sizeof base);
    }
    return x;
}
#endif
/* fmod is exact; the sum that gives it the divisor's sign is rounded once, to T */
SHARED V v_remainder(V x, V y) {
    for (int i = 0; i < VL; i++) {
        T m = (T)fmod((double)LANE(x, i), (double)LANE(y, i));
        if (m != 0 && (m < 0) != (LANE(y, i) < 0)) m += LANE(y, i);
        LANE(x, i) = m;
    }
    return x;
}

/* sum over rows of a column of vectors, added to what stands there if acc */
NOINLINE void column_sum(const T *p, long stride, long rows, long u, long n, T *out, int acc) {
    V a = acc ? ld(out) : (V){0}, b = {0};
    long r = 0;
    if (u + VL <= n) {
        for (; r + 1 < rows; r += 2) { a += ld(p + r * stride + u); b += ld(p + (r + 1) * stride + u); }
        if (r < rows) a += ld(p + r * stride + u);
    } else {
        for (; r < rows; r++) a += ldn(p + r * stride, u, n);
    }
    st(out, a + b);
}

/* packing. A panel holds, for each k, `columns` vectors side by side; one call fills one vector column:
 * dst[k * columns * VL + i] = src[i * unit + k * inner] for i < units, 0 beyond */
NOINLINE void pack_column(T *dst, long columns, const T *src, long unit, long inner, long units, long K) {
    long step = columns * VL;
    if (unit == 1) {
        for (long k = 0; k < K; k++) st(dst + k * step, ldn(src + k * inner, 0, units));
        return;
    }
    if (units < VL) for (long k = 0; k < K; k++) st(dst + k * step, (V){0});
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
    if (VL > 1 && count <= WIDE / 2 && stride >= WIDE)
        for (; k + 2 < K; k++) memcpy(dst + k * count, src + k * stride, 16);
    else if (VL > 1 && count <= WIDE && stride >= WIDE)
        for (; k + 4 < K; k++) memcpy(dst + k * count, src + k * stride, 32);
    for (; k < K; k++)
        for (long i = 0; i < count; i++) dst[k * count + i] = src[k * stride + i];
}

/* products with weights as they lie, for calls of so few rows that packing would cost more than it gains:
 * C[r, i] (+)= sum over k of A[r, k] W[i, k] for one vector of units; W's rows are dotted with A's */
SHARED void dots(long m, const T *A, long lda, const T *W, long ldw, long units, long K, T *C, long ldc, int acc) {
    long n = units < VL ? units : VL;
    if (!acc) for (long r = 0; r < m; r++) st(C + r * ldc, (V){0});
    for (long i = 0; i < n; i += 4) {
        long left = n - i;
        const T *w0 = W + i * ldw, *w1 = left > 1 ? w0 + ldw : w0, *w2 = left > 2 ? w1 + ldw : w0, *w3 = left > 3 ? w2 + ldw : w0;
        for (long r = 0; r < m; r++) {
            const T *a = A + r * lda;
            V s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
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
/* the same as a triple loop: one sum at a time */
SHARED void plain_dots(long m, const T *A, long lda, const T *W, long ldw, long units, long K, T *C, long ldc, int acc) {
    if (!acc) for (long r = 0; r < m; r++) st(C + r * ldc, (V){0});
    for (long r = 0; r < m; r++)
        for (long i = 0; i < (units < VL ? units : VL); i++) {
            const T *a = A + r * lda, *w = W + i * ldw;
            V s = {0};
            long k = 0;
            for (; k + VL <= K; k += VL) s += ld(a + k) * ld(w + k);
            if (k < K) s += ldn(a, k, K) * ldn(w, k, K);
            C[r * ldc + i] += total_of(s);
        }
}
/* C[r, i] (+)= sum over k of A[r, k] W[k, i]: rows of W are scaled and added */
SHARED void scaled_rows(long m, const T *A, long lda, const T *W, long ldw, long units, long K, T *C, long ldc, int acc) {
    for (long r = 0; r < m; r++) {
        V s = acc ? ld(C + r * ldc) : (V){0};
        for (long k = 0; k < K; k++) s += A[r * lda + k] * ldn(W + k * ldw, 0, units);
        st(C + r * ldc, s);
    }
}

/* workers: the process's one OpenMP pool (torch's own), found at run time and handed in once */
parallel_fn run_parallel;
number_fn thread_number, thread_count;
__attribute__((visibility("default"))) void elman_threads(void *parallel, void *number, void *count) {
    run_parallel = (parallel_fn)parallel;
    thread_number = (number_fn)number;
    thread_count = (number_fn)count;
}
#if defined(__x86_64__)
#define RELAX() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define RELAX() __asm__ volatile("isb") /* some tens of cycles, as x86's pause; yield takes one on most cores */
#else
#define RELAX() ((void)0)
#endif
/* spin first, then give the core away, so that an oversubscribed machine goes on */
SHARED void wait_for(const volatile long *count, long enough) {
    for (long spins = 0; __atomic_load_n(count, __ATOMIC_ACQUIRE) < enough; spins++) {
        if (spins < 500) RELAX();
        else sched_yield();
    }
}
SHARED void barrier_all(Worker *w) {
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
/* calls side by side on the threads of one pool. Teams of workers take the calls in turn, each team in
 * the order of the calls, and a call waits for earlier ones only: however few threads there are, the first
 * call that is not done goes on */
typedef struct { Task *items; long count; } Tasks;
static void tasks_enter(void *p) {
    Tasks *tasks = p;
    long threads = thread_count(), id = thread_number(), team = tasks->items->call->workers;
    if (team > threads) team = threads;
    long teams = threads / team;
    const unsigned mode = flush_small();
    for (long k = id / team; k < tasks->count && id < team * teams; k += teams) {
        Head *call = tasks->items[k].call;
        Worker w = {call->flags, id % team, team, 0};
        long start = without_core();
        tasks->items[k].run(call, &w);
        call->flags[w.id].stolen = without_core() - start;
    }
    restore(mode);
}
/* run calls whose workspace is at hand, as many at once as there are threads for; returns for how long a
 * worker had no core to run on, less an eighth of the time taken (us) */
SHARED long run_tasks(Task *items, long count, long threads) {
    for (long k = 0; k < count; k++) {
        items[k].prepare(items[k].call);
        memset(items[k].call->flags, 0, items[k].call->workers * sizeof(Flag));
    }
    if (threads == 1 || !run_parallel) {
        const unsigned mode = flush_small();
        for (long k = 0; k < count; k++) {
            Worker w = {items[k].call->flags, 0, 1, 0};
            items[k].run(items[k].call, &w);
        }
        restore(mode);
        return 0;
    }
    Tasks tasks = {items, count};
    long start = nanoseconds(CLOCK_MONOTONIC), most = 0;
    run_parallel(tasks_enter, &tasks, threads, 0);
    long elapsed = nanoseconds(CLOCK_MONOTONIC) - start;
    for (long k = 0; k < count; k++)
        for (long i = 0; i < items[k].call->workers; i++)
            if (items[k].call->flags[i].stolen > most) most = items[k].call->flags[i].stolen;
    return (most - elapsed / 8) / 1000;
}
__attribute__((visibility("default"))) long elman_launch_tasks(Task *items, long count, long threads) {
    return run_tasks(items, count, threads);
}

SHARED void copy_in(T *to, const T *from, long n) {
    for (long u = 0; u < n; u += VL) st(to + u, from ? ldn(from, u, n) : (V){0});
}
/* this worker's vectors of a block of weights into the panels of a product (products.py): it is summed into
 * accumulator `acc` of `accs`, and `done` of `total` k stand before it */
SHARED void pack_block(const Worker *w, T *pack, long vectors, long width, long accs, long acc, long total, long done,
                       const T *src, long unit, long inner, long size, long K) {
    for (long v = share(vectors, w->id, w->workers); v < share(vectors, w->id + 1, w->workers); v++) {
        long p = v / width, nv = vectors - p * width < width ? vectors - p * width : width;
        long column = acc * nv + v % width, group = column / WIDEST, columns = accs * nv - group * WIDEST;
        if (columns > WIDEST) columns = WIDEST;
        T *panel = pack + (p * width * accs + group * WIDEST) * total * VL;
        pack_column(panel + (done * columns + column % WIDEST) * VL, columns, src + v * VL * unit, unit, inner,
                    size - v * VL, K);
    }
}
/* this worker's vectors of a right operand, rows of memory, into panels of WIDEST vectors */
SHARED void pack_right(const Worker *w, T *dst, const T *src, long stride, long vectors, long units, long rows) {
    for (long v = share(vectors, w->id, w->workers); v < share(vectors, w->id + 1, w->workers); v++) {
        long p = v / WIDEST, columns = vectors - p * WIDEST;
        if (columns > WIDEST) columns = WIDEST;
        pack_column(dst + p * WIDEST * VL * rows + v % WIDEST * VL, columns, src + v * VL, 1, stride, units - v * VL, rows);
    }
}
/* this worker's vectors of a sum over rows */
SHARED void column_sums(const Worker *w, const T *src, long stride, long vectors, long units, long rows, T *out, int acc) {
    for (long v = share(vectors, w->id, w->workers); v < share(vectors, w->id + 1, w->workers); v++)
        column_sum(src, stride, rows, v * VL, units, out + v * VL, acc);
}
/* this worker's rows of a weight's gradient, whole tiles; `turn` deals the shares anew, so that not always the same worker has
 * the largest */
typedef struct { long begin, end; } Share;
static Share tiles_of(const Worker *w, long turn, long size, long most) {
    long tiles = (size + most - 1) / most, id = (w->id + turn) % w->workers;
    long begin = share(tiles, id, w->workers) * most, end = share(tiles, id + 1, w->workers) * most;
    return (Share){begin, end < size ? end : size};
}
/* C (+)= the sum over rows of left's units times right's */
SHARED void add_outer(const Worker *w, long turn, const T *left, long left_row, long size, long most, const T *right, long right_row,
                      long vectors, long rows, long block, T *C, long ldc, int acc, Across *full, Across *rest) {
    Share own = tiles_of(w, turn, size, most);
    long m0 = own.begin, m1 = own.end, whole = vectors / WIDEST, last = vectors % WIDEST;
    for (long p = 0; p < whole + (last > 0); p++) {
        long step = right_row >= 0 ? right_row : (p < whole ? WIDEST : last) * VL;
        const T *panel = right + p * WIDEST * VL * (right_row >= 0 ? 1 : rows);
        for (long k = 0; k < rows; k += block)
            (p < whole ? full : rest)(m1 - m0, left + m0 + k * left_row, left_row, panel + k * step, step, rows - k < block ? rows - k : block,
                                      C + m0 * ldc + p * WIDEST * VL, ldc, acc || k > 0);
    }
}
SHARED void plain_outer(const Worker *w, const T *left, long left_row, long size, const T *right, long right_row, long units,
                        long rows, T *C, long ldc, int acc) {
    for (long i = share(size, w->id, w->workers); i < share(size, w->id + 1, w->workers); i++)
        for (long u = 0; u < units; u += VL) {
            V s = acc ? ldn(C + i * ldc, u, units) : (V){0};
            for (long r = 0; r < rows; r++) s += left[r * left_row + i] * ldn(right + r * right_row, u, units);
            stn(C + i * ldc, u, units, s);
        }
}
