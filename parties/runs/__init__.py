"""What a run is: its experiment, its directory on disk, its summary, and how all that is said in words."""
