"""Sockets: listeners, the asyncio protocol around a connection, the running server."""
