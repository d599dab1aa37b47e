"""The command `sluice`: a client of the management API, and what must work on a stopped broker."""
