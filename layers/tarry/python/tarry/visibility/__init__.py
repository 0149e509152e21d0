"""How long messages stay hidden from other consumers: leases, extending and renewing them."""
