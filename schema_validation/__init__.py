"""The schema registry, and validations: which messages a schema or an SQL condition lets through."""
