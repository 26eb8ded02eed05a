"""Federations held against a real network: every party in a network namespace of its own, started by its command.

`make network` runs them. They need the right to make namespaces, as root has; elsewhere they say so and are skipped.
"""
