"""Benchmarks of the real code, timed part by part."""
