"""Audits of an adaptation: extraction of the model by a data owner, and of images by the model owner."""
