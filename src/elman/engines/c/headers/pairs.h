/* Operands of products in pairs of bfloat16 (dot.h), rounded to nearest even; an odd last k is paired with 0. What is declared
 * here is in pairs.c. */
/* rows of an operand, `row` pairs apart */
SHARED void round_rows(long m, const T *A, long lda, long K, T *to, long row);
/* as pack_block: `total` and `done` count pairs */
SHARED void pack_pairs(const Worker *w, T *pack, long vectors, long width, long accs, long acc, long total, long done,
                       const T *src, long unit, long inner, long size, long K);
/* operands of sums over rows, whose pairs are of neighbouring rows: in rows, or in panels as of pack_right */
SHARED void pair_rows(const Worker *w, T *dst, long row, const T *src, long stride, long vectors, long units, long rows);
SHARED void pair_panels(const Worker *w, T *dst, const T *src, long stride, long vectors, long units, long rows);
/* rows of a left operand whose sums with spikes add up some of them: rounded, in float32 */
SHARED void round_left(const Worker *w, T *dst, long row, const T *src, long stride, long vectors, long units, long rows);
/* as picked1 to picked4, of panels of pairs */
SHARED Picked halves1, halves2, halves3, halves4;
/* as dots and scaled_rows: both operands are rounded on their way */
SHARED void paired_dots(long m, const T *A, long lda, const T *W, long ldw, long units, long K, T *C, long ldc, int acc);
SHARED void paired_scaled_rows(long m, const T *A, long lda, const T *W, long ldw, long units, long K, T *C, long ldc, int acc);
