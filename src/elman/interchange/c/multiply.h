/* y [m, n] = a b, of a [m, k] and b [k, n], which have any strides. */
static inline UNUSED void multiply(long m, long k, long n, T *y, const T *a, long ai, long ak,
                                   const T *b, long bk, long bj) {
    for (long i = 0; i < m; i++, a += ai, y += n) {
        long u = 0;
        for (; bj == 1 && u + LANES <= n; u += LANES) {
            V sum = {0};
            for (long p = 0; p < k; p++) sum += a[p * ak] * ld(b + p * bk + u);
            st(y + u, sum);
        }
        for (; u < n; u++) {
            T sum = 0;
            for (long p = 0; p < k; p++) sum += a[p * ak] * b[p * bk + u * bj];
            y[u] = sum;
        }
    }
}
