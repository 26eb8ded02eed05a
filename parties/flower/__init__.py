"""Secure sums in Flower apps: a grid for their servers, a mod for their clients. Needs the extra `flower`."""

from importlib.util import find_spec

if find_spec("flwr") is None:
    raise ModuleNotFoundError("tacit.parties.flower needs flwr: pip install 'flwr>=1.42,<2'", name="flwr")

from tacit.parties.flower.grid import NobodyThereError, SecureGrid
from tacit.parties.flower.mod import secure_sum_mod
from tacit.protocol import Policy

__all__ = ["NobodyThereError", "Policy", "SecureGrid", "secure_sum_mod"]
