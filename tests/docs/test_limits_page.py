"""The page on limits does what it says."""

from __future__ import annotations

import re
from pathlib import Path

from broker.auth.login_limits import LoginLimitSettings
from broker.connection.settings import MqttSettings
from broker.net.settings import ListenerSettings
from broker.routing.delayed import DelayedSettings
from broker.routing.settings import RetainedSettings
from broker.storage.settings import StoreSettings
from tests.docs.session import ROOT, commands, run

PAGE = ROOT / "docs" / "how-to" / "limits-and-overload.md"


def test_dead_letters_and_alarms_are_as_described(tmp_path: Path) -> None:
    letter, alarms = run(commands(PAGE), tmp_path)[-2:]
    assert "$dead/no_subscribers/nobody/asks 21.5" in letter
    for told in ("dead-letter-reason:no_subscribers", "dead-letter-topic:nobody/asks", "dead-letter-publisher:meter-7"):
        assert told in letter
    assert "Error" not in alarms


def test_settings_that_the_tables_name_exist() -> None:
    named = set(re.findall(r"`(?:mqtt\.)?(max_\w+|queue_\w+|publish_rate_\w+|slow_\w+)", PAGE.read_text()))
    assert len(named) > 20
    models = (MqttSettings, ListenerSettings, StoreSettings, LoginLimitSettings, DelayedSettings, RetainedSettings)
    assert named <= {name for model in models for name in model.model_fields}
