"""Which messages are traced: drawn by number, within the limit of traces, and none where no topic matches."""

from __future__ import annotations

import pytest

from broker.core.client import Client
from broker.core.message import Message
from broker.core.tracing import Spans
from broker.observe.metrics import Metrics
from broker.observe.settings import TelemetryFilter, TelemetrySettings
from broker.pipeline.recording import Recorders, TopicRecorder
from broker.pipeline.tracing import Sampler

CLIENT = Client("c")
RUN = 1000


def recorder_of(settings: TelemetrySettings, topic: str = "a") -> tuple[TopicRecorder, Metrics]:
    metrics = Metrics()
    recorders = Recorders(lambda: None)
    beyond = metrics.counter("beyond", "left out")
    recorders.add(Sampler(settings, Spans(), beyond))
    recorder = recorders.of_topic(topic)
    assert recorder is not None
    return recorder, metrics


def drawn(recorder: TopicRecorder, runs: int) -> int:
    """How many messages are chosen of runs that are forwarded in one piece where that is possible."""
    chosen = 0
    for _ in range(runs):
        left = RUN
        while left:
            if recorder.left >= left:
                recorder.left -= left
                break
            position = recorder.picks(CLIENT, left)
            if position < 0:
                break
            message = Message("a", b"", 0, False, CLIENT, 1)
            chosen += recorder.begin(message) is not None
            left -= position + 1
    return chosen


@pytest.mark.parametrize("ratio", [0.01, 0.5, 1.0])
def test_the_share_that_is_chosen_is_the_ratio(ratio: float) -> None:
    settings = TelemetrySettings(trace_all=True, ratio=ratio, max_traces_per_s=0)
    chosen = drawn(recorder_of(settings)[0], 50)
    deviation = (50 * RUN * ratio * (1 - ratio)) ** 0.5
    assert abs(chosen - 50 * RUN * ratio) <= 6 * deviation


def test_beyond_the_limit_no_run_is_taken_apart_and_what_is_left_out_is_counted() -> None:
    settings = TelemetrySettings(trace_all=True, ratio=0.1, max_traces_per_s=10)
    recorder, metrics = recorder_of(settings)
    chosen = drawn(recorder, 100)
    assert 10 <= chosen <= 200  # ten at once, and ten for each second that this took
    left_out = metrics.counter("beyond", "left out").value
    # 10,000 ± 6 standard deviations, and the last run
    assert abs(chosen + left_out - 10_000) <= 600 + RUN


def test_on_a_topic_that_is_not_traced_no_message_leaves_the_short_way() -> None:
    settings = TelemetrySettings(
        trace_all=True, ratio=1, filter=TelemetryFilter(topics=["in/#"]), max_traces_per_s=0
    )
    assert recorder_of(settings, "in/1")[0].left == 0
    assert recorder_of(settings, "out/1")[0].left > 1 << 60
