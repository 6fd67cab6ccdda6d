/* Runs a list of operations on tensors at fixed addresses, one after the other. After runtime.h, and a text of
 * op_lists.py that defines DIMS, OPERANDS, kinds of operations, the pointwise functions and the table POINTWISE.
 *
 * An operation of a few thousand numbers takes less time than torch's dispatcher needs to begin it. What is no
 * vector in memory is copied into one, WIDTH numbers at a time. */
enum { WIDTH = 256 };
typedef struct {
    long kind; /* a place in POINTWISE, or a name above */
    long operands;
    long sizes[DIMS];                /* of the loops; of a reduction the innermost one is reduced */
    long strides[OPERANDS + 1][DIMS]; /* in elements, of the result first; 0 where a number is for all */
    T *out;
    const T *in[OPERANDS];
    long (*launch)(void *); /* a kernel, and its argument block */
    void *argument;
} Operation;

/* n numbers as a vector in memory */
INLINE const T *gathered(const T *from, long stride, long n, T *buffer) {
    if (stride == 1) return from;
    for (long i = 0; i < n; i++) buffer[i] = from[i * stride];
    return buffer;
}
static void pointwise(const Operation *o, T *out, const T *const *in, T (*buffers)[WIDTH]) {
    const long n = o->sizes[DIMS - 1], stride = o->strides[0][DIMS - 1];
    for (long at = 0; at < n; at += WIDTH) {
        const long m = n - at < WIDTH ? n - at : WIDTH;
        const T *values[OPERANDS];
        for (long k = 0; k < OPERANDS; k++) {
            const long s = o->strides[k + 1][DIMS - 1];
            values[k] = k < o->operands ? gathered(in[k] + at * s, s, m, buffers[k + 1]) : values[0];
        }
        T *to = stride == 1 ? out + at : buffers[0];
        POINTWISE[o->kind](to, values[0], values[1], values[2], m);
        if (stride != 1)
            for (long i = 0; i < m; i++) out[(at + i) * stride] = to[i];
    }
}
static void reduction(const Operation *o, T *out, const T *in, T *buffer) {
    const long n = o->sizes[DIMS - 1], stride = o->strides[1][DIMS - 1];
    V all = bc(o->kind == LARGEST ? -(T)INFINITY : 0);
    for (long at = 0; at < n; at += WIDTH) {
        const long m = n - at < WIDTH ? n - at : WIDTH;
        const T *values = gathered(in + at * stride, stride, m, buffer);
        for (long i = 0; i < m; i += VL) {
            V v = ldn(values, i, m);
            if (o->kind == LARGEST) {
                for (long lane = m - i; lane < VL; lane++) LANE(v, lane) = values[i];
                all = v_max(all, v);
            } else if (o->kind == NORM)
                all += v * v;
            else
                all += v;
        }
    }
    T total = LANE(all, 0);
    for (int i = 1; i < VL; i++) total = o->kind == LARGEST ? LANE(v_max(bc(total), bc(LANE(all, i))), 0) : total + LANE(all, i);
    *out = o->kind == MEAN ? total / (T)n : o->kind == NORM ? LANE(v_sqrt(bc(total)), 0) : total;
}
/* how long workers of its kernels had no core, as of run_tasks (us) */
__attribute__((visibility("default"))) long elman_run_list(const Operation *o, long count) {
    T buffers[OPERANDS + 1][WIDTH] __attribute__((aligned(64)));
    long stolen = 0;
    for (const Operation *end = o + count; o < end; o++) {
        if (o->kind == LAUNCH) {
            stolen += o->launch(o->argument);
            continue;
        }
        const long *size = o->sizes;
        for (long i = 0; i < size[0]; i++)
            for (long j = 0; j < size[1]; j++)
                for (long k = 0; k < size[2]; k++) {
                    T *out = o->out + i * o->strides[0][0] + j * o->strides[0][1] + k * o->strides[0][2];
                    const T *in[OPERANDS];
                    for (long q = 0; q < o->operands; q++) {
                        const long *s = o->strides[q + 1];
                        in[q] = o->in[q] + i * s[0] + j * s[1] + k * s[2];
                    }
                    if (o->kind < 0) reduction(o, out, in[0], buffers[0]);
                    else pointwise(o, out, in, buffers);
                }
    }
    return stolen;
}
