"""Private inference: a model owner, a data owner and a dealer."""
