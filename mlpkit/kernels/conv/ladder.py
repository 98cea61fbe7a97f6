"""The rungs of all modules, in the ladder's order, and which of them does a pass best."""

from mlpkit.kernels.conv import cores, cudnn, fourier, implicit, planes, product, winograd

MODULES = (cores, product, implicit, winograd, fourier, planes, cudnn)
RUNGS = {name: rung for module in MODULES for name, rung in module.RUNGS.items()}
OURS = tuple(name for name in RUNGS if name not in cudnn.RUNGS)
