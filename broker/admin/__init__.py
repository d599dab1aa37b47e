"""The verbs of management, without HTTP: what the API and the command line both offer."""
