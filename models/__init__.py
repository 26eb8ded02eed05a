"""Vision transformers, data, local training, and the flat vector form of a model (the PyTorch side of Tacit)."""
