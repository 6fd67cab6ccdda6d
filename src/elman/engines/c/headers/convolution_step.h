/* A step of a short causal convolution of each channel by itself: the inputs before are moved by one where they lie.
 * After runtime.h. */
typedef struct {
    long rows, channels, length, taps; /* length of the states, of which the last `taps` count */
    long row, channel;                 /* strides of x, in elements */
    long gate;                         /* whether SiLU follows */
    const T *x, *weight, *bias;        /* [rows, channels], [channels, taps], [channels] or null */
    T *state, *out;                    /* [rows, channels, length], [rows, channels] */
} Convolution;

/* one channel, its sizes known or not */
INLINE T step(T *state, T x, const T *w, long length, long taps) {
    for (long k = 1; k < length; k++) state[k - 1] = state[k];
    state[length - 1] = x;
    T sum = 0;
    for (long k = 0; k < taps; k++) sum += state[length - taps + k] * w[k];
    return sum;
}
__attribute__((visibility("default"))) long elman_convolution_step(const Convolution *o) {
    for (long r = 0; r < o->rows; r++) {
        const T *x = o->x + r * o->row;
        T *state = o->state + r * o->channels * o->length, *out = o->out + r * o->channels;
        for (long c = 0; c < o->channels; c += VL) {
            T sums[VL] __attribute__((aligned(64)));
            const long n = o->channels - c < VL ? o->channels - c : VL;
            for (long i = 0; i < n; i++) {
                const long at = c + i;
                const T *w = o->weight + at * o->taps;
                T *s = state + at * o->length, new = x[at * o->channel];
                sums[i] = o->length == 4 && o->taps == 4   ? step(s, new, w, 4, 4)
                          : o->length == 3 && o->taps == 3 ? step(s, new, w, 3, 3)
                                                           : step(s, new, w, o->length, o->taps);
            }
            V y = ldn(sums, 0, n);
            if (o->bias) y += ldn(o->bias, c, o->channels);
            if (o->gate) y = y / ((T)1 + v_exp(-y));
            stn(out, c, o->channels, y);
        }
    }
    return 0;
}
