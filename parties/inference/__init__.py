"""Private inference of vision transformer blocks between a model owner and a data owner, with a dealer."""
