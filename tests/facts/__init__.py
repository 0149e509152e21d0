"""The facts of docs/platform.md as probes: run against AWS, the simulator and moto by ``python -m tests.facts``."""
