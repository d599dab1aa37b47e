"""Limits of single operations and functions, in one place. Error messages name the limit.

Input of a rule comes from any client that may publish, so nothing it does may grow beyond these: a message of a few
bytes must not fill the memory or stop the loop. ``docs/rule-language.md`` lists them for users.
"""

from __future__ import annotations

from typing import Final

# Longest array that a range or a split may build.
MAX_ITEMS: Final = 1_000_000
# Maximum rows that FOREACH or a jq program gives for one message.
MAX_ROWS: Final = 50_000
# Maximum rows of FOREACH times members of a row, which take some 60 bytes each.
MAX_ROW_MEMBERS: Final = 500_000
# Maximum bytes that the rows of one message take in the store, since what many rows name is written for each.
MAX_ROWS_BYTES: Final = 16 * 1024 * 1024
# The same in sizes of the payload, where those are more, as for a large array whose items are written once each.
MAX_ROWS_TIMES: Final = 4
# Maximum bytes of one row as JSON, or ``MAX_ROWS_TIMES`` the payload: many columns may hold the same large value.
MAX_ROW_BYTES: Final = 8 * 1024 * 1024
# Columns up to which a row is not measured, since each holds at most the payload or what one operation builds.
FEW_COLUMNS: Final = 4
# Longest array that FOREACH walks in a rule that may drop the message, which waits for it.
MAX_ITEMS_INLINE: Final = 10_000
# The same in expressions: items times what DO and INCASE evaluate for each. A call of a function takes 1 to 2 µs, as
# long as 12 other expressions.
MAX_WORK_INLINE: Final = 600_000
CALL_WORK: Final = 12
# Maximum memory of the rows of such an array, approximately, in bytes.
MAX_ROWS_MEMORY_INLINE: Final = 32 * 1024 * 1024
# Memory of rows of other rules, approximately, in bytes, from which on their actions are done before more are made.
HELD_ROWS_MEMORY: Final = 16 * 1024 * 1024
# Maximum items that FOREACH walks while the publish waits; the items of a longer array take turns with other work.
INLINE_ROWS: Final = 500
# The same in expressions: items times what DO and INCASE evaluate for each; and in rows times actions, in tenths.
INLINE_WORK: Final = 20_000
# The same in bytes: items times the size of the payload, which each row may hold or work on.
INLINE_BYTES: Final = 8 * 1024 * 1024
# Milliseconds that the rows of a list may take, with all rules that they feed, before lists of those are deferred.
MAX_CHAIN_MS: Final = 20
# Items of a long array that are evaluated before others get their turn.
ROWS_IN_A_TURN: Final = 64
# The same in items times calls for each, since a call may build a hundred kilobytes that are not counted.
CALLS_IN_A_TURN: Final = 128
# Characters or items from which on the work of an operation is counted.
LARGE: Final = 4096
# Calls of functions in a statement from which on each counts its arguments; fewer are done before that matters.
FEW_CALLS: Final = 50
# Arguments of many calls after which the time is asked for.
UNTIMED_ARGUMENTS: Final = 16
# Maximum milliseconds that an evaluation of more calls takes, whatever was counted.
MAX_EVALUATION_MS: Final = 80
# Maximum time of the operations of one evaluation on large values, by measured costs.
MAX_WORK_NS: Final = 40_000_000.0
# Maximum keys of a path that is a value: JSON has no more levels.
MAX_STEPS: Final = 128
# Longest text, in characters, that one operation may build; ``concat`` counts four for each unless all are ASCII.
MAX_TEXT: Final = 16 * 1024 * 1024
# Longest integer that one operation may build: 4,300 digits, the most that can be read from JSON and written again.
MAX_INTEGER_BITS: Final = 14_284
# Longest result of decompressing.
MAX_UNPACKED_BYTES: Final = 16 * 1024 * 1024
# Longest input of MD4, which is computed here, byte by byte, at 2 MB/s; the others at 500 MB/s and more.
MAX_MD4_BYTES: Final = 64 * 1024
# Widest field of ``sprintf``, most repetitions of ``~c``, most decimals of a float.
MAX_WIDTH: Final = 10_000
# Longest text of ``rand_str``.
MAX_RANDOM_CHARACTERS: Final = 10_000

# Longest regular expression.
MAX_PATTERN_CHARACTERS: Final = 10_000
# Maximum sum of all ``{n}`` of a regular expression: it compiles in the square of it, 80 ms here.
MAX_PATTERN_COUNTS: Final = 5_000
# Memory of one compiled regular expression.
MAX_PATTERN_BYTES: Final = 2 * 1024 * 1024
# Compiled regular expressions kept; the least recently used is compiled again when it is next needed.
MAX_PATTERNS: Final = 256
# Size of a compiled expression times the bytes of the text it may be tried on: 0.1 s at worst, usually 1 ms.
MAX_PATTERN_STEPS: Final = 20_000_000
# Milliseconds that one ``regex_replace`` may take: a linear engine tried again after each match can be quadratic.
MAX_REPLACING_MS: Final = 50

# Maximum keys of the store shared by all rules, and of one client's own.
MAX_STORE_ENTRIES: Final = 100_000
# Approximate maximum bytes of the values of the shared store, or of all clients together.
MAX_STORE_BYTES: Final = 64 * 1024 * 1024
# Maximum clients with a store of their own; the least recently used is dropped.
MAX_STORE_CLIENTS: Final = 10_000
# Maximum environment variables remembered by ``getenv``.
MAX_VARIABLES: Final = 1_000

# Maximum Sparkplug edge nodes and devices whose aliases are known; the least recently heard of is dropped.
MAX_SPARKPLUG_NODES: Final = 10_000
# Maximum aliases known of one Sparkplug edge node or device.
MAX_SPARKPLUG_ALIASES: Final = 10_000
# Maximum registrations remembered by ``schema_encode_and_tag``.
MAX_TAGGED_SCHEMAS: Final = 1_000
