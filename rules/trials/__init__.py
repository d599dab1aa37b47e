"""Trying rules without effects: test cases, dry runs step by step, back-tests over streams."""
