"""Audits of an adaptation: what a data owner makes of the model, and the model owner of images."""
