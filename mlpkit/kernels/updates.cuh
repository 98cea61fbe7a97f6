// An optimizer's step, one parameter at a time or four, for whichever kernel has the gradient: the one place of the
// formulas, which are those of `numpy_baseline`. The rate and the number of the step are read from memory, where a
// recorded graph finds them.

#include "ptx.cuh"

struct Settings {
    float beta1, rest1, log1, beta2, rest2, log2, eps;  // rest: 1 - beta; log: of beta
};

// A step of all n parameters; m, v, t, the number of the step, and settings are Adam's. Where the kernel that makes the
// last gradients takes it: `own` are the ranges, from first to before last, that its threads update as they write their
// gradients, and its first `blocks` blocks update the rest.
struct Update {
    float* theta;
    const float *grad, *lr, *t;
    float *m, *v;
    Settings settings;
    int n, blocks, own[4][2];
};

struct Rates {
    float rate, unbias;  // unbias: what Adam multiplies v by
};

template <bool ADAM>
inline Rates rates_of(const Update& u)
{
    const float lr = __ldcg(u.lr);
    if constexpr (!ADAM) return {lr, 1};
    const float t = __ldcg(u.t);  // 1 - beta^t, in float32 as exactly as in float64: -expm1(t log beta)
    return {lr / -expm1f(t * u.settings.log1), 1 / -expm1f(t * u.settings.log2)};
}

inline void step(float& w, float g, const Rates& rates) { w -= rates.rate * g; }

inline void step(float& w, float& mean, float& square, float g, const Rates& rates, const Settings& s)
{
    mean = s.beta1 * mean + s.rest1 * g;
    square = s.beta2 * square + s.rest2 * g * g;
    w -= rates.rate * mean / (sqrtf(square * rates.unbias) + s.eps);
}

// ---- One parameter ----

template <bool ADAM>
struct Parameter {
    float w, mean, square;

    __device__ void load(const Update& u, int number)
    {
        w = __ldcg(u.theta + number);
        if constexpr (ADAM) mean = __ldcg(u.m + number), square = __ldcg(u.v + number);
    }

    __device__ void update(const Update& u, const Rates& rates, float g)
    {
        if constexpr (ADAM) step(w, mean, square, g, rates, u.settings);
        else step(w, g, rates);
    }

    __device__ void store(const Update& u, int number) const
    {
        u.theta[number] = w;
        if constexpr (ADAM) u.m[number] = mean, u.v[number] = square;
    }
};

template <bool ADAM>
inline void update_one(const Update& u, const Rates& rates, int number)
{
    Parameter<ADAM> one;
    one.load(u, number);
    one.update(u, rates, __ldcg(u.grad + number));
    one.store(u, number);
}

// ---- Four parameters, with their gradients ----

struct alignas(16) Four {
    float each[4];
};

inline Four load_four(const float* from)
{
    const float4 four = __ldcg(reinterpret_cast<const float4*>(from));
    return {four.x, four.y, four.z, four.w};
}

// skipped: a bit for each that is not written.
inline void store_four(const Four& four, float* to, Word skipped)
{
    if (!skipped) {
        *reinterpret_cast<Four*>(to) = four;
        return;
    }
    #pragma unroll
    for (int i = 0; i < 4; ++i)
        if (!(skipped >> i & 1)) to[i] = four.each[i];
}

template <bool ADAM>
struct FourParameters {
    Four w, g, means, squares;

    __device__ void load(const Update& u, int first)
    {
        g = load_four(u.grad + first), w = load_four(u.theta + first);
        if constexpr (ADAM) means = load_four(u.m + first), squares = load_four(u.v + first);
    }

    __device__ void update(const Update& u, const Rates& rates)
    {
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
            if constexpr (ADAM) step(w.each[i], means.each[i], squares.each[i], g.each[i], rates, u.settings);
            else step(w.each[i], g.each[i], rates);
        }
    }

    __device__ void store(const Update& u, int first, Word skipped = 0) const
    {
        store_four(w, u.theta + first, skipped);
        if constexpr (ADAM) store_four(means, u.m + first, skipped), store_four(squares, u.v + first, skipped);
    }
};

// ---- All that nobody else updates, by so many threads, at least four ----

// A bit for each of four parameters that is updated by who writes its gradient.
inline Word owned(const Update& u, int first)
{
    Word found = 0;
    #pragma unroll
    for (int range = 0; range < 4; ++range) {
        const int from = max(u.own[range][0] - first, 0), to = min(u.own[range][1] - first, 4);
        if (from < to) found |= (1u << to) - (1u << from);
    }
    return found;
}

template <bool ADAM>
inline void update_rest(const Update& u, int thread, int threads)
{
    constexpr int AT_ONCE = ADAM ? 2 : 4;  // on their way together
    const Rates rates = rates_of<ADAM>(u);
    const int fours = u.n / 4;
    #pragma unroll 1
    for (int first = thread; first < fours; first += threads * AT_ONCE) {
        FourParameters<ADAM> found[AT_ONCE];
        #pragma unroll
        for (int i = 0; i < AT_ONCE; ++i)
            if (first + i * threads < fours) found[i].load(u, 4 * (first + i * threads));
        #pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            if (first + i * threads >= fours) break;
            found[i].update(u, rates);
            found[i].store(u, 4 * (first + i * threads), owned(u, 4 * (first + i * threads)));
        }
    }
    const int last = 4 * fours + thread;
    if (last < u.n && !(owned(u, last) & 1)) update_one<ADAM>(u, rates, last);
}
