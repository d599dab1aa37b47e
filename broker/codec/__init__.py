"""MQTT 3.1, 3.1.1 and 5.0 as bytes: packets in, packets out, no I/O, for both ends of a connection."""
