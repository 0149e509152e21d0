"""How long messages stay invisible to other consumers: leases, extending and renewing them."""
