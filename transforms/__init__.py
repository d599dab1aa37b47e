"""Message transformations, and variform, the expression language they are written in."""
