"""Attacks on what a model's training gives away: from gradients, as a server decodes them, back to images and labels.

Pure functions on tensors. None is given an image or a label that it has to find; who judges them is elsewhere.
"""
