"""Putting it together: settings to objects, start in order, stop in reverse."""
