/* reductions over the units of some arrays: one sum over lanes at the end; what fills no vector is
   counted from n, since of a loop that goes on from u gcc 12 warns that it might overflow */
SHARED T sum_of(const Units *arrays, long count) {
    V even = {0}, odd = {0};
    T rest = 0;
    for (long i = 0; i < count; i++) {
        const T *p = arrays[i].p;
        long u = 0, n = arrays[i].n;
        for (; u + 2 * VL <= n; u += 2 * VL) { even += ld(p + u); odd += ld(p + u + VL); }
        for (; u + VL <= n; u += VL) even += ld(p + u);
        for (u = n - n % VL; u < n; u++) rest += p[u];
    }
    return total_of(even + odd) + rest;
}
SHARED T square_of(const Units *arrays, long count, T mean) {
    V even = {0}, odd = {0};
    T rest = 0;
    for (long i = 0; i < count; i++) {
        const T *p = arrays[i].p;
        long u = 0, n = arrays[i].n;
        for (; u + 2 * VL <= n; u += 2 * VL) {
            V d = ld(p + u) - mean, e = ld(p + u + VL) - mean;
            even += d * d; odd += e * e;
        }
        for (; u + VL <= n; u += VL) { V d = ld(p + u) - mean; even += d * d; }
        for (u = n - n % VL; u < n; u++) { T d = p[u] - mean; rest += d * d; }
    }
    return total_of(even + odd) + rest;
}
SHARED T amax_of(const Units *arrays, long count) {
    T best = -(T)INFINITY;
    for (long i = 0; i < count; i++) {
        const T *p = arrays[i].p;
        for (long u = 0; u < arrays[i].n; u++) best = p[u] > best || p[u] != p[u] ? p[u] : best;
    }
    return best;
}
/* the number of the first that is largest, counted over all arrays; NaN is the largest */
SHARED T argmax_of(const Units *arrays, long count) {
    T best = 0;
    long place = 0, at = 0;
    for (long i = 0; i < count; i++) {
        const T *p = arrays[i].p;
        for (long u = 0; u < arrays[i].n; u++, at++)
            if (!at || p[u] > best || (p[u] != p[u] && best == best)) { best = p[u]; place = at; }
    }
    return (T)place;
}
