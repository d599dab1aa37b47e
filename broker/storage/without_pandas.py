"""Keeps pandas out of a process that uses pyarrow.

pyarrow imports pandas, where it is installed, when it first makes an array of Python objects, only to ask whether they
are pandas' own. That takes 0.7 s and 49 MiB in each process, for nothing: no array here comes from pandas.
"""

from __future__ import annotations

import sys
import warnings
from importlib.machinery import ModuleSpec
from types import ModuleType

_is_asked_for = False


def keep_pandas_out() -> None:
    """Let pyarrow find a pandas that is too old to be used, at its one look; pandas itself can be imported later.

    For the whole process, from which ``to_pandas`` is gone then: called where a process begins, not on import. Where
    pyarrow is not there yet, ``broker.storage.records`` brings it and has it look.
    """
    global _is_asked_for
    _is_asked_for = True
    if "pyarrow" in sys.modules:
        let_pyarrow_look()


def let_pyarrow_look() -> None:
    """Trigger the import check of pandas by pyarrow, where pandas must stay out."""
    if not _is_asked_for or "pandas" in sys.modules:
        return
    import pyarrow as pa

    too_old = ModuleType("pandas")
    too_old.__dict__["__version__"] = "0"
    too_old.__spec__ = ModuleSpec("pandas", None)  # other threads may ask importlib for it just now
    sys.modules["pandas"] = too_old
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it says that this pandas is too old
            pa.array([None])
    finally:
        del sys.modules["pandas"]
