/* A decoder and its loss: elman/engines/cross_entropy.py has the formulas. After runtime.h, the tiles' heads and
 * the shuffles of tiles.py.
 *
 * Rows are taken some at a time, `chunk` of them. Rows lie in lanes: logits of a chunk are Z[v][row], so that W
 * is read as it lies, softmax has no sums over lanes, and a block of classes of Z is at once the panel of the
 * product for dx and the left operand of that for dW. Classes are cut into shares whatever the number of workers,
 * who take one after another: results do not depend on who was there.
 *
 * A block of classes is exponentiated while it is in cache, relative to its own largest logit; the rows' total
 * is known when all classes are done, so the factor between the two comes with the second reading of the block.
 *
 * With PAIRED the operands of all products are pairs of bfloat16 numbers (pairs.h): W and gradients by logits a block of
 * classes at a time, along what each product sums over; x once per chunk. */
enum { BLOCK = 128, INNER = 256, GRAIN = 8, WIDE = WIDEST * VL };
#if PAIRED
#define PACK_COLUMNS pack_pairs
#define PACK_ROWS pair_panels
#else
#define PACK_COLUMNS pack_block
#define PACK_ROWS pack_right
#endif
#ifdef ELMAN_F64
#define LOWEST (-1.7976931348623157e308)
#else
#define LOWEST (-3.4028234663852886e38f)
#endif
typedef struct {
    Head head;
    long N, H, V, chunk;
    double smoothing;
    const T *x, *weight, *bias, *scale;
    const int64_t *target;
    T *losses, *d_x, *d_weight, *d_bias;
    char *arena;
    /* areas of the arena */
    long padded;               /* rows of a chunk, in whole vectors */
    T *columns, *rows;         /* x as panels over rows, and over H */
    T *powers;                 /* [blocks of rows][V][lanes]; without gradients: a block of classes per worker */
    T *parts;                  /* of dx, per share: [blocks of rows][H][lanes] */
    T *tiles;                  /* per worker: a block of classes of W, as a left operand */
    T *top;                    /* per block of classes and row: the largest logit */
    T *most, *sum, *total;     /* per share and row: of its classes, the largest logit, sums of exp and of logits */
    T *left, *right;           /* per worker, if paired: a block of W or of gradients by logits, as an operand of a product */
    T *edge;                   /* per worker: what of dW fills no vectors */
    T *picked, *factor;        /* per row of the chunk: its target's logit, its scale */
    long *class;               /* and its target */
} Decoder;
typedef struct { long n0, rows, wide; } Chunk; /* first row, rows, these in whole vectors */

INLINE int learns(const Decoder *d) { return d->d_x || d->d_weight || d->d_bias; }
/* elements of K numbers that a product sums over */
INLINE long steps(long K) { return PAIRED ? (K + 1) / 2 : K; }
INLINE long in_vectors(long n) { return (n + VL - 1) / VL * VL; }
/* rows that are summed at once for dW: paired, gradients by logits of several blocks of rows are one operand */
enum { SPAN = PAIRED ? 4 * WIDE : WIDE };
/* elements of a block of W, or of gradients by logits, as a left operand in pairs */
INLINE long left_size(const Decoder *d) { return BLOCK / 2 * (d->H > SPAN ? in_vectors(d->H) : SPAN); }
UNUSED INLINE T *left_at(const Decoder *d, const Worker *w) { return d->left + w->id * left_size(d); }
static void *area(char *arena, long *used, long bytes) {
    void *p = arena ? arena + *used : 0;
    *used += (bytes + 63) / 64 * 64;
    return p;
}
/* the arena's areas; returns its size (bytes) */
static long place(Decoder *d, char *arena) {
    long used = 0, workers = d->head.workers, shares = d->head.shares, rows = d->padded = in_vectors(d->chunk), size = sizeof(T);
    d->head.flags = area(arena, &used, workers * sizeof(Flag));
    d->columns = area(arena, &used, rows * d->H * size);
    d->rows = area(arena, &used, d->d_weight ? d->chunk * in_vectors(d->H) * size : 0);
    d->powers = area(arena, &used, (learns(d) ? d->V * rows : workers * BLOCK * WIDE) * size);
    d->parts = area(arena, &used, d->d_x ? shares * d->H * rows * size : 0);
    d->tiles = area(arena, &used, d->d_x ? workers * BLOCK * d->H * size : 0);
    d->top = area(arena, &used, (d->V / BLOCK + shares + 1) * rows * size);
    d->most = area(arena, &used, shares * rows * size);
    d->sum = area(arena, &used, shares * rows * size);
    d->total = area(arena, &used, shares * rows * size);
    d->left = area(arena, &used, PAIRED ? workers * left_size(d) * size : 0);
    d->right = area(arena, &used, PAIRED && d->d_x ? workers * BLOCK / 2 * WIDE * size : 0);
    d->edge = area(arena, &used, workers * BLOCK * WIDE * size);
    d->picked = area(arena, &used, rows * size);
    d->factor = area(arena, &used, rows * size);
    d->class = area(arena, &used, rows * sizeof(long));
    return used;
}
/* vectors of the block of rows that begins at r0 */
INLINE long vectors_at(const Chunk *c, long r0) {
    long left = (c->wide - r0) / VL;
    return left < WIDEST ? left : WIDEST;
}
INLINE long first_class(const Decoder *d, long s) {
    long v = share((d->V + GRAIN - 1) / GRAIN, s, d->head.shares) * GRAIN;
    return v < d->V ? v : d->V;
}
static void by_rows(long vectors, long m, const T *A, long lda, const T *P, long K, T *C, long ldc, int acc) {
    switch (vectors) {
        case 1: rows1(m, A, lda, P, K, C, ldc, acc); break;
        case 2: rows2(m, A, lda, P, K, C, ldc, acc); break;
        case 3: rows3(m, A, lda, P, K, C, ldc, acc); break;
        default: rows4(m, A, lda, P, K, C, ldc, acc);
    }
}
static Outer *const by_tiles[] = {0, outer1, outer2, outer3, outer4};

/* x, targets and scales of a chunk, this worker's share of each */
static void pack(Decoder *d, const Worker *w, const Chunk *c) {
    long vectors = c->wide / VL, H = d->H;
    const T *x = d->x + c->n0 * H;
    PACK_COLUMNS(w, d->columns, vectors, WIDEST, 1, 0, steps(H), 0, x, H, 1, c->rows, H);
    if (d->d_weight) PACK_ROWS(w, d->rows, x, H, (H + VL - 1) / VL, H, c->rows);
    for (long r = share(vectors, w->id, w->workers) * VL; r < share(vectors, w->id + 1, w->workers) * VL; r++) {
        d->factor[r] = r < c->rows ? d->scale[c->n0 + r] : 0;
        d->class[r] = r < c->rows ? d->target[c->n0 + r] : -1;
    }
}

/* logits of m classes for a block of rows, without bias; A: of W, as an operand */
static void multiply(const Decoder *d, T *z, const T *A, long m, long r0, long vectors) {
    const T *P = d->columns + r0 * steps(d->H);
    long lanes = vectors * VL;
    for (long k = 0, K = steps(d->H), n; k < K; k += n) {
        long pieces = (K - k + INNER - 1) / INNER;
        n = (K - k + pieces - 1) / pieces;
        by_rows(vectors, m, A + k, K, P + k * lanes, n, z, lanes, k > 0);
    }
}
/* the block's logits become exp of less the largest, which is put into `top`; what is known of
 * the rows in this share is brought up to date */
static void exponentiate(const Decoder *d, long s, T *z, T *top, long v0, long m, long r0, long lanes) {
    long own = s * d->padded + r0;
    for (long i = 0; i < lanes; i += VL) {
        V best = bc(LOWEST), all = {0}, sum = {0};
        for (long v = 0; v < m; v++) {
            V x = ld(z + v * lanes + i);
            if (d->bias) x += d->bias[v0 + v];
            best = larger(best, x);
            all += x;
            st(z + v * lanes + i, x);
        }
        for (long j = i; j < i + VL; j++) {
            long v = d->class[r0 + j] - v0;
            if (v >= 0 && v < m) d->picked[r0 + j] = z[v * lanes + j];
        }
        for (long v = 0; v < m; v++) {
            V e = v_exp(ld(z + v * lanes + i) - best);
            st(z + v * lanes + i, e);
            sum += e;
        }
        V before = ld(d->most + own + i), now = larger(before, best);
        st(d->sum + own + i, ld(d->sum + own + i) * v_exp(before - now) + sum * v_exp(best - now));
        st(d->most + own + i, now);
        st(d->total + own + i, ld(d->total + own + i) + all);
        st(top + i, best);
    }
}
/* where a block of powers lies, and the largest logits that it is relative to */
INLINE T *powers_at(const Decoder *d, const Worker *w, long v0, long r0, long lanes) {
    return learns(d) ? d->powers + r0 * d->V + v0 * lanes : d->powers + w->id * BLOCK * WIDE;
}
INLINE T *top_at(const Decoder *d, long s, long v0, long r0) {
    return d->top + (v0 / BLOCK + s) * d->padded + r0;
}
/* softmax of a share of the classes, all rows of the chunk */
static void classify(Decoder *d, const Worker *w, const Chunk *c, long s) {
    long end = first_class(d, s + 1);
    for (long i = s * d->padded; i < s * d->padded + c->wide; i++) {
        d->most[i] = LOWEST;
        d->sum[i] = d->total[i] = 0;
    }
    for (long v0 = first_class(d, s); v0 < end; v0 += BLOCK) {
        long m = end - v0 < BLOCK ? end - v0 : BLOCK;
        const T *A = d->weight + v0 * d->H;
#if PAIRED
        round_rows(m, A, d->H, d->H, left_at(d, w), steps(d->H));
        A = left_at(d, w);
#endif
        for (long r0 = 0; r0 < c->wide; r0 += WIDE) {
            long vectors = vectors_at(c, r0);
            T *z = powers_at(d, w, v0, r0, vectors * VL);
            multiply(d, z, A, m, r0, vectors);
            exponentiate(d, s, z, top_at(d, s, v0, r0), v0, m, r0, vectors * VL);
        }
    }
}

/* of one vector of rows over all classes: the largest logit, the sum of exp of less it, the sum of logits */
typedef struct { V most, sum, total; } Softmax;
static Softmax gathered(const Decoder *d, long i) {
    Softmax s = {ld(d->most + i), {0}, {0}};
    for (long k = 1; k < d->head.shares; k++) s.most = larger(s.most, ld(d->most + k * d->padded + i));
    for (long k = 0; k < d->head.shares; k++) {
        s.sum += ld(d->sum + k * d->padded + i) * v_exp(ld(d->most + k * d->padded + i) - s.most);
        s.total += ld(d->total + k * d->padded + i);
    }
    return s;
}
static void lose(Decoder *d, const Chunk *c) {
    for (long i = 0; i < c->wide; i += VL) {
        Softmax s = gathered(d, i);
        V loss = s.most - ld(d->picked + i) * (T)(1 - d->smoothing);
        if (d->smoothing > 0) loss -= s.total * (T)(d->smoothing / d->V);
        stn(d->losses + c->n0, i, c->rows, loss + v_log(s.sum));
    }
}

/* powers of a block become gradients by its logits */
static void subtract(const Decoder *d, T *z, const T *top, long m, long v0, long r0, long lanes) {
    T by[WIDE], even[WIDE];
    for (long i = 0; i < lanes; i += VL) {
        Softmax s = gathered(d, r0 + i);
        V factor = ld(d->factor + r0 + i);
        st(by + i, v_exp(ld(top + i) - s.most) * factor / s.sum);
        st(even + i, factor * (T)(d->smoothing / d->V));
    }
    for (long v = 0; v < m; v++) /* memory in its order: the block has left the cache */
        for (long i = 0; i < lanes; i += VL) st(z + v * lanes + i, ld(z + v * lanes + i) * ld(by + i) - ld(even + i));
    for (long i = 0; i < lanes; i++) {
        long v = d->class[r0 + i] - v0;
        if (v >= 0 && v < m) z[v * lanes + i] -= (T)(1 - d->smoothing) * d->factor[r0 + i];
    }
}
/* dW of m classes (+)= z times x, of the rows since the last sum; columns that fill no vector go through a buffer */
static void add_weight(const Decoder *d, const Worker *w, const Chunk *c, const T *z, long v0, long m, long r0) {
    long H = d->H, all = (H + VL - 1) / VL, lanes = vectors_at(c, r0) * VL, row = lanes;
    long first = r0 / SPAN * SPAN, end = r0 + lanes < c->rows ? r0 + lanes : c->rows, K = end - first;
    int acc = c->n0 + first > 0;
    T *out = d->d_weight + v0 * H, *edge = d->edge + w->id * BLOCK * WIDE;
#if PAIRED
    row = SPAN / 2;
    round_rows(m, z, lanes, end - r0, left_at(d, w) + (r0 - first) / 2, row);
    if (end < c->rows && K < SPAN) return;
    z = left_at(d, w);
#endif
    for (long p = 0; p < all; p += WIDEST) {
        long columns = all - p < WIDEST ? all - p : WIDEST;
        const T *panel = d->rows + (p * steps(c->rows) + steps(first) * columns) * VL;
        if ((p + columns) * VL <= H) {
            by_rows(columns, m, z, row, panel, steps(K), out + p * VL, H, acc);
            continue;
        }
        by_rows(columns, m, z, row, panel, steps(K), edge, WIDE, 0);
        for (long v = 0; v < m; v++)
            for (long u = p * VL; u < H; u += VL) {
                V sum = ld(edge + v * WIDE + u - p * VL);
                if (acc) sum += ldn(out + v * H, u, H);
                stn(out + v * H, u, H, sum);
            }
    }
}
static void add_bias(const Decoder *d, const T *z, long v0, long m, long lanes, int acc) {
    for (long v = 0; v < m; v++) {
        V sum = ld(z + v * lanes);
        for (long i = VL; i < lanes; i += VL) sum += ld(z + v * lanes + i);
        d->d_bias[v0 + v] = (acc ? d->d_bias[v0 + v] : 0) + total_of(sum);
    }
}
/* m rows of W, `row` apart, as tiles [k][TILE], the left operand of a product over classes */
static void pack_tiles(T *to, const T *W, long row, long H, long m) {
    long whole = H / TILE, last = H % TILE;
    for (long k = 0; k < m; k++, W += row) {
        for (long t = 0; t < whole; t++) memcpy(to + (t * m + k) * TILE, W + t * TILE, TILE * sizeof(T));
        for (long i = 0; i < last; i++) to[whole * m * TILE + k * last + i] = W[whole * TILE + i];
    }
}
/* the same of m classes of W from v0; in pairs of classes if paired */
static void pack_weight(const Decoder *d, UNUSED const Worker *w, T *tiles, long v0, long m) {
    const T *W = d->weight + v0 * d->H;
    long row = d->H;
#if PAIRED
    const Worker one = {w->flags, 0, 1, 0};
    row = in_vectors(d->H);
    pair_rows(&one, left_at(d, w), row, W, d->H, row / VL, d->H, m);
    W = left_at(d, w);
#endif
    pack_tiles(tiles, W, row, d->H, steps(m));
}
/* parts of dx of a block of rows (+)= the tiles times z, of m classes */
static void add_input(const Decoder *d, UNUSED const Worker *w, const T *tiles, const T *z, T *part, long m, long vectors, int acc) {
#if PAIRED
    const Worker one = {w->flags, 0, 1, 0};
    T *right = d->right + w->id * BLOCK / 2 * WIDE;
    pair_panels(&one, right, z, vectors * VL, vectors, vectors * VL, m);
    z = right;
#endif
    by_tiles[vectors](d->H, tiles, steps(m), z, steps(m), part, vectors * VL, acc, 0);
}
/* gradients of the chunk, by a share of the classes */
static void learn(Decoder *d, const Worker *w, const Chunk *c, long s) {
    long begin = first_class(d, s), end = first_class(d, s + 1);
    T *parts = d->parts + s * d->H * d->padded, *tiles = d->tiles + w->id * BLOCK * d->H;
    if (d->d_x && begin == end) memset(parts, 0, d->H * c->wide * sizeof(T));
    for (long v0 = begin; v0 < end; v0 += BLOCK) {
        long m = end - v0 < BLOCK ? end - v0 : BLOCK;
        if (d->d_x) pack_weight(d, w, tiles, v0, m);
        for (long r0 = 0; r0 < c->wide; r0 += WIDE) {
            long vectors = vectors_at(c, r0), lanes = vectors * VL;
            T *z = powers_at(d, w, v0, r0, lanes);
            subtract(d, z, top_at(d, s, v0, r0), m, v0, r0, lanes);
            if (d->d_x) add_input(d, w, tiles, z, parts + r0 * d->H, m, vectors, v0 > begin);
            if (d->d_weight) add_weight(d, w, c, z, v0, m, r0);
            if (d->d_bias) add_bias(d, z, v0, m, lanes, c->n0 + r0 > 0);
        }
    }
}
/* dx of this worker's rows: the sum of all shares' parts, transposed */
static void add_parts(Decoder *d, const Worker *w, const Chunk *c) {
    T sums[VL * VL], transposed[VL * VL];
    for (long q = share(c->wide / VL, w->id, w->workers); q < share(c->wide / VL, w->id + 1, w->workers); q++) {
        long r0 = q / WIDEST * WIDE, lanes = vectors_at(c, r0) * VL;
        const T *part = d->parts + r0 * d->H + q % WIDEST * VL;
        for (long h = 0; h < d->H; h += VL) {
            for (long i = 0; i < VL; i++) {
                V sum = {0};
                for (long k = 0; k < d->head.shares && h + i < d->H; k++)
                    sum += ld(part + k * d->H * d->padded + (h + i) * lanes);
                st(sums + i * VL, sum);
            }
            transpose(transposed, VL, sums, VL);
            for (long r = q * VL; r < q * VL + VL && r < c->rows; r++)
                stn(d->d_x + (c->n0 + r) * d->H, h, d->H, ld(transposed + (r - q * VL) * VL));
        }
    }
}

static void prepare(void *p) {
    Decoder *d = p;
    place(d, d->arena);
}
static void run(void *p, Worker *w) {
    Decoder *d = p;
    for (long n0 = 0; n0 < d->N; n0 += d->chunk) {
        Chunk c = {n0, d->N - n0 < d->chunk ? d->N - n0 : d->chunk, 0};
        c.wide = in_vectors(c.rows);
        pack(d, w, &c);
        barrier(w);
        for (long s = w->id; s < d->head.shares; s += w->workers) classify(d, w, &c, s);
        barrier(w);
        if (!w->id) lose(d, &c);
        if (!learns(d)) continue;
        for (long s = w->id; s < d->head.shares; s += w->workers) learn(d, w, &c, s);
        barrier(w);
        if (d->d_x) add_parts(d, w, &c);
    }
}
__attribute__((visibility("default"))) long elman_cross_entropy_bytes(Decoder *d) { return place(d, 0); }
/* how long a worker had no core, as of run_tasks (us) */
__attribute__((visibility("default"))) long elman_cross_entropy(Decoder *d) {
    Task task = {prepare, run, &d->head};
    return run_tasks(&task, 1, d->head.workers);
}
