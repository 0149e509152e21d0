"""The platforms on which probes run: AWS, the simulator, moto."""
