"""What the readers share: inputs, targets and their shares, a picture."""
