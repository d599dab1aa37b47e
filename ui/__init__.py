"""Interfaces for users and their scripts: the management API and the dashboard."""
