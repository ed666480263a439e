"""Tessera: attention over a sparse set of tiles.

    import numpy, tessera
    q, k, v = (numpy.random.rand(1, 8, 4096, 64).astype("float32") for _ in range(3))
    pattern = tessera.Pattern.from_spec("window(128,128)+global(16)", 4096)
    o = tessera.attention(q, k, v, pattern)

The library is libtessera.so, beside this package, where TESSERA_LIBRARY says, or the system's. What it computes and
promises is docs/semantics.md; torch is imported only with tessera.torch, or by the caller.
"""
from ._library import (ArgumentError, CudaError, LibraryError, ListError, OutOfMemoryError, TesseraError,
                       UnsupportedError, library)
from ._structs import VERSION as __version__
from .attention import attention, attention_backward
from .cache import plan_cache
from .device_pattern import CAUSAL, DevicePattern
from .lists import Lists
from .merging import merge, unmerge
from .mlp import MLP
from .pattern import Pattern
from .plan import BackwardPlan, Plan, ReservedPlan
from .pooling import Columns, columns, pool, pool_score
from .selection import Selected, select

__all__ = ["ArgumentError", "BackwardPlan", "CAUSAL", "Columns", "CudaError", "DevicePattern", "LibraryError",
           "ListError", "Lists", "MLP", "OutOfMemoryError", "Pattern", "Plan", "ReservedPlan", "Selected", "TesseraError",
           "UnsupportedError", "attention", "attention_backward", "columns", "library", "merge", "plan_cache", "pool",
           "pool_score", "select", "unmerge"]
