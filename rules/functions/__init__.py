"""The functions rules can call, a module per family; the decorator in ``registry`` is all that adding one takes."""
