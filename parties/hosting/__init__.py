"""One party on a host of its own: its file, its folder, and its work, which a simulation shares."""
