/* Operands in pairs (dot.h, pairs.h). After runtime.c. */
/* two vectors as pairs: of neighbours in memory, the first vector's first; or lane by lane */
#ifdef __AVX512BF16__
INLINE V in_order(V first, V second) { return (V)(__m512i)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first); }
INLINE V across_lanes(V even, V odd) {
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                           21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return (V)_mm512_permutexvar_epi16(order, (__m512i)in_order(even, odd));
}
#else
/* numbers in the upper halves, to nearest, ties to even; NaN stays NaN */
INLINE Word rounded(V x) {
    Word bits = (Word)x, nan = (Word)(x != x);
    return (~nan & (bits + 0x7fffu + (bits >> 16 & 1u))) | (nan & (bits | 0x400000u));
}
INLINE V across_lanes(V even, V odd) { return (V)(rounded(even) >> 16 | (rounded(odd) & 0xffff0000u)); }
INLINE V in_order(V first, V second) { return across_lanes(EVEN(first, second), ODD(first, second)); }
#endif
/* two vectors of neighbours from k on, of K numbers */
INLINE V paired(const T *p, long k, long K) { return in_order(ldn(p, k, K), ldn(p, k + VL, K)); }
SHARED void round_rows(long m, const T *A, long lda, long K, T *to, long row) {
    for (long r = 0; r < m; r++, A += lda, to += row) {
        for (long k = 0; k < K; k += 2 * VL) stn(to, k / 2, (K + 1) / 2, paired(A, k, K));
    }
}
/* neighbouring rows of one vector column as pairs, `step` elements apart */
NOINLINE void pair_column(T *dst, long step, const T *src, long stride, long units, long rows) {
    for (long k = 0; k < rows; k += 2, dst += step, src += 2 * stride)
        st(dst, across_lanes(ldn(src, 0, units), k + 1 < rows ? ldn(src + stride, 0, units) : (V){0}));
}
/* a vector of units at a time, and so many k of it that their pairs stay in the nearest cache */
SHARED void pack_pairs(const Worker *w, T *pack, long vectors, long width, long accs, long acc, long total, long done,
                       const T *src, long unit, long inner, long size, long K) {
    enum { PAIRS = 128 };
    T pairs[VL * PAIRS] __attribute__((aligned(64)));
    for (long v = share(vectors, w->id, w->workers); v < share(vectors, w->id + 1, w->workers); v++) {
        const Worker one = {w->flags, v, vectors, 0};
        long units = size - v * VL, row = unit == 1 ? VL : PAIRS, step = unit == 1 ? 1 : PAIRS;
        for (long k = 0; k < K; k += 2 * PAIRS) {
            long left = K - k < 2 * PAIRS ? K - k : 2 * PAIRS;
            const T *from = src + v * VL * unit + k * inner;
            if (unit == 1) pair_column(pairs, VL, from, inner, units, left);
            else round_rows(units < VL ? units : VL, from, unit, left, pairs, PAIRS);
            pack_block(&one, pack, vectors, width, accs, acc, total, done + k / 2,
                       (const T *)((uintptr_t)pairs - (uintptr_t)(v * VL * step) * sizeof(T)), step, unit == 1 ? row : 1, size,
                       (left + 1) / 2);
        }
    }
}
SHARED void pair_rows(const Worker *w, T *dst, long row, const T *src, long stride, long vectors, long units, long rows) {
    for (long v = share(vectors, w->id, w->workers); v < share(vectors, w->id + 1, w->workers); v++)
        pair_column(dst + v * VL, row, src + v * VL, stride, units - v * VL, rows);
}
SHARED void pair_panels(const Worker *w, T *dst, const T *src, long stride, long vectors, long units, long rows) {
    for (long v = share(vectors, w->id, w->workers); v < share(vectors, w->id + 1, w->workers); v++) {
        long first = v / WIDEST * WIDEST, columns = vectors - first < WIDEST ? vectors - first : WIDEST;
        pair_column(dst + (first * ((rows + 1) / 2) + v - first) * VL, columns * VL, src + v * VL, stride, units - v * VL, rows);
    }
}
SHARED void round_left(const Worker *w, T *dst, long row, const T *src, long stride, long vectors, long units, long rows) {
    for (long r = share(rows, w->id, w->workers); r < share(rows, w->id + 1, w->workers); r++)
        for (long v = 0; v < vectors; v++)
            st(dst + r * row + v * VL, half(across_lanes(ldn(src + r * stride, v * VL, units), (V){0}), 0));
}
SHARED void paired_dots(long m, const T *A, long lda, const T *W, long ldw, long units, long K, T *C, long ldc, int acc) {
    long n = units < VL ? units : VL;
    if (!acc) for (long r = 0; r < m; r++) st(C + r * ldc, (V){0});
    for (long i = 0; i < n; i += 4) {
        long left = n - i;
        const T *w0 = W + i * ldw, *w1 = left > 1 ? w0 + ldw : w0, *w2 = left > 2 ? w1 + ldw : w0, *w3 = left > 3 ? w2 + ldw : w0;
        for (long r = 0; r < m; r++) {
            const T *a = A + r * lda;
            V s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
            for (long k = 0; k < K; k += 2 * VL) {
                V x = paired(a, k, K);
                s0 = dot(s0, x, paired(w0, k, K)); s1 = dot(s1, x, paired(w1, k, K));
                s2 = dot(s2, x, paired(w2, k, K)); s3 = dot(s3, x, paired(w3, k, K));
            }
            T sums[4] = {total_of(s0), total_of(s1), total_of(s2), total_of(s3)};
            T *c = C + r * ldc + i;
            for (long j = 0; j < (left < 4 ? left : 4); j++) c[j] += sums[j];
        }
    }
}
SHARED void paired_scaled_rows(long m, const T *A, long lda, const T *W, long ldw, long units, long K, T *C, long ldc, int acc) {
    for (long r = 0; r < m; r++, A += lda, C += ldc) {
        V s = acc ? ld(C) : (V){0};
        for (long k = 0; k < K; k += 2) {
            V even = ldn(W + k * ldw, 0, units), odd = k + 1 < K ? ldn(W + (k + 1) * ldw, 0, units) : (V){0};
            s = dot(s, across_lanes(bc(A[k]), bc(k + 1 < K ? A[k + 1] : 0)), across_lanes(even, odd));
        }
        st(C, s);
    }
}
