"""The management API: HTTP over the verbs of the features, nothing of its own to decide."""
