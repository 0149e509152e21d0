"""The display of a running cloud: states of messages, a screen, log lines."""
