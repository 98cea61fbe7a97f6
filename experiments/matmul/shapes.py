"""The products that the stages are timed on: those of a training step, and what varies one of their sizes."""

from experiments.lab.products import Product, of_step

STEP = tuple(p for p in of_step(128) if "W3" not in p.name and "dz3" not in p.name)  # layer 3's are layer 2's again
FIRST = STEP[0]
TURNED = Product("turned", "X W1, W1 stored by columns", FIRST.n, FIRST.k, FIRST.m, turned="b")
BATCHES = tuple(Product("batch", str(n), n, FIRST.k, FIRST.m) for n in (1, 2, 8, 16, 32, 64, 128, 256, 512, 2048))
CUBES = tuple(Product("cube", str(n), n, n, n) for n in (64, 128, 256, 512, 1024, 2048))
DEPTHS = tuple(Product("depth", str(k), 128, k, 128) for k in (16, 32, 48, 64, 96, 128, 256, 784))
GROUPS = {"step": STEP, "turned": (TURNED,), "batch": BATCHES, "cube": CUBES, "depth": DEPTHS}
