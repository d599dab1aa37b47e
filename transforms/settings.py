"""Settings of message transformations."""

from __future__ import annotations

from broker.config.model import Settings


class TransformsSettings(Settings):
    """There are none yet: transformations are objects, kept in ``message_transformation.transformations``."""
