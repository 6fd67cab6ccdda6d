/* of parts over matrices per sample: 0 in place of what lies behind the last column */
INLINE V lanes_before(V x, long n) {
    V y = {0};
    for (long i = 0; i < VL && i < n; i++) LANE(y, i) = LANE(x, i);
    return y;
}
/* n elements of a column, from row u on, and 0 behind them */
INLINE V strided(const T *p, long step, long u, long n) {
    V y = {0};
    for (long i = 0; i < VL && u + i < n; i++) LANE(y, i) = p[(u + i) * step];
    return y;
}
INLINE long lesser_of(long a, long b) { return a < b ? a : b; }
