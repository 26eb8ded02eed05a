"""Slow imports that every party process needs: loaded once, before the parties are forked.

The fork server imports this module when it starts (some seconds of processor time, most of it torch), and its children
find everything loaded, including imports that libraries defer to their first use. Nothing here may start a thread or
touch an accelerator: neither survives a fork. multiprocessing ignores a preload that ends in ImportError, and ends the
fork server on anything else; so every failure becomes an ImportError here, and the child that misses this module
reports the reason.
"""

import gc
from importlib import import_module
from importlib.util import find_spec

MODULES = (
    "torch._dynamo",  # which the first optimiser asks for
    "timm.models.vision_transformer",
    "cryptography.hazmat.primitives.asymmetric.ed25519",
    *(["tacit.parties.crypten.passes"] if find_spec("crypten") else []),
    "tacit.simulate.federation.hosted_parties",
    "tacit.simulate.federation.child",
)

for _name in MODULES:
    try:
        import_module(_name)
    except Exception as error:
        raise ImportError(f"{_name} cannot be imported ({type(error).__name__}: {error})") from error

# A collector that walked over all of this in a child would copy its pages: a second in the middle of the first round.
gc.collect()
gc.freeze()
