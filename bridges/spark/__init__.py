"""Spark: streams become lakehouse tables, exactly once, and can be replayed and audited."""
