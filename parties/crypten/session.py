"""One computing party: CrypTen in this process, on our links and with the given provider of correlated randomness.

CrypTen keeps its communicator, provider and configuration in global variables, so a process is one party; it blocks, so
a party with an event loop runs it in a thread of its own, where it also opens the links.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tacit.parties.crypten.communicator import LinkCommunicator
from tacit.parties.crypten.compatibility import Replacement, corrected, crypten, replaced
from tacit.parties.crypten.link import PeerLink

_PROVIDER = "TACIT"


@contextmanager
def computing(
    own: str, *, parties: Sequence[str], links: Mapping[str, PeerLink], provider: Any
) -> Iterator[LinkCommunicator]:
    """CrypTen is ready within the block, and corrected: all of its calls go over the links, to the parties in the order
    of their rank.

    provider: a crypten.mpc.provider.provider.TupleProvider. CrypTen's own are for tests alone: with them, one party
    knows all masks. Raises RuntimeError when this process already computes, and what the links raise.
    """
    if crypten.communicator.is_initialized():
        raise RuntimeError("this process already takes part in a computation: CrypTen allows one party per process")
    providers = vars(crypten.mpc)["__SUPPORTED_PROVIDERS"]
    before = crypten.cfg.mpc.provider
    communicator = LinkCommunicator(own=own, parties=parties, links=links)
    LinkCommunicator.prepared = communicator
    ours: Replacement = (crypten.communicator, "DistributedCommunicator", LinkCommunicator)
    providers[_PROVIDER] = provider
    crypten.cfg.mpc.provider = _PROVIDER
    try:
        with replaced([ours]), corrected():
            crypten.init()
            yield communicator
    finally:
        LinkCommunicator.shutdown()
        crypten.cfg.mpc.provider = before
        del providers[_PROVIDER]
