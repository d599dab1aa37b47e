"""One module per schema language: from source text to something that decodes, encodes and explains."""
