"""Sessions that outlive a connection: how they begin and end, what is stored of them, and what waits for them."""
