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
/* four elements of a vector */
typedef T Q __attribute__((vector_size(4 * sizeof(T)), aligned(sizeof(T)), may_alias));
/* keep in a register what several operations read: gcc takes an operand in memory for free */
#if defined(__x86_64__)
#define KEEP(x) __asm__("" : "+v"(x))
#elif defined(__aarch64__)
#define KEEP(x) __asm__("" : "+w"(x))
#else
#define KEEP(x) (void)0
#endif
INLINE long lesser_of(long a, long b) { return a < b ? a : b; }
