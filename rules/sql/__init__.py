"""The rule language: text to sqlglot tree, tree to types and to one Python function. No I/O."""
