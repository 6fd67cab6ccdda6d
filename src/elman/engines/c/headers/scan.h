/* Linear recurrences y[t] = A[t] y[t-1] + b[t] over t, and their backward. Stands on runtime.h.
 *
 * Channels lie side by side: A is [T, n, n, N], y and b are [T, n, N]. Each thread takes a range of channels
 * through all steps, a row of vectors at a time, so that every array is read or written once. With too few
 * channels for all threads, n = 1 is cut in time: the first piece is twice as long, because the others are
 * walked through twice, first for what they make of any start, then for the values.
 * Dense systems are [T, N, n, n] and [T, N, n]; each thread takes samples. */
enum { SMALL = 8 }; /* units up to which a product is written out */
typedef struct {
    long T, N, n, pieces, workers;
    const Real *A, *b, *y0, *y, *dy;
    Real *out, *d_A, *d_b, *d_y0, *ends;
} Scan;

static void row(const Scan *s, long t, const Real *before, long c0, long c1) {
    long n = s->n, N = s->N;
    const Real *A = s->A + t * n * n * N, *b = s->b + t * n * N;
    Real *y = s->out + t * n * N;
    if (n == 1) {
        long c = c0;
        for (; c + VL <= c1; c += VL) st(y + c, ld(A + c) * ld(before + c) + ld(b + c));
        for (; c < c1; c++) y[c] = A[c] * before[c] + b[c];
        return;
    }
    for (long i = 0; i < n; i++) {
        const Real *a = A + i * n * N;
        long c = c0;
        for (; c + VL <= c1; c += VL) {
            V total = ld(b + i * N + c);
            for (long j = 0; j < n; j++) total += ld(a + j * N + c) * ld(before + j * N + c);
            st(y + i * N + c, total);
        }
        for (; c < c1; c++) {
            Real total = b[i * N + c];
            for (long j = 0; j < n; j++) total += a[j * N + c] * before[j * N + c];
            y[i * N + c] = total;
        }
    }
}
static const Real *before_of(const Scan *s, long t, const Real *start) {
    return t ? s->out + (t - 1) * s->n * s->N : start;
}
/* piece k of the steps; the first is two shares long */
static long edge(const Scan *s, long k) { return k ? s->T * (k + 1) / (s->pieces + 1) : 0; }
/* what a piece makes of a start y: ends[0] y + ends[1] */
static void summary(const Scan *s, long k, long c0, long c1) {
    Real *scale = s->ends + 2 * k * s->N, *rest = scale + s->N;
    for (long c = c0; c < c1; c++) { scale[c] = 1; rest[c] = 0; }
    for (long t = edge(s, k); t < edge(s, k + 1); t++) {
        const Real *A = s->A + t * s->N, *b = s->b + t * s->N;
        for (long c = c0; c < c1; c++) { scale[c] *= A[c]; rest[c] = A[c] * rest[c] + b[c]; }
    }
}
static void pieces_first(void *p) {
    const Scan *s = p;
    for (long k = thread_number(); k < s->pieces; k += thread_count()) {
        if (k) { summary(s, k, 0, s->N); continue; }
        for (long t = 0; t < edge(s, 1); t++) row(s, t, before_of(s, t, s->y0), 0, s->N);
    }
}
static void pieces_rest(void *p) {
    const Scan *s = p;
    for (long k = 1 + thread_number(); k < s->pieces; k += thread_count())
        for (long t = edge(s, k); t < edge(s, k + 1); t++)
            row(s, t, t == edge(s, k) ? s->ends + 2 * k * s->N : before_of(s, t, 0), 0, s->N);
}
static void channels(void *p) {
    const Scan *s = p;
    long id = thread_number(), all = thread_count(), wide = (s->N + VL - 1) / VL;
    long c0 = wide * id / all * VL, c1 = wide * (id + 1) / all * VL;
    if (c1 > s->N) c1 = s->N;
    if (c0 < c1)
        for (long t = 0; t < s->T; t++) row(s, t, before_of(s, t, s->y0), c0, c1);
}
/* samples [i0, i1), all of a step before those of the next, so that arrays are streamed; n is a constant where
 * it is small */
INLINE void samples_of(const Scan *s, long i0, long i1, long n) {
    for (long t = 0; t < s->T; t++) {
        const Real *before = before_of(s, t, s->y0);
        for (long i = i0; i < i1; i++) {
            const Real *A = s->A + (t * s->N + i) * n * n, *x = before + i * n, *b = s->b + (t * s->N + i) * n;
            Real *y = s->out + (t * s->N + i) * n;
            if (n > SMALL) {
                memcpy(y, b, n * sizeof(Real));
                for (long u = 0; u < n; u += VL) dots(1, x, n, A + u * n, n, n - u, n, y + u, n, 1);
                continue;
            }
            for (long r = 0; r < n; r++) {
                Real total = b[r];
                for (long k = 0; k < n; k++) total += A[r * n + k] * x[k];
                y[r] = total;
            }
        }
    }
}
INLINE void samples_back(const Scan *s, long i0, long i1, long n) {
    for (long t = s->T - 1; t >= 0; t--) {
        const Real *before = t ? s->y + (t - 1) * s->N * n : s->y0;
        for (long i = i0; i < i1; i++) {
            long at = t * s->N + i, next = at + s->N;
            Real *d = s->d_b + at * n, *d_A = s->d_A + at * n * n;
            const Real *x = before + i * n;
            for (long k = 0; k < n; k++) d[k] = s->dy[at * n + k];
            if (t + 1 < s->T)
                for (long r = 0; r < n; r++) {
                    const Real *A = s->A + (next * n + r) * n, later = s->d_b[next * n + r];
                    for (long k = 0; k < n; k++) d[k] += A[k] * later;
                }
            for (long r = 0; r < n; r++)
                for (long k = 0; k < n; k++) d_A[r * n + k] = d[r] * x[k];
            if (t) continue;
            for (long k = 0; k < n; k++) {
                Real total = 0;
                for (long r = 0; r < n; r++) total += s->A[(i * n + r) * n + k] * d[r];
                s->d_y0[i * n + k] = total;
            }
        }
    }
}
#define BY_SIZE(work, s, i0, i1) \
    switch ((s)->n) { \
    case 1: work(s, i0, i1, 1); break; \
    case 2: work(s, i0, i1, 2); break; \
    case 3: work(s, i0, i1, 3); break; \
    case 4: work(s, i0, i1, 4); break; \
    case 8: work(s, i0, i1, 8); break; \
    default: work(s, i0, i1, (s)->n); \
    }
static void samples(void *p) {
    const Scan *s = p;
    long id = thread_number(), all = thread_count(), i0 = s->N * id / all, i1 = s->N * (id + 1) / all;
    BY_SIZE(samples_of, s, i0, i1)
}
static void samples_backward(void *p) {
    const Scan *s = p;
    long id = thread_number(), all = thread_count(), i0 = s->N * id / all, i1 = s->N * (id + 1) / all;
    BY_SIZE(samples_back, s, i0, i1)
}
INLINE void channels_back(const Scan *s, long c0, long c1, long n) {
    long N = s->N;
    for (long t = s->T - 1; t >= 0; t--) {
        const Real *dy = s->dy + t * n * N, *before = t ? s->y + (t - 1) * n * N : s->y0;
        const Real *next = t + 1 < s->T ? s->A + (t + 1) * n * n * N : 0, *later = s->d_b + (t + 1) * n * N;
        Real *d_b = s->d_b + t * n * N, *d_A = s->d_A + t * n * n * N;
        long c = c0;
        for (; c + VL <= c1; c += VL) {
            for (long i = 0; i < n; i++) {
                V d = ld(dy + i * N + c);
                for (long j = 0; next && j < n; j++) d += ld(next + (j * n + i) * N + c) * ld(later + j * N + c);
                st(d_b + i * N + c, d);
                for (long j = 0; j < n; j++) st(d_A + (i * n + j) * N + c, d * ld(before + j * N + c));
            }
            for (long i = 0; !t && i < n; i++) {
                V d = {};
                for (long j = 0; j < n; j++) d += ld(s->A + (j * n + i) * N + c) * ld(d_b + j * N + c);
                st(s->d_y0 + i * N + c, d);
            }
        }
        for (; c < c1; c++) {
            for (long i = 0; i < n; i++) {
                Real d = dy[i * N + c];
                for (long j = 0; next && j < n; j++) d += next[(j * n + i) * N + c] * later[j * N + c];
                d_b[i * N + c] = d;
                for (long j = 0; j < n; j++) d_A[(i * n + j) * N + c] = d * before[j * N + c];
            }
            for (long i = 0; !t && i < n; i++) {
                Real d = 0;
                for (long j = 0; j < n; j++) d += s->A[(j * n + i) * N + c] * d_b[j * N + c];
                s->d_y0[i * N + c] = d;
            }
        }
    }
}
static void channels_backward(void *p) {
    const Scan *s = p;
    long id = thread_number(), all = thread_count(), wide = (s->N + VL - 1) / VL;
    long c0 = wide * id / all * VL, c1 = wide * (id + 1) / all * VL;
    if (c1 > s->N) c1 = s->N;
    BY_SIZE(channels_back, s, c0, c1)
}
typedef struct { void (*run)(void *); Scan *scan; } Part;
static void enter(void *p) {
    const Part *part = p;
    const unsigned mode = flush_small(); /* products of many factors fade */
    part->run(part->scan);
    restore(mode);
}
static void on_all(void (*run)(void *), Scan *s) {
    Part part = {run, s};
    if (s->workers > 1 && run_parallel) run_parallel(enter, &part, s->workers, 0);
    else enter(&part);
}
#define SHOWN __attribute__((visibility("default")))
SHOWN void elman_scan_channels(Scan *s) { on_all(channels, s); }
SHOWN void elman_scan_samples(Scan *s) { on_all(samples, s); }
SHOWN void elman_scan_samples_backward(Scan *s) { on_all(samples_backward, s); }
SHOWN void elman_scan_channels_backward(Scan *s) { on_all(channels_backward, s); }
SHOWN void elman_scan_pieces(Scan *s) {
    on_all(pieces_first, s);
    const Real *y = s->out + (edge(s, 1) - 1) * s->N;
    for (long k = 1; k < s->pieces; k++) { /* from what a piece makes of any start to its start */
        Real *scale = s->ends + 2 * k * s->N, *rest = scale + s->N;
        for (long c = 0; c < s->N; c++) {
            Real start = y[c];
            rest[c] += scale[c] * start;
            scale[c] = start;
        }
        y = rest;
    }
    on_all(pieces_rest, s);
}
