"""INSECURE variants that disclose the model, for simulation only.

No host can offer or accept them: neither party files nor the terms on the wire have a field for them.
"""
