"""The only import of CrypTen: all other modules take `crypten` from here.

pip cannot install it as a dependency (docs/crypten.md): if it is missing, importing this module raises
CryptenMissingError, which says how to install it.

CrypTen 0.4.1 imports torch.onnx._internal.registration for its ONNX converter. Newer torch (from 2.9) has moved that
module; this module restores the old name before CrypTen imports it.
"""

import sys
from importlib import import_module
from importlib.util import find_spec

from tacit.parties.crypten.errors import CryptenMissingError

__all__ = ["crypten"]

_OLD = "torch.onnx._internal.registration"
_NEW = "torch.onnx._internal.torchscript_exporter.registration"

if _OLD not in sys.modules and find_spec(_OLD) is None:
    sys.modules[_OLD] = import_module(_NEW)

try:
    import crypten
    import crypten.mpc.primitives.arithmetic
except ImportError as reason:
    raise CryptenMissingError(reason) from None
