"""Exit codes of every command. They may be scripted against and do not change."""

from __future__ import annotations

DONE = 0
FAILED = 1
USAGE = 2
NOT_REACHABLE = 3
NOT_ALLOWED = 4
NOT_FOUND = 5
CONFLICT = 6
# A lint, test or audit ran and its answer is negative.
CHECK_SAID_NO = 7
# An audit could not read the table, so it has no answer.
UNREADABLE = 8
# A dry run of ``sluice apply`` ran, and the broker differs from the files.
DIFFERENT = 9
TIMED_OUT = 124
INTERRUPTED = 130
