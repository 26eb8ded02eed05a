"""Secure computation between two or three parties: CrypTen on authenticated links, with a dealer for its randomness."""
