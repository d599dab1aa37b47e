"""How much one operation or function may take, in one place. Each is told in the sentence of its refusal.

What a rule is given comes from anybody who may publish, so nothing it does may grow beyond these: a message of a few
bytes must not fill the memory or stop the loop. ``docs/rule-language.md`` lists them for people.
"""

from __future__ import annotations

from typing import Final

MAX_ITEMS: Final = 1_000_000
"""Longest array that a range or a split may build."""
MAX_TEXT: Final = 16 * 1024 * 1024
"""Longest text, in characters, that one operation may build."""
MAX_INTEGER_BITS: Final = 14_284
"""Longest integer that one operation may build: 4,300 digits, the most that can be read from JSON and written again."""
MAX_UNPACKED_BYTES: Final = 16 * 1024 * 1024
"""Longest result of decompressing."""
MAX_MD4_BYTES: Final = 64 * 1024
"""Longest string that MD4 is made of: it is computed here, byte by byte, at 2 MB/s; the others at 500 MB/s and more."""
MAX_WIDTH: Final = 10_000
"""Widest field of ``sprintf``, most repetitions of ``~c``, most decimals of a float."""
MAX_RANDOM_CHARACTERS: Final = 10_000
"""Longest text of ``rand_str``."""

MAX_PATTERN_CHARACTERS: Final = 10_000
"""Longest regular expression."""
MAX_PATTERN_COUNTS: Final = 5_000
"""Most that all ``{n}`` of a regular expression may sum up to: it compiles in the square of it, 80 ms here."""
MAX_PATTERN_BYTES: Final = 2 * 1024 * 1024
"""Memory of one compiled regular expression."""
MAX_PATTERNS: Final = 256
"""Compiled regular expressions kept; the one not used for longest is compiled again when it is next needed."""
MAX_PATTERN_STEPS: Final = 100_000_000
"""Size of a compiled expression times the bytes of the text it may be tried on: half a second at worst."""
MAX_REPLACING_S: Final = 1.0
"""How long one ``regex_replace`` may take: a linear engine tried again after each match can be quadratic."""

MAX_STORE_ENTRIES: Final = 100_000
"""Most keys of the store shared by all rules, and of one client's own."""
MAX_STORE_BYTES: Final = 64 * 1024 * 1024
"""About how much the values of the shared store, or of all clients together, may take."""
MAX_STORE_CLIENTS: Final = 10_000
"""Most clients with a store of their own; the one not used for longest is forgotten."""
MAX_VARIABLES: Final = 1_000
"""Most environment variables remembered by ``getenv``."""

MAX_SPARKPLUG_NODES: Final = 10_000
"""Most Sparkplug edge nodes and devices whose aliases are known; the one not heard of for longest is forgotten."""
MAX_SPARKPLUG_ALIASES: Final = 10_000
"""Most aliases known of one Sparkplug edge node or device."""
MAX_TAGGED_SCHEMAS: Final = 1_000
"""Most registrations remembered by ``schema_encode_and_tag``."""
