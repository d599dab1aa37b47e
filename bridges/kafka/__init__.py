"""Apache Kafka: rows to topics, and topics to messages."""
