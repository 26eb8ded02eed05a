"""A whole federation in real processes on one machine."""
