"""`message.payload`: the model of a handler, and bodies validated as it."""
