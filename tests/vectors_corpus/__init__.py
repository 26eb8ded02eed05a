"""What the vectors are made from: inputs only. What is expected of them is recorded from the real code."""
