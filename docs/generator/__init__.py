"""The generated pages of docs/reference/: written by ``python -m tests.reference`` (`make docs`)."""
