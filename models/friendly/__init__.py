"""Vision transformers that also run on encrypted or shared values: of additions and products only, or as they are."""
