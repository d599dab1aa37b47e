"""Outside services that decide about clients: HTTP services, databases and directories."""
