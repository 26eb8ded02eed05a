"""What a federation computes: the task, a client's work on it, and how the server applies it."""
