"""Audits: recorded runs of a configuration, attacked with the observations of their parties."""
