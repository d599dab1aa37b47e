"""What people look at and script: the management API and the dashboard."""
