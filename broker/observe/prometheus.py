"""Metrics as text for Prometheus, https://prometheus.io/docs/instrumenting/exposition_formats/, version 0.0.4."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

from broker.observe.log import get_logger
from broker.observe.metrics import Counter, Gauge, Metrics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "sluice_"

_OF_HISTOGRAM = re.compile(r"_(bucket|sum|count)$")
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_]")

log = get_logger(__name__)


def exposition(metrics: Metrics) -> str:
    """All metrics: counters as ``sluice_NAME_total``, gauges and histograms as ``sluice_NAME``, those of one name
    together.

    A gauge that fails to read is left out and logged; the others are shown.
    """
    families: dict[str, list[Counter | Gauge]] = {}
    for metric in metrics:
        families.setdefault(_family(metric), []).append(metric)
    lines = [line for name in sorted(families) for line in _lines(name, families[name])]
    return "\n".join(lines) + "\n"


def _family(metric: Counter | Gauge) -> str:
    name = _name(metric)
    if _is_of_histogram(metric):
        return _OF_HISTOGRAM.sub("", name)
    return name if _is_gauge(metric) or name.endswith("_total") else f"{name}_total"


def _name(metric: Counter | Gauge) -> str:
    return PREFIX + _NOT_IN_NAMES.sub("_", metric.name)


def _is_of_histogram(metric: Counter | Gauge) -> bool:
    return isinstance(metric, Gauge) and metric.grows and _OF_HISTOGRAM.search(metric.name) is not None


def _kind(metric: Counter | Gauge) -> str:
    if _is_of_histogram(metric):
        return "histogram"
    return "gauge" if _is_gauge(metric) else "counter"


def _is_gauge(metric: Counter | Gauge) -> bool:
    return isinstance(metric, Gauge) and not metric.grows


def _lines(name: str, metrics: list[Counter | Gauge]) -> Iterable[str]:
    help_text = next((metric.help for metric in metrics if metric.help), "")
    if help_text:
        yield f"# HELP {name} {_escaped(help_text)}"
    yield f"# TYPE {name} {_kind(metrics[0])}"
    for metric in metrics:
        value = _read(metric)
        if value is not None:
            shown = _name(metric) if _is_of_histogram(metric) else name
            yield f"{shown}{_labels(metric.labels)} {_number(value)}"


def _read(metric: Counter | Gauge) -> float | None:
    if isinstance(metric, Counter):
        return metric.value
    try:
        return metric.read()
    except Exception as error:  # noqa: BLE001  one broken gauge must not hide the other metrics
        log.warning("metrics.gauge_failed", metric=metric.name, reason=repr(error))
        return None


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    pairs = (f'{_NOT_IN_NAMES.sub("_", name)}="{_escaped_label(value)}"' for name, value in labels.items())
    return "{" + ",".join(pairs) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _escaped_label(text: str) -> str:
    return _escaped(str(text)).replace('"', '\\"')


def _number(value: float) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("+Inf" if value > 0 else "-Inf")
    return repr(value)
