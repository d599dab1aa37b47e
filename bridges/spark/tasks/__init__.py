"""Code that runs in Spark tasks: records become rows, and rows become files."""
