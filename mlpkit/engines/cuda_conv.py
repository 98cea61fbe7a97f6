"""CUDA, a plan of blocks: layers that follow each other are computed together, in memory that is planned ahead."""

from .cupy_conv import *
