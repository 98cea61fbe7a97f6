"""A sample of Fashion-MNIST: the first 2,000 of its test images, which come with the workbook."""

from ..originals import File, Originals
from .fashion_mnist import CLASSES as CLASSES

TEST_ONLY = True
ORIGINALS = Originals("Fashion-MNIST-sample", (
    File("sample-images-idx3-ubyte", "862035b0a96959b614c9574f4c2b0ae9584ca234813e8d6d7adb7838b12ca46b"),
    File("sample-labels-idx1-ubyte", "aa3f574d30afaf0d4d9da084a6f8541771e20693d6a97fae6e9a4953fca8f078"),
))  # fmt: skip
read = ORIGINALS.read
