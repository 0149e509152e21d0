"""`message.payload`: finding a handler's model, and validating bodies."""
