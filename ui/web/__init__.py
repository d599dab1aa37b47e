"""The status page: static files, served by the management API."""
