"""Code that runs in the broker: saved tables, their verbs and views, and the lake job's process."""
