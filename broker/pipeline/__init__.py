"""The stages every publish passes, planned once per topic."""
