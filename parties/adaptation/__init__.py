"""Adapters and a head that are trained on secret shares, between a model owner and a data owner."""
