"""What evaluating a rule may raise."""

from __future__ import annotations

from broker.core.errors import SluiceError


class EvaluationError(SluiceError):
    """A rule cannot be evaluated on this message; nothing is output. The text says which operation and why."""

    code = "evaluation"
