"""Double-blind adaptation in real processes on one machine."""
