/* Pairs of bfloat16: an element of T holds two numbers that are neighbours along k, that of the even k in its
 * lower half. Their products are exact, and added up in float32. After vectors.h. */
typedef int32_t Pair __attribute__((may_alias));
typedef uint32_t Word __attribute__((vector_size(VL * sizeof(T)), may_alias));
/* the number of the even k, or of the odd one */
INLINE V half(V pairs, long odd) { return odd ? (V)((Word)pairs & 0xffff0000u) : (V)((Word)pairs << 16); }
INLINE V pair(const T *p) { return (V)(*(const Pair *)p - (M){0}); }
#ifdef __AVX512BF16__
#include <immintrin.h>
INLINE V dot(V sums, V a, V b) {
    return (V)_mm512_dpbf16_ps((__m512)sums, (__m512bh)(__m512i)a, (__m512bh)(__m512i)b);
}
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC) && VL == 4
#include <arm_neon.h>
INLINE V dot(V sums, V a, V b) { return (V)vbfdotq_f32((float32x4_t)sums, (bfloat16x8_t)a, (bfloat16x8_t)b); }
#else
INLINE V dot(V sums, V a, V b) { return sums + half(a, 0) * half(b, 0) + half(a, 1) * half(b, 1); }
#endif
