"""How a network learns: optimizers, rates, the loop over epochs, and what is kept of it."""
