/* Vectors of T, and how they are loaded and stored: what every generated C text begins with.
 *
 * The text before this defines VL (elements per vector), WIDEST (vectors per tile) and, for float64,
 * ELMAN_F64.
 * Vector code is written with gcc's vector extensions (clang has them too).
 */
#define _GNU_SOURCE
#include <stdint.h>

#ifdef ELMAN_F64
typedef double T;
typedef int64_t Int;
#else
typedef float T;
typedef int32_t Int;
#endif
#if VL > 1
typedef T V __attribute__((vector_size(VL * sizeof(T)), may_alias));
typedef T VU __attribute__((vector_size(VL * sizeof(T)), aligned(sizeof(T)), may_alias));
typedef Int M __attribute__((vector_size(VL * sizeof(T)), may_alias));
#define LANE(x, i) (x)[i]
#else /* scalar code: a number stands for a vector of one */
typedef T V, VU;
typedef Int M;
#define LANE(x, i) (x)
#endif

#define INLINE static inline __attribute__((always_inline))
#define NOINLINE static __attribute__((noinline))
#define UNUSED __attribute__((unused))
/* compiled once for all kernels of an instruction set and a dtype, and linked into each */
#define SHARED __attribute__((visibility("hidden")))
/* ask for an element of an array, or of what lies before or behind it: no such address is formed */
#define PREFETCH(base, index, write) \
    __builtin_prefetch((const void *)((uintptr_t)(base) + (uintptr_t)(index) * sizeof(T)), write)

INLINE V ld(const T *p) { return *(const VU *)p; }
INLINE void st(T *p, V v) { *(VU *)p = v; }
INLINE V bc(T x) { return x - (V){0}; }
/* a vector at unit u of an array of n units: what lies behind the end is neither read nor written */
INLINE V ldn(const T *p, long u, long n) {
    if (__builtin_expect(u + VL <= n, 1)) return ld(p + u);
    V v = {0};
    if (n > u) __builtin_memcpy(&v, p + u, (unsigned long)(n - u) * sizeof(T));
    return v;
}
INLINE void stn(T *p, long u, long n, V v) {
    if (__builtin_expect(u + VL <= n, 1)) st(p + u, v);
    else if (n > u) __builtin_memcpy(p + u, &v, (unsigned long)(n - u) * sizeof(T));
}
