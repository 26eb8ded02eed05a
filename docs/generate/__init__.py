"""The generators of the documents: `python -m docs.generate docs` writes them."""
