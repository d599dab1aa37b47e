"""The syntax of rule SQL: tokens, the tree, and its text."""
