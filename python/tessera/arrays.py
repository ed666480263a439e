"""Arrays of the caller: numpy's, torch's, and those of anything that speaks DLPack, as views of the library.

Memory stays the caller's. A view is checked for type and device each time that it is set, and lives for one call.
"""
from __future__ import annotations

import ctypes
import functools
import math
import sys
from typing import Any, Callable

import numpy

from . import _structs as c
from ._library import ArgumentError, UnsupportedError, library

TYPES = {"float32": c.TESS_F32, "float16": c.TESS_F16, "bfloat16": c.TESS_BF16, "float8_e4m3fn": c.TESS_E4M3,
         "float8_e5m2": c.TESS_E5M2}
FLOATS = (c.TESS_F32, c.TESS_F16, c.TESS_BF16)
HOST = -1  # device number of the host's memory; CUDA's count from 0


def torch_module() -> Any:
    """torch where the process has imported it, else None."""
    return sys.modules.get("torch")


def is_torch(x: Any) -> bool:
    torch = torch_module()
    return torch is not None and isinstance(x, torch.Tensor)


def array(x: Any, name: str) -> Any:
    """x as an array of numpy or of torch, without a copy.

    Producers of DLPack on the host become numpy's, on CUDA torch's. Lists and numbers are refused: their copy would
    not be the caller's memory.
    """
    if isinstance(x, numpy.ndarray) or is_torch(x):
        return x
    if not hasattr(x, "__dlpack_device__"):
        raise ArgumentError(f"{name} is {type(x).__name__}, expected an array of numpy, torch or DLPack")
    if x.__dlpack_device__()[0] == 1:  # kDLCPU
        try:
            return numpy.from_dlpack(x)
        except (BufferError, RuntimeError, TypeError):
            pass  # bfloat16 and its like, which numpy's protocol lacks
    try:
        import torch
    except ImportError:
        raise ArgumentError(f"{name} lies on a device, or has a type that numpy lacks: tessera reads it through torch, "
                            "which is not installed") from None
    return torch.from_dlpack(x)


def dtype_name(x: Any) -> str:
    return str(x.dtype).rpartition(".")[2]


def type_of(x: Any, name: str) -> int:
    """tess_type of an array; others are refused by name."""
    found = dtype_name(x)
    if found in TYPES:
        return TYPES[found]
    words = "tessera computes float32, float16 and bfloat16"
    if found == "float64":
        words = "there is no double precision, " + words
    raise UnsupportedError(f"{name} is {found}: {words}; convert it first")


def hold_types(q: Any, k: Any, v: Any) -> None:
    """Holds k and v to the type of q. A Plan may have caches of others, which a call by tensors would hide."""
    type_of(q, "q")
    for name, x in (("k", k), ("v", v)):
        if x.dtype != q.dtype:
            raise ArgumentError(f"{name} is {dtype_name(x)}, expected {dtype_name(q)}, as q is; a Plan takes caches of "
                                "other types")


def device_of(x: Any, name: str) -> int:
    """HOST, or the number of a CUDA device; what is neither is refused."""
    if isinstance(x, numpy.ndarray) or x.device.type == "cpu":
        return HOST
    if x.device.type != "cuda":
        raise UnsupportedError(f"{name} is on {x.device}: tessera computes on cpu and cuda")
    return x.device.index


def device_name(device: int) -> str:
    return "the host" if device == HOST else f"cuda:{device}"


def strides_of(x: Any, name: str) -> tuple[int, ...]:
    """Strides in elements."""
    if not isinstance(x, numpy.ndarray):
        return x.stride()
    if any(stride % x.itemsize for stride in x.strides):
        raise ArgumentError(f"{name} has strides of {x.strides} bytes, which are no multiples of its {x.itemsize}")
    return tuple(stride // x.itemsize for stride in x.strides)


# Memory of the process in words of 8 bytes: a pointer of a C structure is read by its address.
memory_words = memoryview((ctypes.c_uint8 * (1 << 62)).from_address(0)).cast("B").cast("Q").toreadonly()


def field_of(x: numpy.ndarray, at: int = object.__basicsize__, words: memoryview = memory_words) -> int:
    """Address of an array's data: the first field after the object's head (PyArrayObject of numpy's C interface)."""
    return words[id(x) + at >> 3]


# A tenth of what x.ctypes.data takes; where an interpreter or numpy lays arrays out in another way, that.
probe = numpy.zeros(3)[1:]
data_of = field_of if sys.implementation.name == "cpython" and field_of(probe) == probe.ctypes.data else (
    lambda x: x.ctypes.data)


def pointer_of(x: Any) -> int:
    return data_of(x) if isinstance(x, numpy.ndarray) else x.data_ptr()


def vector(x: Any, name: str, dtypes: tuple[str, ...], shape: tuple[int, ...], device: int, write: bool = False) -> int:
    """Address of a contiguous array of `shape` on `device`; a size of -1 is any. It has to outlive the call."""
    x = array(x, name)
    if dtype_name(x) not in dtypes:
        raise ArgumentError(f"{name} is {dtype_name(x)}, expected {' or '.join(dtypes)}")
    if device_of(x, name) != device:
        raise ArgumentError(f"{name} is on {device_name(device_of(x, name))}, expected {device_name(device)}")
    found = tuple(x.shape)
    if len(found) != len(shape) or any(n not in (-1, m) for n, m in zip(shape, found)):
        raise ArgumentError(f"{name} has shape {found}, expected {tuple('any' if n < 0 else n for n in shape)}")
    if not (x.flags.c_contiguous if isinstance(x, numpy.ndarray) else x.is_contiguous()):
        raise ArgumentError(f"{name} is not contiguous: give a contiguous copy")
    if write and isinstance(x, numpy.ndarray) and not x.flags.writeable:
        raise ArgumentError(f"{name} is read-only, and is written")
    return pointer_of(x)


class View:
    """A tess_tensor, set again for each call: what did not change since the last one is not written again.

    Type and device are those of the plan. Arrays of three dims, lse and the like, get a last one of 1.
    """

    __slots__ = ("name", "struct", "address", "shape", "strides", "dtype", "device", "types", "where", "write", "kept")

    def __init__(self, name: str, types: tuple[int, ...], where: int, write: bool = False):
        self.name, self.types, self.where, self.write = name, types, where, write
        self.struct = library.new(c.Tensor)
        self.address = ctypes.addressof(self.struct)
        self.shape = self.strides = self.dtype = self.device = self.kept = None

    def set(self, x: Any) -> int:
        """Address of the struct, which now is a view of x."""
        raise NotImplementedError

    @staticmethod
    def look(q: Any, k: Any, v: Any) -> tuple | None:
        """Layout of q, k and v: equal ones need no other check. None where each has to be set by itself."""
        raise NotImplementedError

    @staticmethod
    def pointer(q: c.Tensor, k: c.Tensor, v: c.Tensor) -> Callable[[Any, Any, Any], None]:
        """A function that points three views at other arrays of the layout that they were last set to."""
        raise NotImplementedError

    def again(self, x: Any) -> int:
        """set, for arrays that all come from one maker."""
        if self.shape is None:
            return self.set(x)
        self.struct.data = self.data(x)
        return self.address

    def convert(self, x: Any) -> int:
        """A view of an array made by DLPack, which is kept until the next call."""
        self.kept = array(x, self.name)
        if self.kept is x or not self.ours(self.kept):
            found = f"{type(self.kept).__module__}.{type(self.kept).__qualname__}"
            raise ArgumentError(f"{self.name} is {found}, expected {self.kind}, as the plan was made for")
        return self.set(self.kept)

    def check(self, x: Any) -> None:
        """Type, device and number of dims; the library holds sizes and strides against the plan."""
        name = self.name
        kind = type_of(x, name)
        if kind not in self.types:
            expected = " or ".join(y for y, number in TYPES.items() if number in self.types)
            raise ArgumentError(f"{name} is {dtype_name(x)}, expected {expected}")
        if device_of(x, name) != self.where:
            raise ArgumentError(f"{name} is on {device_name(device_of(x, name))}, expected {device_name(self.where)}")
        shape, strides = tuple(x.shape), strides_of(x, name)
        if len(shape) == 3:
            shape, strides = shape + (1,), strides + (1,)
        if len(shape) != 4:
            raise ArgumentError(f"{name} has {len(shape)} dims, expected [batch, heads, n, dims]")
        self.struct.size[:], self.struct.stride[:], self.struct.type = shape, strides, kind
        self.shape, self.dtype = x.shape, x.dtype


class NumpyView(View):
    __slots__ = ()
    kind = "a numpy.ndarray"
    data = staticmethod(data_of)

    @staticmethod
    def ours(x: Any) -> bool:
        return isinstance(x, numpy.ndarray)

    def set(self, x: Any) -> int:
        if not isinstance(x, numpy.ndarray):
            return self.convert(x)
        if x.shape != self.shape or x.strides != self.strides or x.dtype != self.dtype:
            self.check(x)
            self.strides = x.strides
        if self.write and not x.flags.writeable:
            raise ArgumentError(f"{self.name} is read-only, and is written")
        self.struct.data = data_of(x)
        return self.address

    @staticmethod
    def look(q: Any, k: Any, v: Any) -> tuple | None:
        try:
            return (type(q), q.shape, q.strides, q.dtype, type(k), k.shape, k.strides, k.dtype,
                    type(v), v.shape, v.strides, v.dtype)
        except AttributeError:
            return None

    @staticmethod
    def pointer(q: c.Tensor, k: c.Tensor, v: c.Tensor) -> Callable[[Any, Any, Any], None]:
        def point(x: Any, y: Any, z: Any) -> None:
            q.data, k.data, v.data = data_of(x), data_of(y), data_of(z)

        def read(x: Any, y: Any, z: Any, words: memoryview = memory_words, at: int = object.__basicsize__) -> None:
            q.data, k.data, v.data = words[id(x) + at >> 3], words[id(y) + at >> 3], words[id(z) + at >> 3]

        return read if data_of is field_of else point


class TorchView(View):
    __slots__ = ()
    kind = "a torch.Tensor"
    data = staticmethod(lambda x: x.data_ptr())
    ours = staticmethod(is_torch)

    def set(self, x: Any) -> int:
        try:
            if (x.shape != self.shape or x.stride() != self.strides or x.dtype is not self.dtype
                    or x.device != self.device):
                if not is_torch(x):
                    return self.convert(x)
                self.check(x)
                self.strides, self.device = x.stride(), x.device
            if x.requires_grad and torch_module().is_grad_enabled():
                raise UnsupportedError(f"{self.name} requires grad, and a run by a plan has no autograd: call "
                                       "tessera.attention, or run under torch.no_grad()")
            self.struct.data = x.data_ptr()
        except (AttributeError, TypeError):
            return self.convert(x)
        return self.address

    @staticmethod
    def look(q: Any, k: Any, v: Any) -> tuple | None:
        try:
            return None if q.requires_grad or k.requires_grad or v.requires_grad else layout(q, k, v)
        except AttributeError:
            return None

    @staticmethod
    def pointer(q: c.Tensor, k: c.Tensor, v: c.Tensor) -> Callable[[Any, Any, Any], None]:
        def point(x: Any, y: Any, z: Any) -> None:
            q.data, k.data, v.data = x.data_ptr(), y.data_ptr(), z.data_ptr()
        return point


def layout(q: Any, k: Any, v: Any) -> tuple:
    """Layout of three tensors of torch."""
    return (type(q), q.shape, q.stride(), q.dtype, q.device, type(k), k.shape, k.stride(), k.dtype, k.device,
            type(v), v.shape, v.stride(), v.dtype, v.device)


def view_class(torch: bool) -> type[View]:
    return TorchView if torch else NumpyView


def empty(shape: tuple[int, ...], dtype: Any, device: Any, torch: bool) -> Any:
    """An array without values, of torch or numpy."""
    return torch_module().empty(shape, dtype=dtype, device=device) if torch else numpy.empty(shape, dtype)


def maker(shape: tuple[int, ...], dtype: Any, device: Any, torch: bool) -> Callable[[], Any]:
    """A function that makes such arrays, again and again."""
    if not torch:
        return functools.partial(numpy.empty, shape, dtype)
    strides = [math.prod(shape[axis + 1:]) for axis in range(len(shape))]
    return functools.partial(torch_module().empty(0, dtype=dtype, device=device).new_empty_strided, shape, strides)


def memory(size: int, device: int, torch: bool, alignment: int) -> tuple[Any, int]:
    """At least `size` bytes and the address of the first aligned one; the array has to be kept."""
    if torch:
        where = "cpu" if device == HOST else f"cuda:{device}"
        held = torch_module().empty(size + alignment, dtype=torch_module().uint8, device=where)
    else:
        held = numpy.empty(size + alignment, numpy.uint8)
    start = pointer_of(held)
    return held, start + -start % alignment
