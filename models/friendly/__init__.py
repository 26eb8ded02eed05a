"""MPC-friendly vision transformers, for encrypted or shared values: additions and products only, or exact functions."""
