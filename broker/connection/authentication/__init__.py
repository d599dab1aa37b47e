"""Authentication of a connection's client, and the permissions that follow from it."""
