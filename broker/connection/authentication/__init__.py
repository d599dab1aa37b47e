"""How a connection proves who its client is, and what it may do from then on."""
