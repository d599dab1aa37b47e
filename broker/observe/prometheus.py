"""Metrics as text for Prometheus, https://prometheus.io/docs/instrumenting/exposition_formats/, version 0.0.4."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import isinf

from broker.observe.metrics import Gauge, Metric, Metrics, known

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "sluice_"

_OF_HISTOGRAM = re.compile(r"_(bucket|sum|count)$")
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_]")


def exposition(metrics: Metrics) -> str:
    """All metrics: counters as ``sluice_NAME_total``, gauges and histograms as ``sluice_NAME``, those of one name
    together.

    A gauge that fails to read is left out and logged; the others are shown.
    """
    families: dict[str, list[Metric]] = {}
    for metric in metrics:
        families.setdefault(_family(metric), []).append(metric)
    lines = [line for name in sorted(families) for line in _lines(name, families[name])]
    return "\n".join(lines) + "\n"


def _family(metric: Metric) -> str:
    name = _name(metric)
    if _is_of_histogram(metric):
        return _OF_HISTOGRAM.sub("", name)
    return f"{name}_total" if metric.grows and not name.endswith("_total") else name


def _name(metric: Metric) -> str:
    return PREFIX + _NOT_IN_NAMES.sub("_", metric.name)


def _is_of_histogram(metric: Metric) -> bool:
    return (
        isinstance(metric, Gauge) and metric.grows and _OF_HISTOGRAM.search(metric.name) is not None
    )


def _kind(metric: Metric) -> str:
    if _is_of_histogram(metric):
        return "histogram"
    return "counter" if metric.grows else "gauge"


def _lines(name: str, metrics: list[Metric]) -> Iterable[str]:
    help_text = next((metric.help for metric in metrics if metric.help), "")
    if help_text:
        yield f"# HELP {name} {_escaped(help_text)}"
    yield f"# TYPE {name} {_kind(metrics[0])}"
    for metric in metrics:
        value = known(metric)
        if value is not None:
            shown = _name(metric) if _is_of_histogram(metric) else name
            yield f"{shown}{_labels(metric.labels)} {_number(value)}"


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    pairs = (
        f'{_NOT_IN_NAMES.sub("_", name)}="{_escaped_label(value)}"'
        for name, value in labels.items()
    )
    return "{" + ",".join(pairs) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _escaped_label(text: str) -> str:
    return _escaped(str(text)).replace('"', '\\"')


def _number(value: float) -> str:
    if isinstance(value, float) and isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)
