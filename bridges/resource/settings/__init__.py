"""What connectors' settings have in common: addresses, secrets, TLS, tokens, ``resource_opts``."""
