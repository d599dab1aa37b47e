"""Rules for which changes of a schema are allowed: readers and writers of two versions, per schema language."""
