"""The arithmetic of secure aggregation: ring, quantisation, packing, masks, secret sharing, neighbour graph.

Pure functions on NumPy arrays, without I/O, waiting, or randomness of their own.
"""
