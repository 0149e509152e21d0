"""`tarry local`: the queues and functions of a template on this machine, in real or virtual time."""
