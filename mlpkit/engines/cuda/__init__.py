"""What the GPU's engines are made of: cuBLAS's products, graphs of kernels, and copies that nobody waits for."""
