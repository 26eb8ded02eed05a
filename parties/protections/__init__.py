"""Transformations of a client's update before the sum: one file per protection, and encryption beside them."""
