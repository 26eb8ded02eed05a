"""Readers of data sets in their published formats, one per module. Nothing is downloaded."""
