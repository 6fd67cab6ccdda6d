/* where the rows of a call lie. They are those of step 0, then of step 1 and so on. A ragged batch (rows is
 * set) is sorted by length, longest first, and packed: sizes fall. rows has the first row of each step and
 * the end of the last one, then the cuts between shares of samples. In memory, the states that come out of
 * step t lie a whole batch behind the step's rows, those that go into the first step before them. A state
 * that only holds a value (its ring is 0) has one row per sample. */
INLINE long first_row(const C *c, long t) { return c->rows ? c->rows[t] : t * c->B; }
INLINE long size_at(const C *c, long t) { return c->rows ? c->rows[t + 1] - c->rows[t] : c->B; }
UNUSED INLINE long in_row(const C *c, long t, long step, long row) {
    return c->rows ? c->rows[t] * row : t * step;
}
INLINE long state_row(const C *c, long t, long ring) {
    if (!ring) return 0;
    return c->rows ? (t ? c->B + c->rows[t - 1] : 0) : (t & ring) * c->B;
}
INLINE long cut(const C *c, long s, long shares) {
    return c->rows && shares > 1 ? c->rows[c->T + 1 + s] : share(c->B, s, shares);
}
/* the states that go into the steps of a chunk, as rows of the chunk, where they do not lie so */
UNUSED static void gather(const C *c, const Worker *w, long t0, long n) {
    for (long t = t0 + w->id; t < t0 + n; t += w->workers)
        for (long i = 0; i < STATES; i++) {
            long width = state_width[i];
            if (!c->rows && c->ring[i]) continue;
            memcpy(c->prev[i] + (first_row(c, t) - first_row(c, t0)) * width,
                   c->st[i] + state_row(c, t, c->ring[i]) * width, sizeof(T) * size_at(c, t) * width);
        }
}
/* each sequence's states after its own last step */
UNUSED static void last_states(C *c) {
    for (long i = 0; i < STATES; i++)
        for (long t = c->T - 1, b = 0; t >= 0 && b < c->B; t--) {
            long end = size_at(c, t), width = state_width[i];
            const T *from = c->st[i] + (state_row(c, t + 1, c->ring[i]) + b) * width;
            if (end > b) memcpy(c->last[i] + b * width, from, sizeof(T) * (end - b) * width);
            b = end;
        }
}
