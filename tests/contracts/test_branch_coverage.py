"""The measure of branch coverage: what any process ran counts once."""

from __future__ import annotations

from tests.support.branch_coverage import percentages


def test_what_any_process_ran_counts_once() -> None:
    one = {
        "rules/a.py": {
            "executed_lines": [1, 2],
            "missing_lines": [3],
            "executed_branches": [],
            "missing_branches": [[1, 2]],
        }
    }
    two = {
        "rules/a.py": {
            "executed_lines": [1],
            "missing_lines": [2, 3],
            "executed_branches": [[1, 2]],
            "missing_branches": [],
        }
    }
    assert percentages([{"files": one}]) == {"rules": 50.0}
    assert percentages([{"files": one}, {"files": two}]) == {"rules": 75.0}
    assert percentages([{"files": {}}]) == {}
