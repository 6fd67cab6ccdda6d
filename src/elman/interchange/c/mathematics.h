/* What a C library has in math.h, in single precision. Polynomials: Cephes (Moshier), single precision.
 * sin and cos keep their accuracy for |x| < 8192.
 */
#define LANES_OF(name, one)                                             \
    INLINE V name(V x) {                                                \
        for (int i = 0; i < LANES; i++) LANE(x, i) = one(LANE(x, i));   \
        return x;                                                       \
    }
INLINE float one_of(int32_t m) { union { float x; int32_t m; } u; u.m = m; return u.x; }
INLINE int32_t bits_of(float x) { union { float x; int32_t m; } u; u.x = x; return u.m; }

INLINE float sqrt_one(float x) { /* Newton's iteration for 1 / sqrt(x), then one for the root */
    if (!(x > 0)) return x == 0 ? x : NAN;
    if (x > 3.4e38f) return x;
    float by = 1;
    if (x < 1.2e-38f) { x *= 16777216.0f; by = 1.0f / 4096; }
    float y = one_of(0x5f3759df - (bits_of(x) >> 1)), half = 0.5f * x;
    y = y * (1.5f - half * y * y);
    y = y * (1.5f - half * y * y);
    y = y * (1.5f - half * y * y);
    float root = x * y;
    root = root - 0.5f * y * (root * root - x);
    return root * by;
}
LANES_OF(v_sqrt, sqrt_one)

INLINE float turn_one(float x, int quarter) { /* sin(x + quarter · π/2) */
    if (x != x || x - x != 0) return NAN;
    float a = x < 0 ? -x : x;
    int sign = x < 0 && !quarter ? -1 : 1;
    int32_t j = a < 1e9f ? (int32_t)(a * 1.27323954473516f) : 0; /* eighths of a turn */
    j += j & 1;
    float n = (float)j;
    a = ((a - n * 0.78515625f) - n * 2.4187564849853515625e-4f) - n * 3.77489497744594108e-8f;
    j = (j / 2 + quarter) & 3;
    if (j > 1) sign = -sign;
    float z = a * a;
    float y = j & 1
        ? ((2.443315711809948e-5f * z - 1.388731625493765e-3f) * z + 4.166664568298827e-2f) * z * z
            - 0.5f * z + 1
        : ((-1.9515295891e-4f * z + 8.3321608736e-3f) * z - 1.6666654611e-1f) * z * a + a;
    return sign < 0 ? -y : y;
}
INLINE V far_turn(V x, int quarter) {
    for (int i = 0; i < LANES; i++) LANE(x, i) = turn_one(LANE(x, i), quarter);
    return x;
}
INLINE double double_of(int64_t m) { union { double x; int64_t m; } u; u.m = m; return u.x; }
INLINE double wide_log(double x) { /* x > 0: exponent, and the series of artanh */
    union { double x; int64_t m; } u;
    u.x = x;
    int64_t e = ((u.m >> 52) & 2047) - 1023;
    u.m = (u.m & 0x000fffffffffffff) | 0x3ff0000000000000;
    if (u.x > 1.4142135623730951) { u.x *= 0.5; e++; }
    double s = (u.x - 1) / (u.x + 1), z = s * s, p = 1.0 / 17;
    for (int k = 15; k > 0; k -= 2) p = p * z + 1.0 / k;
    return (double)e * 0.6931471805599453 + 2 * s * p;
}
INLINE double wide_exp(double x) { /* |x| < 700 */
    double n = (double)(int32_t)(x * 1.4426950408889634 + (x < 0 ? -0.5 : 0.5));
    double r = x - n * 0.6931471805599453, p = 1;
    for (int k = 13; k > 0; k--) p = p * r / k + 1;
    return p * double_of(((int64_t)n + 1023) << 52);
}
INLINE float pow_one(float x, float y) {
    float a = x < 0 ? -x : x, size = y < 0 ? -y : y;
    int whole = size >= 8388608.0f || (float)(int32_t)size == size;
    int odd = whole && size < 16777216.0f && ((int32_t)size & 1);
    int negative = bits_of(x) < 0;
    float z;
    if (y == 0 || x == 1) return 1;
    if (x != x || y != y) return NAN;
    if (size > 3.4e38f) return a == 1 ? 1 : (a > 1) == (y > 0) ? INFINITY : 0;
    if (a == 0 || a > 3.4e38f) z = (a == 0) == (y > 0) ? 0 : INFINITY;
    else {
        if (negative && !whole) return NAN;
        double power = (double)y * wide_log((double)a);
        z = power > 89 ? INFINITY : power < -104 ? 0 : (float)wide_exp(power);
    }
    return negative && odd ? -z : z;
}
INLINE V v_pow(V x, V y) {
    for (int i = 0; i < LANES; i++) LANE(x, i) = pow_one(LANE(x, i), LANE(y, i));
    return x;
}
INLINE float remainder_one(float x, float y) { /* exact division with remainder, then y's sign */
    float a = x < 0 ? -x : x, b = y < 0 ? -y : y;
    if (!(a <= 3.4028235e38f) || !(b > 0)) return NAN;
    if (b <= 3.4028235e38f) {
        double r = (double)a, d = (double)b;
        while (r >= d) { /* what is taken off is a multiple of d, and exact */
            union { double x; int64_t m; } u, v;
            u.x = r; v.x = d;
            int64_t e = ((u.m >> 52) & 2047) - ((v.m >> 52) & 2047);
            double part = d * double_of((e + 1023) << 52);
            r -= part > r ? part * 0.5 : part;
        }
        a = (float)r;
    }
    x = bits_of(x) < 0 ? -a : a;
    return x != 0 && (x < 0) != (y < 0) ? x + y : x;
}
INLINE V v_remainder(V x, V y) {
    for (int i = 0; i < LANES; i++) LANE(x, i) = remainder_one(LANE(x, i), LANE(y, i));
    return x;
}
