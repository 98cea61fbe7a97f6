"""What the convolutions in NumPy share: a batch in pieces, images with borders, and Winograd's small transforms."""
