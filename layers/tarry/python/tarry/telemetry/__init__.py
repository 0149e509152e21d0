"""What is told of a message's transitions: one backend a file."""
