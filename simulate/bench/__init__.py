"""Benchmarks: the real code, timed part by part, with figures that a program can read."""
