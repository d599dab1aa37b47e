"""What is read from the counters: exposition, ledger, rates."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from broker.observe.ledger import ledger
from broker.observe.metrics import Metrics
from broker.observe.prometheus import exposition
from broker.observe.rates import Sampler


class MovedClock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def now_ns(self) -> int:
        return int(self.now_s * 1e9)

    def monotonic_s(self) -> float:
        return self.now_s


def test_prometheus_reads_what_is_exposed() -> None:
    metrics = Metrics()
    metrics.counter("messages_dropped", "dropped\nby reason", reason='odd "name"\\\n').value = 3
    metrics.counter("messages_received", "from clients").value = 2**60
    metrics.counter("messages_dropped", reason="b").value = 1
    metrics.gauge("connections", lambda: 5, "now")
    metrics.gauge("lag", lambda: float("inf"))
    metrics.gauge("switch", lambda: True)
    families = {
        family.name: family for family in text_string_to_metric_families(exposition(metrics))
    }
    assert set(families) == {
        "sluice_messages_dropped", "sluice_messages_received", "sluice_connections", "sluice_lag", "sluice_switch",
    }  # fmt: skip
    dropped = {
        sample.labels["reason"]: sample.value
        for sample in families["sluice_messages_dropped"].samples
    }
    assert dropped == {'odd "name"\\\n': 3, "b": 1}
    assert families["sluice_messages_dropped"].type == "counter"
    assert families["sluice_connections"].type == "gauge"
    assert families["sluice_lag"].samples[0].value == float("inf")
    assert families["sluice_switch"].samples[0].value == 1
    assert f"sluice_messages_received_total {2**60}\n" in exposition(metrics)


def test_a_histogram_is_one_for_prometheus() -> None:
    metrics = Metrics()
    took = metrics.histogram("commit_seconds", (0.1, 1.0), "how long")
    for value in (0.05, 0.1, 0.5, 7):
        took.note(value)
    [family] = text_string_to_metric_families(exposition(metrics))
    assert (family.name, family.type, family.documentation) == (
        "sluice_commit_seconds",
        "histogram",
        "how long",
    )
    assert [(sample.name, sample.labels.get("le"), sample.value) for sample in family.samples] == [
        ("sluice_commit_seconds_bucket", "0.1", 2),
        ("sluice_commit_seconds_bucket", "1.0", 3),
        ("sluice_commit_seconds_bucket", "+Inf", 4),
        ("sluice_commit_seconds_sum", None, 7.65),
        ("sluice_commit_seconds_count", None, 4),
    ]


def test_a_gauge_that_fails_hides_no_other() -> None:
    metrics = Metrics()
    metrics.gauge("broken", lambda: 1 / 0)
    metrics.gauge("good", lambda: 1)
    assert "sluice_good 1" in exposition(metrics)
    assert "sluice_broken " not in exposition(metrics).replace("# TYPE sluice_broken ", "")


def test_the_ledger_accounts_for_every_message() -> None:
    metrics = Metrics()
    metrics.counter("messages_received", qos="0").value = 60
    metrics.counter("messages_received", qos="1").value = 42
    metrics.counter("messages_resent_already_taken").value = 2
    metrics.counter("messages_internal").value = 10
    metrics.counter("messages_passed").value = 95
    metrics.counter("messages_dropped", reason="validation_failed").value = 12
    metrics.counter("messages_dropped", reason="no_subscribers").value = 5
    metrics.counter("messages_dropped", reason="never").value = 0
    assert ledger(metrics).as_dict() == {
        "received": 112,
        "accepted": 90,
        "dropped": 19,
        "residual": 3,
        "dropped_by_reason": {"already_taken": 2, "validation_failed": 12, "no_subscribers": 5},
    }


def test_rates_are_taken_over_the_window() -> None:
    clock = MovedClock()
    sampler = Sampler(clock, window_s=5.0, step_s=0.5)
    assert sampler.rates({"received": 1000}) == {"received": 0.0}
    for second in range(1, 11):
        clock.now_s = 100.0 + second
        rates = sampler.rates({"received": 1000 + 100 * second})
    assert rates == {"received": 100.0}
    clock.now_s += 1
    assert sampler.rates({"received": 2000, "new": 7}) == {"received": 80.0, "new": 0.0}


def test_rates_after_a_pause_are_the_average_since() -> None:
    clock = MovedClock()
    sampler = Sampler(clock)
    sampler.rates({"received": 0})
    clock.now_s += 100
    assert sampler.rates({"received": 500}) == {"received": 5.0}


def test_a_counter_that_starts_anew_gives_no_negative_rate() -> None:
    clock = MovedClock()
    sampler = Sampler(clock)
    sampler.rates({"received": 500})
    clock.now_s += 1
    assert sampler.rates({"received": 0}) == {"received": 0.0}
