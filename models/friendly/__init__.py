"""Vision transformers that need additions and products only, so that they also run on encrypted or shared values."""
