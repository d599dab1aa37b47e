"""Types, names and places of columns and tables, known to every other part."""
