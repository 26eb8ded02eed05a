"""The arithmetic of secure aggregation: ring, quantisation, packing, masks, secret sharing, neighbour graph.

Pure functions on NumPy arrays; nothing here talks, waits, or draws randomness of its own.
"""
