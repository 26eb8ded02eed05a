"""The `tacit` command: reads arguments, calls the packages, prints. No logic of its own."""
