"""Private inference in real processes on one machine, and the student that it serves."""
