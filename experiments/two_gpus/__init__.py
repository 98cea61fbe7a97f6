"""What does it cost to add up the gradients of several GPUs, by NCCL and otherwise? (`scaling`: what is gained.)

One process a GPU. An all-reduce by size, in a graph and asked for one by one. Of each network: its step on one GPU, and
the same on each of all, whose gradients NCCL adds up in the graph of the step; images a second count. A training on all
must end with the same bits on each, and with one GPU's losses on the halves of each batch. PyTorch: its compiled step
in a graph, with NCCL's all-reduce of one long gradient, and DDP's own step, compiled.
"""

from .measure import measure as measure  # the module is found by importlib alone
from .read import Price as Price
from .read import all_reduce as all_reduce
from .read import gain as gain
from .read import nccl_us as nccl_us
from .read import price as price
from .read import runs_of as runs_of
from .read import table as table
