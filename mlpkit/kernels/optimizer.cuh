// The optimizer, for the kernels that train whole epochs: a parameter, with Adam's two averages where ADAM is 1.

#include "ptx.cuh"

#ifndef ADAM
#define ADAM 0
#endif

struct Settings {
    float beta1, rest1, beta2, rest2, eps, l2, shrink;  // rest: 1 - beta, as float64 has it
};

struct Vectors {
    float *theta, *m, *v;
};

struct Rates {
    float lr, m, v;  // m: lr over how much of its average m is; v: one over the root of how much of its average v is
};

struct Parameter {
    float w;
#if ADAM
    float m, v;
#endif

    __device__ void load(const Vectors& vectors, int place) {
        w = __ldcg(vectors.theta + place);
        load_averages(vectors, place);
    }

    __device__ void store(const Vectors& vectors, int place) const {
        vectors.theta[place] = w;
        store_averages(vectors, place);
    }

    __device__ void load_averages(const Vectors& vectors, int place) {
#if ADAM
        m = __ldcg(vectors.m + place);
        v = __ldcg(vectors.v + place);
#endif
    }

    __device__ void store_averages(const Vectors& vectors, int place) const {
#if ADAM
        vectors.m[place] = m;
        vectors.v[place] = v;
#endif
    }

    __device__ void update(float g, const Settings& settings, const Rates& rates, bool is_weight) {
        if (is_weight) {  // only weights decay
            g += settings.l2 * w;
            w -= rates.lr * settings.shrink * w;
        }
#if ADAM
        m = settings.beta1 * m + settings.rest1 * g;
        v = settings.beta2 * v + settings.rest2 * g * g;
        // The chip's own root and quotient, good to a unit or two in the last place: part of a small change of a weight.
        w -= __fdividef(rates.m * m, sqrt_approx(v) * rates.v + settings.eps);
#else
        w -= rates.lr * g;
#endif
    }
};
