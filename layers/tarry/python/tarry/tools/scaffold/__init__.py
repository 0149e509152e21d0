"""The project that `tarry init` writes: a consumer to start from, with a copy of tarry for its layer."""
