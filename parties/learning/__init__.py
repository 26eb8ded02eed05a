"""Computation of a federation: the task, a client's work on it, and its application by the server."""
