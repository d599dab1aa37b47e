"""Settings of the schema registry and of validations."""

from __future__ import annotations

from broker.config.model import Settings


class SchemaValidationSettings(Settings):
    """There are none yet: schemas and validations are objects with sections of their own."""
