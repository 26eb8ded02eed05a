"""Vision transformers, data, local training and the flat form in which a model travels (PyTorch side of Tacit)."""
