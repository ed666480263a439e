"""A report of the environment, for issues: python -m tessera."""
from __future__ import annotations

import ctypes
import os
import platform

import numpy

from . import __version__
from . import _structs as c
from ._library import TesseraError, library


def devices(backend: int) -> list[str]:
    """A line for each device of a backend."""
    found = []
    for number in range(library.c.tess_device_count(backend)):
        info = library.new(c.DeviceInfo)
        library.call("tess_device_describe", backend, number, ctypes.byref(info))
        name = library.c.tess_backend_name(backend).decode()
        found.append(f"{name} {number}: {info.name.decode()}, {info.multiprocessors} multiprocessors or threads, "
                     f"{info.memory_size >> 20} MiB")
    return found


def kernels() -> tuple[int, int]:
    """Kernels that this machine runs, and all."""
    usable, count = 0, library.c.tess_kernel_count()
    for number in range(count):
        info = library.new(c.KernelInfo)
        library.call("tess_kernel_describe", number, ctypes.byref(info))
        usable += info.unusable is None
    return usable, count


def main() -> None:
    print(f"tessera {__version__}: {library.path}, version {library.version}")
    print(f"python {platform.python_version()}, numpy {numpy.__version__}, {platform.platform()}")
    print(f"cpu level {library.c.tess_cpu_isa().decode()}; {'%d of %d kernels run here' % kernels()}")
    for backend in (c.TESS_CPU, c.TESS_CUDA):
        try:
            print("\n".join(devices(backend)) or f"{library.c.tess_backend_name(backend).decode()}: no device")
        except TesseraError as reason:
            print(reason)
    for name in ("torch", "scipy", "transformers", "ml_dtypes"):
        try:
            print(f"{name} {__import__(name).__version__}")
        except ImportError:
            print(f"{name}: not installed")
    for name in sorted(os.environ):
        if name.startswith(("TESSERA_", "OMP_")):
            print(f"{name}={os.environ[name]}")


if __name__ == "__main__":
    main()
