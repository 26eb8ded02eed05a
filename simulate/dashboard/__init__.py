"""A run while it happens: one page in a browser, and figures for Prometheus."""
