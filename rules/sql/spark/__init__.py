"""Transpiler from the tree of a rule to a statement of Spark SQL."""
