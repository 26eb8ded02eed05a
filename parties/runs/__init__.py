"""A run: its experiment, its directory on disk, its events, and its summary."""
