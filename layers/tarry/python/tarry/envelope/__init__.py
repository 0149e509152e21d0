"""The tarry envelope, the `Tarry` attribute that travels with a copy: reading, writing, fitting it into the limits."""
