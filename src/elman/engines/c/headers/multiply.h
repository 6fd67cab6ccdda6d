/* of products of two matrices of one sample: y [m, n] = a b, of a [m, k] and b [k, n], which have
   any strides. Operands of a tile that does not lie in whole vectors are copied into a panel. */
enum { DEPTH = 256, WIDE = 4 * VL, FEW = 8 };
static void pack_panel(T *to, long row, const T *b, long bk, long bj, long depth, long width) {
    for (long j = 0; j < row; j += VL)
        for (long i = 0; i < depth; i += VL) {
            if (bk == 1 && j + VL <= width && i + VL <= depth) {
                transpose(to + i * row + j, row, b + j * bj + i, bj);
                continue;
            }
            for (long r = i; r < i + VL && r < depth; r++)
                for (long u = j; u < j + VL; u++)
                    to[r * row + u] = u < width ? b[r * bk + u * bj] : 0;
        }
}
static void multiply(long m, long k, long n, T *y, const T *a, long ai, long ak, const T *b,
                     long bk, long bj) {
    T panel[DEPTH * WIDE], few[FEW * WIDE];
    for (long k0 = 0; k0 < k; k0 += DEPTH, a += DEPTH * ak, b += DEPTH * bk) {
        long depth = lesser_of(DEPTH, k - k0), row;
        for (long u = 0; u < n; u += row) {
            row = n - u > 3 * VL ? WIDE : VL;
            Products *product = row == WIDE ? product4 : product1;
            const T *p = b + u * bj;
            long width = lesser_of(row, n - u), step = bk;
            if (bj != 1 || width < row) {
                pack_panel(panel, row, p, bk, bj, depth, width);
                p = panel;
                step = row;
            }
            if (width == row) {
                product(m, a, ai, ak, p, step, depth, y + u, n, k0 > 0);
                continue;
            }
            for (long i = 0; i < m; i += FEW) {
                long rows = lesser_of(FEW, m - i);
                product(rows, a + i * ai, ai, ak, p, step, depth, few, row, 0);
                for (long r = 0; r < rows; r++)
                    for (long j = 0; j < width; j++) {
                        T *to = y + (i + r) * n + u + j;
                        *to = few[r * row + j] + (k0 ? *to : 0);
                    }
            }
        }
    }
}
