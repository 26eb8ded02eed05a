"""Readers of data sets in the formats in which they are published; each module reads one. Nothing is downloaded."""
