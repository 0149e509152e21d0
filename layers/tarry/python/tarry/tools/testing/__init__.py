"""The sandbox, its faults and checkers, and helpers for tests; `tarry.testing` has the public names."""
