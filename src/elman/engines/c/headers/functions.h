/* Elementary functions over vectors V, or over numbers where V is one: of kernels, and of exported C.
 *
 * The text before this defines T, V, M, INLINE, bc, bits, value, pick, truth, v_abs, lesser, larger.
 * NaN and infinities pass through every function as in torch.
 */
/* 1 in the last place of a number between this and its double */
#ifdef ELMAN_F64
#define WHOLE 4503599627370496.0
#else
#define WHOLE 8388608.0f
#endif
INLINE V with_sign(V size, V x) { return value(bits(size) | (bits(x) & bits(bc((T)-0.0)))); }
/* without specialization (isa.py) they are libm's, one lane at a time */
#ifdef ELMAN_LIBM
#ifdef ELMAN_F64
#define LIBM(name) name
#else
#define LIBM(name) name##f
#endif
#define LIBM_LANES(name, value)                         \
    INLINE V name(V x) {                                \
        for (int i = 0; i < VL; i++) {                  \
            T one = LANE(x, i);                         \
            LANE(x, i) = value;                         \
        }                                               \
        return x;                                       \
    }
LIBM_LANES(v_exp, LIBM(exp)(one))
LIBM_LANES(v_tanh, LIBM(tanh)(one))
LIBM_LANES(v_expm1, LIBM(expm1)(one))
LIBM_LANES(v_log, LIBM(log)(one))
LIBM_LANES(v_softplus, one > 20 ? one : LIBM(log1p)(LIBM(exp)(one)))
#else
/* exp: x = n ln 2 + r, a polynomial in r, and 2^n (in two factors where no instruction scales) so that 0,
 * subnormals and infinity come out right. float32: ln 2 in two parts as Cephes (Moshier, expf.c), the
 * polynomial of least relative error of e^r - 1; float64: Taylor's. */
#ifdef ELMAN_F64
#define EXP_LOW -746.0
#define EXP_HIGH 710.0
#define EXP_MAGIC 6755399441055744.0
#define EXP_BIAS 1023
#define EXP_SHIFT 52
#else
#define EXP_LOW -104.5f
#define EXP_HIGH 89.0f
#define EXP_MAGIC 12582912.0f
#define EXP_BIAS 127
#define EXP_SHIFT 23
#endif
/* Whole numbers shifted to where the exponent stands. A shift of a negative number, or one that loses bits, is undefined in C
 * unless it is a vector's: a single number is shifted as an unsigned one. */
#if VL > 1
#define TO_EXPONENT(m) ((m) << EXP_SHIFT)
#elif defined(ELMAN_F64)
#define TO_EXPONENT(m) ((M)((uint64_t)(m) << EXP_SHIFT))
#else
#define TO_EXPONENT(m) ((M)((uint32_t)(m) << EXP_SHIFT))
#endif
/* e^r - 1 for x = n ln 2 + r, |r| <= ln 2 / 2; n is in the low bits of *m */
INLINE V exp_rest(V x, V *m) {
    *m = x * (T)1.44269504088896341 + (T)EXP_MAGIC;
    V n = *m - (T)EXP_MAGIC;
#ifdef ELMAN_F64
    V r = x - n * 6.93145751953125e-1;
    r = r - n * 1.42860682030941723212e-6;
    V p = bc(1.0 / 6227020800.0);
    p = p * r + 1.0 / 479001600.0;
    p = p * r + 1.0 / 39916800.0;
    p = p * r + 1.0 / 3628800.0;
    p = p * r + 1.0 / 362880.0;
    p = p * r + 1.0 / 40320.0;
    p = p * r + 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
#else
    V r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    V p = r * 1.3882509666e-3f + 8.3665801212e-3f;
    p = p * r + 4.1667200625e-2f;
    p = p * r + 1.6666543484e-1f;
    p = p * r + 4.9999997020e-1f;
#endif
    return p * (r * r) + r;
}
INLINE V v_exp(V x) {
    V m, p = exp_rest(lesser(bc((T)EXP_HIGH), larger(bc((T)EXP_LOW), x)), &m) + (T)1;
#ifdef SCALED
    return SCALED(p, m - (T)EXP_MAGIC);
#else
    M k = bits(m) - bits(bc((T)EXP_MAGIC));
    M half = k >> 1;
    V low = value(TO_EXPONENT(half + EXP_BIAS));
    V high = value(TO_EXPONENT(k - half + EXP_BIAS));
    return p * low * high;
#endif
}
/* tanh |x| = e / (e + 2) with e = exp(2|x|) - 1, put together without cancellation; 1 from 10 (20) on */
INLINE V v_tanh(V x) {
    V a = lesser(bc(sizeof(T) == 4 ? 10 : 20), v_abs(x)), m;
    V r = exp_rest(a + a, &m), n = value(TO_EXPONENT(bits(m)) + bits(bc(1)));
    V e = r * n + (n - (T)1);
    return with_sign(e / (e + (T)2), x);
}
/* the same e, halved: 2^n / 2 is finite where exp is; -1 from -20 (-40) on */
INLINE V v_expm1(V x) {
    V m, r = exp_rest(lesser(bc((T)EXP_HIGH), larger(bc(sizeof(T) == 4 ? -20 : -40), x)), &m);
    V half = value(TO_EXPONENT(bits(m)) + bits(bc((T)0.5)));
    V e = r * half + (half - (T)0.5);
    return with_sign(e + e, x);
}
/* log(1 + f) = f - s (f - z p(z)) for -0.3 < f <= 1, s = f / (2 + f) and z = s²: the series of artanh,
 * p of least error over z <= 1/9 */
INLINE V log_near_one(V f) {
    V s = f / (f + (T)2), z = s * s;
#ifdef ELMAN_F64
    V p = z * 0.161640456119435322 + 0.0880073848614467388;
    p = p * z + 0.120010728095907125;
    p = p * z + 0.133141442096549362;
    p = p * z + 0.153855700649586231;
    p = p * z + 0.181817894361328582;
    p = p * z + 0.22222222717427863;
    p = p * z + 0.285714285671087572;
    p = p * z + 0.400000000000145827;
    p = p * z + 0.666666666666666586;
#else
    V p = z * 0.26851498023f + 0.28236619805f;
    p = p * z + 0.40007560645f;
    p = p * z + 0.66666640337f;
#endif
    return f - s * (f - z * p);
}
/* log x = n ln 2 + log m, m from sqrt(1/2) to sqrt(2); subnormals are scaled first */
INLINE V v_log(V x) {
#ifdef ELMAN_F64
    const T least = 2.2250738585072014e-308, low = 1.42860682030941723212e-6, high = 6.93145751953125e-1;
#else
    const T least = 1.17549435e-38f, low = -2.12194440e-4f, high = 0.693359375f;
#endif
    V y = v_abs(x);
    M tiny = y < least;
    y = pick(tiny, y * WHOLE, y);
    M k = (bits(y) - bits(bc((T)0.70710678118654752))) >> EXP_SHIFT;
    V f = value(bits(y) - TO_EXPONENT(k)) - (T)1;
    V n = value(k + bits(bc((T)EXP_MAGIC))) - pick(tiny, bc((T)EXP_MAGIC + EXP_SHIFT), bc((T)EXP_MAGIC));
    V found = n * high + (n * low + log_near_one(f));
    V other = pick(x < (T)0, bc((T)NAN), pick(x == (T)0, bc(-(T)INFINITY), x));
    return pick((x > (T)0) & (x < (T)INFINITY), found, other);
}
/* x beyond 20, as torch's */
INLINE V v_softplus(V x) {
    V found = larger(bc(0), x) + log_near_one(v_exp(value(bits(x) | bits(bc((T)-0.0)))));
    return pick(x > (T)20, x, found);
}
#endif
/* of float32; those of float64 are libm's */
#if !defined(ELMAN_F64) && !defined(ELMAN_LIBM)
/* whether a lane is not 0 */
INLINE int any_of(M m) {
#if VL > 1
    union { M m; uint64_t words[sizeof(M) / 8]; } u = {m};
    uint64_t any = 0;
    for (unsigned i = 0; i < sizeof(M) / 8; i++) any |= u.words[i];
    return any != 0;
#else
    return m != 0;
#endif
}
/* sin(x + quarter · π/2) for |x| < 8192: |x| = n π/2 + r, π/2 in four parts of which the products of the first three with
 * n are exact; polynomials of least relative error in r */
INLINE V near_turn(V x, int quarter) {
    V a = v_abs(x), m = a * 0.636619772f + EXP_MAGIC, n = m - EXP_MAGIC;
    V r = a - n * 1.5703125f;
    r = r - n * 0x1.fb4p-12f;
    r = r - n * 0x1.444p-24f;
    r = r - n * 0x1.68c234p-39f;
    V z = r * r;
    V odd = z * -1.951084e-4f + 8.332131e-3f;
    odd = (odd * z + -1.6666654e-1f) * z * r + r;
    V even = z * 2.442568e-5f + -1.3887251e-3f;
    even = (even * z + 4.1666646e-2f) * (z * z) + (z * -0.5f + 1.0f);
    M quadrant = bits(m) + quarter;
    V size = pick((quadrant & 1) != 0, even, odd);
    V y = pick((quadrant & 2) != 0, -size, size);
    return quarter ? y : value(bits(y) ^ (bits(x) & bits(bc(-0.0f))));
}
INLINE V turn(V x, int quarter) {
    V y = near_turn(x, quarter);
    return any_of(v_abs(x) >= 8192.0f) ? far_turn(x, quarter) : y;
}
INLINE V v_sin(V x) { return turn(x, 0); }
INLINE V v_cos(V x) { return turn(x, 1); }
/* |x| <= 1, or π/2 less the arc of 1 / |x|: a polynomial of least relative error */
INLINE V v_atan(V x) {
    V a = v_abs(x);
    M steep = a > 1.0f;
    V r = pick(steep, 1.0f / a, a), z = r * r;
    V p = z * -1.7936204e-3f + 1.09145995e-2f;
    p = p * z + -3.1177832e-2f;
    p = p * z + 5.795758e-2f;
    p = p * z + -8.4034495e-2f;
    p = p * z + 1.0952185e-1f;
    p = p * z + -1.4264241e-1f;
    p = p * z + 1.9998549e-1f;
    p = p * z + -3.33333e-1f;
    V arc = p * z * r + r;
    return with_sign(pick(steep, 1.57079633f - arc, arc), x);
}
/* polynomials of least relative error: of erf(x) / x - 1 in x² up to 0.9, beyond of -log(1 - erf) in |x|; 1 from 4 on */
INLINE V v_erf(V x) {
    V a = lesser(bc(4), v_abs(x)), z = x * x;
    V p = z * -6.090358e-4f + 5.0119623e-3f;
    p = p * z + -2.6778908e-2f;
    p = p * z + 1.1282141e-1f;
    p = p * z + -3.7612525e-1f;
    p = p * z + 1.2837915e-1f;
    V q = a * 9.584695e-6f + -3.0648962e-4f;
    q = q * a + 3.5768514e-3f;
    q = q * a + -2.3624936e-2f;
    q = q * a + 1.0607968e-1f;
    q = q * a + 6.352451e-1f;
    q = q * a + 1.1286258f;
    return pick(a < 0.9f, p * x + x, with_sign(1.0f - v_exp(-(q * a)), x));
}
#endif
INLINE V v_sigmoid(V x) { return (T)1 / ((T)1 + v_exp(-x)); }
INLINE V v_relu(V x) { return larger(bc(0), x); }
INLINE V v_min(V a, V b) { return pick(a != a, a, lesser(a, b)); }
INLINE V v_max(V a, V b) { return pick(a != a, a, larger(a, b)); }
INLINE V v_sign(V x) { return pick(x > (T)0, bc(1), pick(x < (T)0, bc(-1), bc(0))); }
/* odd: log(1 + u) of u = |x| + x^2 / (1 + sqrt(1 + x^2)), accurate near 0 */
INLINE V v_asinh(V x) {
    V a = v_abs(x), u = a + a * a / (v_sqrt(a * a + (T)1) + (T)1), w = u + (T)1;
    V size = pick(w == (T)1, u, v_log(w) * (u / (w - (T)1)));
    return with_sign(pick(a > (T)1e9, v_log(a) + (T)0.6931471805599453, size), x);
}
/* half to even: adding WHOLE leaves no room for a fraction; larger numbers have none */
INLINE V v_round(V x) {
    V a = v_abs(x), r = (a + WHOLE) - WHOLE;
    return with_sign(pick(a < WHOLE, r, a), x);
}
INLINE V v_floor(V x) { V r = v_round(x); return pick(r > x, r - (T)1, r); }
/* not `c != 0`: gcc 12 without SSE4 stops with an internal error when c is itself a comparison */
INLINE V v_where(V c, V a, V b) { return pick(bits(v_abs(c)) != 0, a, b); }
/* elman/ir/draws.py: numbers in [0, 1) for the units from u on, from a key of two halves */
#if VL > 1
typedef uint32_t Words __attribute__((vector_size(VL * 4)));
typedef int32_t Halves __attribute__((vector_size(VL * 4)));
INLINE Words words(V x) { return (Words)__builtin_convertvector(x, Halves); }
INLINE V share_of(Words x) { return __builtin_convertvector((Halves)(x >> 8), V) * (T)0x1p-24; }
#else
typedef uint32_t Words;
INLINE Words words(V x) { return (Words)(int32_t)x; }
INLINE V share_of(Words x) { return (V)(int32_t)(x >> 8) * (T)0x1p-24; }
#endif
INLINE Words mixed(Words x) {
    x ^= x >> 16;
    x *= 0x7feb352dU;
    x ^= x >> 15;
    x *= 0x846ca68bU;
    return x ^ (x >> 16);
}
INLINE V v_uniform(V high, V low, long u, uint32_t stream) {
    Words h = words(high), unit = {0};
    for (int i = 0; i < VL; i++) LANE(unit, i) = (uint32_t)(u + i);
    return share_of(mixed(mixed(unit ^ words(low) ^ (h << 24)) ^ (h >> 8) ^ stream));
}
