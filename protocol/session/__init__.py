"""A federation's session: joining, rounds, models, and the machines inside them."""
