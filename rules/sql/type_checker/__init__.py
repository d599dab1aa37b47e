"""Types of a statement: what columns hold, where they come from, and what looks like a mistake."""
