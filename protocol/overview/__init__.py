"""What is said about all protocols: declared costs and diagrams."""
