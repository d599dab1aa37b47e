"""The dashboard: its sources, what is built of them in ``dist``, and the files of the pages under ``/docs``."""
