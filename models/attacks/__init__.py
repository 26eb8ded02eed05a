"""Attacks on training: from gradients, as a server decodes them, back to images and labels.

Pure functions on tensors. None receives an image or a label that it has to find; the evaluation is elsewhere.
"""
