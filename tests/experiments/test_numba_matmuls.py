"""The kernels in Python multiply, in Numba's simulator: in a process of its own, for numba asks once, as it loads."""

import os
import subprocess
import sys

import pytest

from experiments.lab import results

CHECK = """
import sys
import numpy as np
from numba import config
from experiments.matmul_ladder import numba_matmuls

assert config.ENABLE_CUDASIM
kernel = getattr(numba_matmuls, sys.argv[1])
rng = np.random.default_rng(0)
for m, k, n in [(1, 1, 1), (3, 5, 2), (9, 1, 7), (10, 17, 9), (8, 8, 8)]:
    a, b = (rng.uniform(-1, 1, shape).astype(np.float32) for shape in ((m, k), (k, n)))
    np.testing.assert_allclose(numba_matmuls.matmul(kernel, a, b), a @ b, rtol=1e-5, atol=1e-6)
a[0, 3], b[3, 1] = np.nan, np.inf
np.testing.assert_allclose(numba_matmuls.matmul(kernel, a, b), a @ b, rtol=1e-5, atol=1e-6)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["naive", "coalesced", "shared"])
def test_a_kernel_multiplies_in_the_simulator(kernel):
    env = os.environ | {"NUMBA_ENABLE_CUDASIM": "1"}
    command = [sys.executable, "-W", "ignore", "-c", CHECK, kernel]
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=results.ROOT)
    assert done.returncode == 0, done.stderr
