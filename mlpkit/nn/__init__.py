"""Networks: a model is data, a layer a frozen description, a network a model with numbers."""
