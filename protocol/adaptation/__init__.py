"""Double-blind adaptation: training adapters on secret shares."""
