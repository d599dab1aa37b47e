"""Other MQTT brokers, both ways: Sluice as a client of theirs."""
