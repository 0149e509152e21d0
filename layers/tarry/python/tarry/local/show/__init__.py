"""What a developer sees of a cloud: states of messages, a screen, lines."""
