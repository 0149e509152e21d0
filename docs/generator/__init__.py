"""The generated pages of docs/reference/: written by ``python -m docs.generator`` (`make docs`)."""
