"""What tests play beside the worlds of simulate/world: single secure sums, and attempts at a group key."""
