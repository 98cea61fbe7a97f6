"""Kernels of whole convolutional networks, beside the convolutions themselves, which are in `kernels.conv`."""
