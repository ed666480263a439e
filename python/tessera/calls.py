"""Calls that no plan stands behind: views of their arrays, and the current stream of their device."""
from __future__ import annotations

import contextlib
from typing import Any

import numpy

from . import _structs as c
from ._library import library
from .arrays import FLOATS, HOST, array, is_torch, torch_module, vector, view_class


def call(name: str, where: int, *arguments: Any) -> None:
    """A call for arrays on one device, on its current stream."""
    guard = contextlib.nullcontext() if where == HOST else torch_module().cuda.device(where)
    with guard:
        stream = None if where == HOST else torch_module()._C._cuda_getCurrentRawStream(where)
        library.call(name, c.TESS_CPU if where == HOST else c.TESS_CUDA, *arguments, stream=stream)


def view_of(x: Any, name: str, where: int, write: bool = False) -> Any:
    view = view_class(is_torch(x))(name, FLOATS, where, write)
    view.set(x)
    return view


def kinds(torch: bool) -> Any:
    return torch_module() if torch else numpy


def optional(x: Any, name: str) -> Any:
    """The array of x, which the caller of a function may leave out: to be kept until the call returns."""
    return None if x is None else array(x, name)


def numbers(x: Any, name: str, batch: int, where: int) -> int | None:
    """Address of an array int32 [batch], or None."""
    return None if x is None else vector(x, name, ("int32",), (batch,), where)
