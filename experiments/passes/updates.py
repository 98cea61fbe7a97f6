"""An optimizer's update in several ways: NumPy with `out=`, and Adam in a loop that loses one obstacle on each rung.

The arithmetic is the engines'; here are only NumPy's updates without new arrays, and loops that are naive on purpose.
"""

import math
import re
from typing import Any

import numpy as np
from numba import njit
from numba.extending import register_jitable

from mlpkit.engines import python_loops
from mlpkit.engines.loops import fused

register_jitable(fused.normal)  # `fused.adam_update` calls it

# NumPy with `out=`: no new arrays, and as many passes


def sgd_out(theta, grad, lr, spare):
    np.multiply(grad, lr, out=spare)
    np.subtract(theta, spare, out=theta)


def momentum_out(theta, grad, velocity, lr, momentum, spare):
    np.multiply(velocity, momentum, out=velocity)
    np.add(velocity, grad, out=velocity)
    np.multiply(velocity, lr, out=spare)
    np.subtract(theta, spare, out=theta)


def rmsprop_out(theta, grad, s, lr, rho, eps, spare, spare2):
    np.multiply(s, rho, out=s)
    np.multiply(grad, grad, out=spare)
    np.multiply(spare, 1 - rho, out=spare)
    np.add(s, spare, out=s)
    np.sqrt(s, out=spare)
    np.add(spare, eps, out=spare)
    np.multiply(grad, lr, out=spare2)
    np.divide(spare2, spare, out=spare2)
    np.subtract(theta, spare2, out=theta)


def adam_out(theta, grad, m, v, t, lr, beta1, beta2, eps, spare, spare2):
    np.multiply(m, beta1, out=m)
    np.multiply(grad, 1 - beta1, out=spare)
    np.add(m, spare, out=m)
    np.multiply(v, beta2, out=v)
    np.multiply(grad, grad, out=spare)
    np.multiply(spare, 1 - beta2, out=spare)
    np.add(v, spare, out=v)
    np.multiply(v, 1 / (1 - beta2**t), out=spare)
    np.sqrt(spare, out=spare)
    np.add(spare, eps, out=spare)
    np.multiply(m, lr / (1 - beta1**t), out=spare2)
    np.divide(spare2, spare, out=spare2)
    np.subtract(theta, spare2, out=theta)


UPDATES: dict[str, tuple[Any, dict]] = {  # (with out=, settings); the spare arrays are called spare, spare2
    "sgd": (sgd_out, dict(lr=1e-9)),
    "momentum": (momentum_out, dict(lr=1e-9, momentum=0.9)),
    "rmsprop": (rmsprop_out, dict(lr=1e-9, rho=0.9, eps=1e-8)),
    "adam": (adam_out, dict(t=5, lr=1e-9, beta1=0.9, beta2=0.999, eps=1e-8)),
}
STATE = {"sgd": (), "momentum": ("velocity",), "rmsprop": ("s",), "adam": ("m", "v")}


# Adam in a loop, naive on purpose: each lacks one thing that the next has


def adam_constants_outside(theta, grad, m, v, t, lr, beta1, beta2, eps):
    m_scale, v_scale = lr / (1 - beta1**t), 1 / (1 - beta2**t)
    for i in range(len(theta)):
        m[i] = beta1 * m[i] + (1 - beta1) * grad[i]
        v[i] = beta2 * v[i] + (1 - beta2) * grad[i] ** 2
        theta[i] -= m_scale * m[i] / (math.sqrt(v_scale * v[i]) + eps)


def adam_in_float32(theta, grad, m, v, t, lr, beta1, beta2, eps):
    number = np.float32
    m_scale, v_scale = number(lr / (1 - beta1**t)), number(1 / (1 - beta2**t))
    rest1, rest2 = number(1 - beta1), number(1 - beta2)
    beta1, beta2, eps = number(beta1), number(beta2), number(eps)
    for i in range(len(theta)):
        m[i] = beta1 * m[i] + rest1 * grad[i]
        v[i] = beta2 * v[i] + rest2 * grad[i] ** 2
        theta[i] -= m_scale * m[i] / (math.sqrt(v_scale * v[i]) + eps)


LADDER: dict[str, tuple[Any, str]] = {  # rung: (function, error model)
    "as written": (python_loops.adam_update, "python"),
    "constants before the loop": (adam_constants_outside, "python"),
    "NumPy's error model": (adam_constants_outside, "numpy"),
    "settings in float32": (adam_in_float32, "numpy"),
    "local names": (fused.adam_update, "numpy"),
}


def roots(function):
    """Return (vector, scalar): how many square root instructions a compiled function has of each kind.

    Knows the names of x86-64's and ARM's; on another processor both are 0.
    """
    code = "".join(function.inspect_asm().values())
    vector = re.findall(r"sqrtp[sd]\s|fsqrt(?:\.\d\w|\s+[vz]\d)", code)
    scalar = re.findall(r"sqrts[sd]\s|fsqrt\s+[sd]\d", code)
    return len(vector), len(scalar)


@njit(error_model="numpy")
def divide_by_root(a, b, times):
    """`a = b / (sqrt(a) + eps)`, many times: Adam's slow instructions, little else."""
    for _ in range(times):
        for i in range(a.size):
            a[i] = b[i] / (math.sqrt(a[i]) + np.float32(1e-8))


def vectors(n, count, offset=16):
    """Return `count` float32 vectors of n positive numbers, each beginning `offset` bytes after a cache line.

    16 is where NumPy's large arrays begin under glibc. No two begin at the same place in a page of memory: a processor
    that compares the last bits of addresses first may take equal ones for the same address, and wait.
    """
    rng = np.random.default_rng(0)
    made = []
    for k in range(count):
        raw = np.empty(n + 2048, np.float32)
        start = (-raw.ctypes.data % 4096 + 64 * (16 * k % 64) + offset) // 4
        vector = raw[start : start + n]
        vector[:] = rng.random(n, dtype=np.float32) / 16 + 0.01
        made.append(vector)
    return made
