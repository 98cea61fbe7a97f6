"""What Numba's engines are made of: loops, how they are compiled, and where the compiled code is kept."""
