"""Exploration: every run of the real machines, up to stated bounds, with invariants watched in every state.

engine.py knows no protocol; a protocol brings a World. The secure sum has two: the real server over a network that
delays, reorders, repeats and loses (network_world.py), and clients alone against a server that lies (lying_world.py).
Over sessions and rounds there is one client, which restarts, against such a server (session_lying_world.py).
"""
