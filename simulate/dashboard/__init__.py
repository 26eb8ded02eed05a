"""A live view of a run: one page in a browser, and metrics for Prometheus."""
