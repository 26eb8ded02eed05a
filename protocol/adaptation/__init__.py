"""What is said when adapters are trained on secret shares."""
