"""The shared library: found, held against the structs of this package, called; its errors as exceptions."""
from __future__ import annotations

import ctypes
import os
import pathlib
from ctypes import byref, c_void_p
from typing import Any

from . import _structs as c


class TesseraError(Exception):
    """A failure, in the library's own words where it is the library that refuses.

    status, fault    numbers of tess_status and tess_list_fault, 0 where they do not apply
    function, argument   names of the C function and of its argument, "" where there is none
    batch, head, row, position   place of a fault in a list, -1 where they do not apply
    """

    status = fault = 0
    function = argument = ""
    batch = head = row = position = -1


class ArgumentError(TesseraError, ValueError):
    """An argument of the wrong size, type, device or value."""


class ListError(ArgumentError):
    """Block lists or indices that break a rule; fault and place say which and where."""


class UnsupportedError(TesseraError, NotImplementedError):
    """A problem that is right, but that nothing computes."""


class OutOfMemoryError(TesseraError, MemoryError):
    """An allocation of the library failed; nothing was changed."""


class CudaError(TesseraError, RuntimeError):
    """The CUDA runtime refused, or there is no CUDA."""


class LibraryError(TesseraError, ImportError):
    """The shared library is not found, or is of another version than this package."""


ERRORS = {c.TESS_INVALID_ARGUMENT: ArgumentError, c.TESS_INVALID_LIST: ListError,
          c.TESS_UNSUPPORTED: UnsupportedError, c.TESS_OUT_OF_MEMORY: OutOfMemoryError,
          c.TESS_WORKSPACE_TOO_SMALL: ArgumentError, c.TESS_NO_CUDA: CudaError, c.TESS_CUDA_ERROR: CudaError}


def error_of(error: c.Error) -> TesseraError:
    """The exception that a filled tess_error stands for."""
    function, argument = ((x or b"").decode() for x in (error.function, error.argument))
    words = f"{function}: {argument + ': ' if argument else ''}{error.message.decode(errors='replace')}"
    places = [f"{name} {getattr(error, name)}" for name in ("batch", "head", "row", "position")
              if getattr(error, name) >= 0]
    if error.fault and places:
        words += f" ({', '.join(places)})"
    raised = ERRORS.get(error.status, TesseraError)(words)
    for name in ("status", "fault", "batch", "head", "row", "position"):
        setattr(raised, name, getattr(error, name))
    raised.function, raised.argument = function, argument
    return raised


class Library:
    """One loaded libtessera.so. `exact` False takes a library whose structs are older, and so shorter, than this
    package's: for programs that compare two builds."""

    def __init__(self, path: str | os.PathLike, exact: bool = True):
        self.path = os.fspath(path)
        try:
            self.c = ctypes.CDLL(self.path)
            self.c.tess_struct_size
        except (OSError, AttributeError) as reason:
            raise LibraryError(f"{self.path}: {reason}") from None
        for name, (answer, kinds) in c.FUNCTIONS.items():
            function = getattr(self.c, name, None)
            if function is None:
                if exact:
                    raise LibraryError(f"{self.path} has no {name}: it is not the library of tessera {c.VERSION}")
                continue
            function.restype, function.argtypes = answer, kinds
        self.version = self.c.tess_version().decode()
        if exact and self.version != c.VERSION:
            raise LibraryError(f"{self.path} is version {self.version}, this package {c.VERSION}")
        self.sizes = {}
        for name, struct in c.STRUCTS.items():
            theirs, ours = self.c.tess_struct_size(name.encode()), ctypes.sizeof(struct)
            if theirs != ours and exact:
                raise LibraryError(f"{self.path}: {name} has {theirs} bytes there and {ours} in this package: "
                                   "they were written for different headers")
            self.sizes[struct] = min(theirs, ours)

    def new(self, struct: type, **fields: Any) -> Any:
        """A struct at its defaults, but for `fields`."""
        return struct(struct_size=self.sizes[struct], **fields)

    def call(self, name: str, *arguments: Any, stream: int | None = None) -> None:
        """Calls a function that answers a tess_status; the error is added, and the stream where it takes one."""
        error = c.Error(struct_size=ctypes.sizeof(c.Error))
        tail = (byref(error), stream) if name in c.STREAMED else (byref(error),)
        if getattr(self.c, name)(*arguments, *tail):
            raise error_of(error)

    def make(self, name: str, *arguments: Any) -> int:
        """The handle that a constructor makes."""
        handle = c_void_p()
        self.call(name, byref(handle), *arguments)
        return handle.value


def candidates() -> list[str]:
    """Places of the library, in the order in which they are tried."""
    given = os.environ.get("TESSERA_LIBRARY")
    if given:
        return [given]
    version = c.VERSION.rsplit(".", 1)[0]
    return [str(pathlib.Path(__file__).parent / "libtessera.so"), f"libtessera.so.{version}", "libtessera.so"]


def load() -> Library:
    """The library of this process: TESSERA_LIBRARY, the one beside this file, or the system's."""
    reasons = []
    for path in candidates():
        if os.sep in path and not os.path.exists(path):
            reasons.append(f"{path}: no such file")
            continue
        try:
            return Library(path)
        except LibraryError as reason:
            if os.sep in path:
                raise
            reasons.append(str(reason))
    raise LibraryError("libtessera.so is not found; set TESSERA_LIBRARY to its path. Tried:\n  " + "\n  ".join(reasons))


library = load()
