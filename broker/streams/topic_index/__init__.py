"""An index of streams by topic: a copy of their records that is arranged by topic."""
