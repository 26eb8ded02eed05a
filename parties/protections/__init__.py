"""What a client does to its update before it is summed: one file for each protection, and encryption beside them."""
