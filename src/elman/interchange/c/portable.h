/* Vectors V of LANES numbers T, or numbers alone, in plain C99: no library, no allocation, no global
 * state. With one lane any compiler takes it; more lanes are gcc's and clang's vector extensions.
 */
#ifdef __FAST_MATH__
#error "-ffast-math makes exp and tanh wrong: compile this file without it"
#endif
#ifdef __GNUC__
#define UNUSED __attribute__((unused)) /* clang warns of what a cell does not use */
#else
#define UNUSED
#endif
#if LANES > 1
#pragma GCC diagnostic ignored "-Wpsabi" /* all functions of vectors are inlined */
typedef T V __attribute__((vector_size(LANES * 4), may_alias));
typedef T VU __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int32_t M __attribute__((vector_size(LANES * 4), may_alias));
#define LANE(x, i) (x)[i]
#define INLINE static inline UNUSED __attribute__((always_inline))
INLINE V ld(const T *p) { return *(const VU *)p; }
INLINE void st(T *p, V v) { *(VU *)p = v; }
INLINE V bc(T x) { return x - (V){0}; }
INLINE M bits(V x) { return (M)x; }
INLINE V value(M m) { return (V)m; }
INLINE V pick(M m, V a, V b) { return (V)((m & (M)a) | (~m & (M)b)); }
#else
typedef T V;
typedef int32_t M;
#define LANE(x, i) (x)
#define INLINE static inline UNUSED
INLINE V ld(const T *p) { return *p; }
INLINE void st(T *p, V v) { *p = v; }
INLINE V bc(T x) { return x; }
INLINE M bits(V x) { union { T x; int32_t m; } u; u.x = x; return u.m; }
INLINE V value(M m) { union { T x; int32_t m; } u; u.m = m; return u.x; }
INLINE V pick(M m, V a, V b) { return m ? a : b; }
#endif
#define SHARED static inline
#define VL LANES

/* a vector at unit u of an array of n units: what lies behind the end is neither read nor written */
INLINE V ldn(const T *p, long u, long n) {
    T part[LANES] = {0};
    if (u + LANES <= n) return ld(p + u);
    for (int i = 0; i < LANES - 1; i++) if (u + i < n) part[i] = p[u + i];
    return ld(part);
}
INLINE void stn(T *p, long u, long n, V v) {
    T part[LANES];
    if (u + LANES <= n) { st(p + u, v); return; }
    st(part, v);
    for (int i = 0; i < LANES - 1; i++) if (u + i < n) p[u + i] = part[i];
}
INLINE T total_of(V v) {
    T sum = 0;
    for (int i = 0; i < LANES; i++) sum += LANE(v, i);
    return sum;
}
INLINE V v_sqrt(V x); /* of mathematics.h */
INLINE V far_turn(V x, int quarter);
INLINE V truth(M m) { return pick(m, bc(1), bc(0)); }
INLINE V v_abs(V x) { return value(bits(x) & ~bits(bc((T)-0.0f))); }
INLINE V lesser(V a, V b) { return pick(a < b, a, b); }
INLINE V larger(V a, V b) { return pick(a > b, a, b); }
typedef struct { const T *p; long n; } Units;
#define INFINITE (1e30f * 1e30f)
#ifndef INFINITY
#define INFINITY INFINITE
#define NAN (INFINITE - INFINITE)
#endif

/* y (+)= W v. W lies in tiles of up to TILE rows, each [K][its rows]; LANES numbers follow the last. */
#define TILE 64
INLINE void product(const T *w, long K, long N, const T *v, T *y, int more) {
    for (long n = 0; n < N; n += TILE, w += K * TILE) {
        long m = N - n < TILE ? N - n : TILE;
        long u = 0;
#if LANES > 1
        for (; u + 4 * LANES <= m; u += 4 * LANES) { /* four vectors of rows, two of k at once */
            V a = {0}, b = {0}, c = {0}, d = {0}, e = {0}, f = {0}, g = {0}, h = {0};
            const T *p = w + u;
            long k = 0;
            for (; k + 2 <= K; k += 2, p += 2 * m) {
                const T s = v[k], t = v[k + 1];
                a += s * ld(p); b += s * ld(p + LANES);
                c += s * ld(p + 2 * LANES); d += s * ld(p + 3 * LANES);
                e += t * ld(p + m); f += t * ld(p + m + LANES);
                g += t * ld(p + m + 2 * LANES); h += t * ld(p + m + 3 * LANES);
            }
            if (k < K) {
                const T s = v[k];
                a += s * ld(p); b += s * ld(p + LANES);
                c += s * ld(p + 2 * LANES); d += s * ld(p + 3 * LANES);
            }
            T *at = y + n + u;
            a += e; b += f; c += g; d += h;
            if (more) { a += ld(at); b += ld(at + LANES); c += ld(at + 2 * LANES); d += ld(at + 3 * LANES); }
            st(at, a); st(at + LANES, b); st(at + 2 * LANES, c); st(at + 3 * LANES, d);
        }
        for (; u < m; u += LANES) { /* lanes beyond m read the next row, and are not stored */
            V a = {0}, b = {0}, c = {0}, d = {0};
            const T *p = w + u;
            long k = 0;
            for (; k + 4 <= K; k += 4, p += 4 * m) {
                a += v[k] * ld(p); b += v[k + 1] * ld(p + m);
                c += v[k + 2] * ld(p + 2 * m); d += v[k + 3] * ld(p + 3 * m);
            }
            for (; k < K; k++, p += m) a += v[k] * ld(p);
            a = (a + b) + (c + d);
            if (more) a += ldn(y + n, u, m);
            stn(y + n, u, m, a);
        }
#else
        const long fours = m - m % 4;
        for (; u < fours; u += 4) { /* four rows at once: their sums stay in registers */
            const T *p = w + u;
            T *at = y + n + u;
            T a = more ? at[0] : 0, b = more ? at[1] : 0, c = more ? at[2] : 0, d = more ? at[3] : 0;
            for (long k = 0; k < K; k++, p += m) {
                const T s = v[k];
                a += s * p[0]; b += s * p[1]; c += s * p[2]; d += s * p[3];
            }
            at[0] = a; at[1] = b; at[2] = c; at[3] = d;
        }
        for (long r = fours; r < m; r++) {
            const T *p = w + r;
            T a = more ? y[n + r] : 0;
            for (long k = 0; k < K; k++, p += m) a += v[k] * *p;
            y[n + r] = a;
        }
#endif
    }
}
