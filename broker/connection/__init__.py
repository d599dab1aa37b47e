"""Treatment of each packet of one connection, from the first byte to the last."""
