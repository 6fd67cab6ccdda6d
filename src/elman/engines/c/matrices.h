/* of parts over matrices per sample: what lies behind the last column takes no part in a reduction */
INLINE V lanes_before(V x, long n, V empty) {
    V y = empty;
    for (long i = 0; i < VL && i < n; i++) LANE(y, i) = LANE(x, i);
    return y;
}
INLINE T largest_of(V v) {
    T best = LANE(v, 0);
    for (long i = 1; i < VL; i++) {
        T x = LANE(v, i);
        best = x > best || x != x ? x : best;
    }
    return best;
}
INLINE T larger_of(T a, T b) { return b > a || b != b ? b : a; }
INLINE long lesser_of(long a, long b) { return a < b ? a : b; }
