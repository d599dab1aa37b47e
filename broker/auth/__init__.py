"""Authentication and authorization: facts about a client, its attributes, and the authenticators."""
