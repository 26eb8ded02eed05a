"""Correlated randomness from a dealer: the requests, and the streams that it is drawn from."""
