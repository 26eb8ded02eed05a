"""Test vectors of the protocols, as JSON files beside this one; docs/spec/vectors.md says how to read them."""
