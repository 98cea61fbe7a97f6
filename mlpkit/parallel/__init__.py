"""Data parallel: several processes train one network, each on its share of every batch, and add up their gradients.

A process is a rank. All have the same parameters and do the same update, so nothing but gradients is exchanged: `ring`
does it between processes of this machine, NCCL between GPUs (`gpus`). `ranks.train` starts them, and watches over them.
"""
