"""Transformations of publishes: payload codecs, operations, and the gate that runs them."""
