"""Types that every package may use: messages, clients, topics, errors and the small protocols features plug into.

Imports the standard library and the JSON codec only, so that features, connectors and plugins can be written against
it without the server.
"""
