/* of parts over matrices per sample: 0 in place of what lies behind the last column */
INLINE V lanes_before(V x, long n) {
    V y = {0};
    for (long i = 0; i < VL && i < n; i++) LANE(y, i) = LANE(x, i);
    return y;
}
INLINE long lesser_of(long a, long b) { return a < b ? a : b; }
