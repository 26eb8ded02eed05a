"""Write all vectors, their schema and their page: `python -m tests.vectors_corpus DIRECTORY PAGE`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.vectors_corpus.files import write_corpus
from tests.vectors_corpus.page import page

if __name__ == "__main__":
    write_corpus(Path(sys.argv[1]))
    Path(sys.argv[2]).write_text(page(), encoding="utf-8")
