"""Train one network many ways: the package behind the workbook's chapters."""

__version__ = "0.3.0"
