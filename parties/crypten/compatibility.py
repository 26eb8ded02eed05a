"""The one place that imports CrypTen: everybody else takes `crypten` from here.

It is no dependency that pip could install (docs/crypten.md): where it is missing, importing this module raises
CryptenMissingError, which says how to install it.

CrypTen 0.4.1 imports torch.onnx._internal.registration for its ONNX converter. Newer torch (2.9 on) has moved that
module; it gets its old name back before CrypTen looks for it.
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
