"""Probes of the facts in docs/platform.md, run on AWS, the simulator and moto by ``python -m tests.facts``."""
