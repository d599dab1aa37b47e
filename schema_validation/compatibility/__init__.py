"""Which change of a schema is allowed: readers and writers of two versions, per schema language."""
