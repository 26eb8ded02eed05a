"""The conformance kit: checks of another implementation, or of this installation."""
