"""The `Tarry` attribute, and the attempts that are stored."""
