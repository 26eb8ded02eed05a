"""Training of adapters and a head on secret shares, between a model owner and a data owner."""
