"""Bodies as OpenAPI shows them. They describe; what is accepted is decided by the services, with better words.

Those that take ``extra`` members have them described by the feature that reads them.
"""
