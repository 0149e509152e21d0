"""Where a probe can be run: AWS, the simulator, moto."""
