"""A matrix product, rung by rung: CUDA C, one idea a file, and the first ideas in Numba."""
