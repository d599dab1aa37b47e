"""Settings that connectors share: addresses, secrets, TLS, tokens, ``resource_opts``."""
