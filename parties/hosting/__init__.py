"""One party on its own host: its file, its folder, and its work, which simulations share."""
