"""The MQTT server: from a socket, through the pipeline, to subscribers and durable streams."""
