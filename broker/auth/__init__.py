"""Who may: what is known of a client, attributes made of it, and the authenticators that decide over it."""
