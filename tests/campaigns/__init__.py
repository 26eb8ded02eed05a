"""Whole federations under random faults: delays, cut links, kills, failures of power, links that break their promise.

Every run follows from its campaign and its seed; one that breaks a rule says with which command it is repeated.
"""
