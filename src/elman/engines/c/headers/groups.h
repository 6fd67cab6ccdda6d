/* Vectors of what reads other units than their own. After the reductions of runtime.h. */
/* a number per group at units from u on; lanes behind the last unit have the last group's */
INLINE long group_of(long u, long groups, long width) { return u / width < groups ? u / width : groups - 1; }
INLINE V spread_of(const T *p, long u, long groups, long width) {
    if (width % VL == 0) return bc(p[u / width]);
    V x = {0};
    for (int i = 0; i < VL; i++) LANE(x, i) = p[group_of(u + i, groups, width)];
    return x;
}
/* 1 at the unit of each group that has its number, counted from `before`, else 0 */
INLINE V one_hot_of(const T *p, long u, long groups, long width, long before) {
    V x = {0};
    for (int i = 0; i < VL; i++) {
        long group = group_of(u + i, groups, width);
        LANE(x, i) = p[group] == (T)(before + u + i - group * width);
    }
    return x;
}
/* n units at those from `first` on of a longer vector, -0 elsewhere; and n units of it from there */
INLINE V place_of(const T *p, long u, long n, long first) {
    if (u >= first && u + VL <= first + n) return ld(p + (u - first));
    V x = bc(-(T)0);
    for (int i = 0; i < VL; i++)
        if (u + i >= first && u + i < first + n) LANE(x, i) = p[u + i - first];
    return x;
}
INLINE V cut_of(const T *p, long u, long n, long first) { return ldn(p + first, u, n); }
/* over groups of `width` neighbours: those of the groups from u on, of which there are `groups` */
#define GROUPED(name, text)                                                                            \
    INLINE V name(const T *p, long u, long groups, long width) {                                       \
        V x = {0};                                                                                     \
        for (int i = 0; i < VL && u + i < groups; i++) {                                               \
            const Units own = {p + (u + i) * width, width};                                            \
            LANE(x, i) = text;                                                                         \
        }                                                                                              \
        return x;                                                                                      \
    }
/* sums of the first of n units to each of those from u on, and of each of them to the last of all */
INLINE V sums_to(const T *p, long u, long n) {
    const Units before = {p, u};
    T s = sum_of(&before, 1);
    V x = {0};
    for (int i = 0; i < VL && u + i < n; i++) { s += p[u + i]; LANE(x, i) = s; }
    return x;
}
INLINE V sums_from(const T *p, long u, long n) {
    const long end = u + VL < n ? u + VL : n;
    const Units after = {p + end, n - end};
    T s = sum_of(&after, 1);
    V x = {0};
    for (long k = end - 1; k >= u; k--) { s += p[k]; LANE(x, k - u) = s; }
    return x;
}
