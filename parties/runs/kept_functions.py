"""Functions without an importable module, stored by value in the run directory: notebooks, partials, lambdas, scripts.

Other processes import them from a module that is written there, DIR/own/own_functions_*.py, which loads a pickle beside
it. So a run directory with them contains code, and resuming it runs that code.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

_PREFIX: Final = "own_functions_"
_FOLDER: Final = "own"
_HEAD: Final = '''"""Functions of this run, which no module has: their values are in the pickle beside this file."""

import pickle
from pathlib import Path

_KEPT = pickle.loads(Path(__file__).with_suffix(".pickle").read_bytes())
'''
_FUNCTION: Final = """

def {name}(*given, **more):
    return _KEPT["{name}"](*given, **more)


{name}.__wrapped__ = _KEPT["{name}"]
"""


@dataclass(frozen=True)
class KeptFunctions:
    names: tuple[str, ...]
    pickled: bytes = field(repr=False)

    @classmethod
    def of(cls, functions: Mapping[str, Callable[..., Any]]) -> KeptFunctions:
        """ValueError, with the reason, for a function that cannot be stored, such as one that holds an open file."""
        import cloudpickle

        try:
            return cls(tuple(functions), cloudpickle.dumps(dict(functions)))
        except Exception as error:
            raise ValueError(f"{', '.join(functions)} cannot be kept for other processes: {error}") from None

    @property
    def module(self) -> str:
        return _PREFIX + sha256(self.pickled).hexdigest()[:12]

    def write(self, directory: Path) -> None:
        """Write the module into a run directory, for `find`. OSError."""
        folder = directory / _FOLDER
        folder.mkdir(exist_ok=True)
        for old in folder.glob(f"{_PREFIX}*"):
            old.unlink()
        (folder / f"{self.module}.pickle").write_bytes(self.pickled)
        text = _HEAD + "".join(_FUNCTION.format(name=name) for name in self.names)
        (folder / f"{self.module}.py").write_text(text, encoding="utf-8")


def find(directory: Path) -> str:
    """Make the functions of a run directory importable in this process and its children; returns the name of their
    module, or "" if there is none."""
    folder = (directory / _FOLDER).absolute()
    module = next((path.stem for path in sorted(folder.glob(f"{_PREFIX}*.py"))), "")
    if module and str(folder) not in sys.path:
        sys.path.append(str(folder))
    return module
