"""What leaks: recorded runs of a configuration, attacked with what a party of them saw."""
