/* Pairs of bfloat16: an element of T holds two numbers that are neighbours along k, that of the even k in its
 * lower half. Their products are exact, and added up in float32. After vectors.h. */
#include <immintrin.h>
typedef int32_t Pair __attribute__((may_alias));
INLINE V dot(V sums, V a, V b) {
    return (V)_mm512_dpbf16_ps((__m512)sums, (__m512bh)(__m512i)a, (__m512bh)(__m512i)b);
}
/* the number of the even k, or of the odd one */
INLINE V half(V pairs, long odd) {
    return (V)_mm512_and_si512(_mm512_slli_epi32((__m512i)pairs, odd ? 0 : 16), _mm512_set1_epi32(-65536));
}
INLINE V pair(const T *p) { return (V)_mm512_set1_epi32(*(const Pair *)p); }
