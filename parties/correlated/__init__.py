"""Correlated randomness that a dealer hands out: what is asked for, and from which streams it comes."""
