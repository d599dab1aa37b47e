"""Pages that start Spark do what they say: see ``test_pages``. Tests with Spark share a process of the test run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.test_pages import check_commands, runs

pytestmark = [pytest.mark.spark, pytest.mark.timeout(930)]


@pytest.mark.parametrize("page", list(runs(spark=True)))
def test_commands_of_a_page_do_what_it_says(page: str, tmp_path: Path) -> None:
    check_commands(page, tmp_path)
