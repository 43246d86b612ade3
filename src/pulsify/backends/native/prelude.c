/* Eight floats at a time: as the machine has them, or one by one. */
#if defined(__GNUC__) && defined(__AVX__)
typedef float p_vec __attribute__((vector_size(32)));
#define P_SPLAT(x) ((x) - (p_vec){0.0f})
#define P_MADD(a, b, x) ((a) += (b) * (x))
static inline p_vec p_load(const float *p) { p_vec v; memcpy(&v, p, sizeof v); return v; }
static inline void p_store(float *p, p_vec v) { memcpy(p, &v, sizeof v); }
static inline void p_madd(p_vec *a, p_vec b, p_vec c) { *a += b * c; }
#elif defined(__GNUC__) && (defined(__SSE2__) || defined(__ARM_NEON) || defined(__wasm_simd128__))
typedef float p_half __attribute__((vector_size(16)));
typedef struct { p_half a, b; } p_vec;
#define P_SPLAT(x) ((p_vec){(x) - (p_half){0.0f}, (x) - (p_half){0.0f}})
#define P_MADD(v, w, x) ((v).a += (w).a * (x), (v).b += (w).b * (x))
static inline p_vec p_load(const float *p) { p_vec v; memcpy(&v.a, p, 16); memcpy(&v.b, p + 4, 16); return v; }
static inline void p_store(float *p, p_vec v) { memcpy(p, &v.a, 16); memcpy(p + 4, &v.b, 16); }
static inline void p_madd(p_vec *v, p_vec b, p_vec c) { v->a += b.a * c.a; v->b += b.b * c.b; }
#else
typedef struct { float f[8]; } p_vec;
static inline p_vec p_splat(float x) { p_vec v; for (int i = 0; i < 8; i++) v.f[i] = x; return v; }
#define P_SPLAT(x) p_splat(x)
static inline void p_madds(p_vec *a, p_vec b, float x) { for (int i = 0; i < 8; i++) a->f[i] += b.f[i] * x; }
#define P_MADD(a, b, x) p_madds(&(a), (b), (x))
static inline p_vec p_load(const float *p) { p_vec v; memcpy(&v, p, sizeof v); return v; }
static inline void p_store(float *p, p_vec v) { memcpy(p, &v, sizeof v); }
static inline void p_madd(p_vec *a, p_vec b, p_vec c) { for (int i = 0; i < 8; i++) a->f[i] += b.f[i] * c.f[i]; }
#endif
static inline void p_some(float *p, p_vec v, int count) {
    float f[8];
    p_store(f, v);
    for (int i = 0; i < count; i++) p[i] = f[i];
}
static inline float p_sum(p_vec v) {
    float f[8];
    p_store(f, v);
    return ((f[0] + f[4]) + (f[2] + f[6])) + ((f[1] + f[5]) + (f[3] + f[7]));
}

/* Whole numbers: what C leaves open is settled. */
static inline int64_t p_div(int64_t a, int64_t b) { return b == 0 ? 0 : b == -1 ? (int64_t)(0u - (uint64_t)a) : a / b; }
static inline int64_t p_rem(int64_t a, int64_t b) { return b == 0 || b == -1 ? 0 : a % b; }
static inline int64_t p_mod(int64_t a, int64_t b) {
    const int64_t r = p_rem(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
static inline int64_t p_floor_div(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }
static inline int32_t p_whole(double x) { return x > -2147483649.0 && x < 2147483648.0 ? (int32_t)x : INT32_MIN; }
static inline int64_t p_whole64(double x) {
    return x >= -9223372036854775808.0 && x < 9223372036854775808.0 ? (int64_t)x : INT64_MIN;
}
#define P_MAX(a, b) ((a) > (b) ? (a) : (b))
#define P_MIN(a, b) ((a) < (b) ? (a) : (b))
static inline int64_t p_place(int64_t i, int64_t size) { /* an index, counted from the end if below 0, made to fit */
    i = i < 0 ? i + size : i;
    return i < 0 ? 0 : i >= size ? size - 1 : i;
}

#if defined(__FMA__) || defined(__ARM_FEATURE_FMA) || defined(FP_FAST_FMAF)
#define P_FMA(a, b, c) fmaf(a, b, c) /* where it is one instruction */
#else
#define P_FMA(a, b, c) ((a) * (b) + (c))
#endif
/* Functions of float, without branches but for sin and cos. Errors in units of the last place: exp and log 1, sin and cos 2,
   sigmoid, softplus and erf 3, tanh 7. What is not a number stays so; limits are exact: tanh and erf in [-1, 1], sigmoid
   in [0, 1]. */
static inline float p_max(float a, float b) { return ((a > b) | (a != a)) ? a : b; }
static inline float p_min(float a, float b) { return ((a < b) | (a != a)) ? a : b; }
static inline float p_relu(float x) { return x > 0.0f ? x : 0.0f; } /* 0 for NaN: recurrent cells only */
static inline float p_clip(float x, float most) { /* to [-most, most]; NaN becomes most */
    const float y = x < most ? x : most;
    return y < -most ? -most : y;
}
static inline float p_clip_number(float x, float most) { return p_min(p_max(x, -most), most); } /* NaN stays */
static inline float p_pick(int first, float a, float b) { return first ? a : b; } /* both are worked out */
static inline float p_power_of_two(uint32_t n) {
    const uint32_t bits = (n + 127u) << 23;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}
static inline float p_exp_part(float c, uint32_t *n) { /* what is left of 2 to the n; n as its lowest bits */
    const float turned = P_FMA(c, 1.44269504f, 12582912.0f), whole = turned - 12582912.0f;
    const float r = P_FMA(whole, 2.12194440e-4f, P_FMA(whole, -0.693359375f, c));
    float p = 1.9875691500e-4f;
    p = P_FMA(p, r, 1.3981999507e-3f);
    p = P_FMA(p, r, 8.3334519073e-3f);
    p = P_FMA(p, r, 4.1665795894e-2f);
    p = P_FMA(p, r, 1.6666665459e-1f);
    p = P_FMA(p, r, 5.0000001201e-1f);
    memcpy(n, &turned, sizeof *n);
    *n -= 0x4b400000u;
    return (p * (r * r) + r) + 1.0f;
}
static inline float p_exp_within(float c) { /* of -104 to 89, or of what is not a number, which stays so */
    uint32_t n; /* in two halves, because 2 to the n may have no float of full precision */
    const float p = p_exp_part(c, &n);
    const uint32_t half = ((n + 256u) >> 1) - 128u;
    return p * p_power_of_two(half) * p_power_of_two(n - half);
}
static inline float p_exp(float x) {
    const float c = x > 89.0f ? 89.0f : x;
    return p_exp_within(c < -104.0f ? -104.0f : c);
}
static inline float p_exp_minus(float x) { /* exp(-|x|) */
    const float c = x < 0.0f ? x : -x;
    return p_exp_within(c < -104.0f ? -104.0f : c);
}
static inline float p_exp_below(float x) { /* of what is not above 0; nothing below -87.3, where floats lose their precision */
    uint32_t n;
    const float p = p_exp_part(x < -87.3f ? -87.3f : x, &n), y = p * p_power_of_two(n);
    return x < -87.3f ? 0.0f : y;
}
static inline float p_tanh(float x) {
    float c = x > 9.1f ? 9.1f : x; /* from where on it is 1 */
    c = c < -9.1f ? -9.1f : c;
    const float s = c * c;
    float p = -2.76076847742355e-16f;
    p = P_FMA(p, s, 2.00018790482477e-13f);
    p = P_FMA(p, s, -8.60467152213735e-11f);
    p = P_FMA(p, s, 5.12229709037114e-08f);
    p = P_FMA(p, s, 1.48572235717979e-05f);
    p = P_FMA(p, s, 6.37261928875436e-04f);
    p = P_FMA(p, s, 4.89352455891786e-03f);
    float q = 1.19825839466702e-06f;
    q = P_FMA(q, s, 1.18534705686654e-04f);
    q = P_FMA(q, s, 2.26843463243900e-03f);
    q = P_FMA(q, s, 4.89352518554385e-03f);
    float y = c * (p / q);
    y = y > 1.0f ? 1.0f : y;
    return y < -1.0f ? -1.0f : y;
}
static inline float p_sigmoid(float x) {
    const float e = p_exp_below(-fabsf(x)), y = 1.0f / (1.0f + e);
    return x < 0.0f ? e * y : y;
}
static inline float p_log(float x) {
    const float small = x < 1.17549435e-38f ? 8388608.0f : 1.0f, v = x * small;
    int32_t bits;
    memcpy(&bits, &v, sizeof bits);
    int32_t e = ((bits >> 23) & 255) - 126;
    bits = (bits & 0x007fffff) | 0x3f000000;
    float m;
    memcpy(&m, &bits, sizeof m);
    const int low = m < 0.707106781f;
    e -= low;
    m = (low ? m + m : m) - 1.0f;
    const float z = m * m;
    float p = 7.0376836292e-2f;
    p = P_FMA(p, m, -1.1514610310e-1f);
    p = P_FMA(p, m, 1.1676998740e-1f);
    p = P_FMA(p, m, -1.2420140846e-1f);
    p = P_FMA(p, m, 1.4249322787e-1f);
    p = P_FMA(p, m, -1.6668057665e-1f);
    p = P_FMA(p, m, 2.0000714765e-1f);
    p = P_FMA(p, m, -2.4999993993e-1f);
    p = P_FMA(p, m, 3.3333331174e-1f);
    const float n = (float)e - (small > 1.0f ? 23.0f : 0.0f);
    float y = (m + (p * m * z + n * -2.12194440e-4f - 0.5f * z)) + n * 0.693359375f;
    y = x == INFINITY ? x : y;
    y = x == 0.0f ? -INFINITY : y;
    y = x < 0.0f ? NAN : y;
    return x != x ? x : y;
}
static inline float p_softplus(float x) {
    const float e = p_exp_minus(x), u = 1.0f + e, d = u - 1.0f;
    const float l = d == 0.0f ? e : p_log(u) * (e / (d == 0.0f ? 1.0f : d));
    return (x > 0.0f ? x : 0.0f) + (x != x ? x : l);
}
static inline float p_erf(float x) {
    const float a = x < 0.0f ? -x : x, c = a > 4.2f ? 4.2f : a, s = a > 1.0f ? 1.0f : a * a;
    float p = -9.673591485e-06f;
    p = P_FMA(p, s, 1.126825412e-04f);
    p = P_FMA(p, s, -8.484396581e-04f);
    p = P_FMA(p, s, 5.221053415e-03f);
    p = P_FMA(p, s, -2.686543831e-02f);
    p = P_FMA(p, s, 1.128378262e-01f);
    p = P_FMA(p, s, -3.761263848e-01f);
    p = P_FMA(p, s, 1.128379167e+00f);
    float q = -2.732179735e-08f;
    q = P_FMA(q, c, 6.213164533e-07f);
    q = P_FMA(q, c, -4.527079633e-06f);
    q = P_FMA(q, c, -1.102371694e-05f);
    q = P_FMA(q, c, 4.708888921e-04f);
    q = P_FMA(q, c, -4.461615726e-03f);
    q = P_FMA(q, c, 2.595277145e-02f);
    q = P_FMA(q, c, -1.095994772e-01f);
    q = P_FMA(q, c, -6.321324332e-01f);
    q = P_FMA(q, c, -1.130124725e+00f);
    q = P_FMA(q, c, 3.040407598e-04f);
    float far = 1.0f - p_exp(q);
    far = a > 4.2f ? 1.0f : far;
    const float y = a > 1.0f ? far : a * p;
    return x < 0.0f ? -y : x != x ? x : y;
}
static inline float p_circle(float x, int32_t turn) { /* sin(x + turn * pi / 2) */
    if (!(x > -4e8f && x < 4e8f)) return turn ? cosf(x) : sinf(x);
    const double n = ((double)x * 0.63661977236758134 + 6755399441055744.0) - 6755399441055744.0;
    const float r = (float)(((double)x - n * 1.5707963109016418) - n * 1.5893254773528197e-08);
    const int32_t k = (int32_t)((uint32_t)(int32_t)n + (uint32_t)turn) & 3;
    const float s = r * r;
    float p = -1.9515295891e-4f;
    p = (p * s + 8.3321608736e-3f) * s - 1.6666654611e-1f;
    p = p * s * r + r;
    float q = 2.443315711809948e-5f;
    q = (q * s - 1.388731625493765e-3f) * s + 4.166664568298827e-2f;
    q = q * s * s - 0.5f * s + 1.0f;
    const float y = (k & 1) ? q : p;
    return (k & 2) ? -y : y;
}
static inline float p_sin(float x) { return p_circle(x, 0); }
static inline float p_cos(float x) { return p_circle(x, 1); }
