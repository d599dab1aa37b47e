"""Tables with `tables`: rows go into a table each by a template of its name."""
