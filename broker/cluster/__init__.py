"""Several cells on one machine: processes of one broker, which share its listeners and exchange messages."""
