"""Private inference by CrypTen's tensors, in sessions, on links and with a dealer of Tacit's own."""
