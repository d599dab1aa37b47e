"""Compiler from the tree of a rule to the Python function that evaluates it."""
