"""Transformations of a client's update before it is summed: one file for each protection, and encryption beside
them."""
