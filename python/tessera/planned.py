"""Parts that plans share: the handle, its image, frames of arguments, calls on the current stream."""
from __future__ import annotations

import contextlib
import ctypes
import functools
from typing import Any, Callable

import numpy

from . import _structs as c
from ._library import ArgumentError, CudaError, error_of, library
from .arrays import (FLOATS, HOST, View, array, device_of, is_torch, maker, memory, strides_of,
                     torch_module, vector, view_class)

# Fields of tess_arguments that are tensors.
VIEWS = ("q", "k", "v", "o", "lse", "o_rest", "d_o", "d_lse", "delta", "d_q", "d_k", "d_v", "k_scale", "v_scale",
         "q_rope", "k_rope", "base_o", "base_lse", "lse_reference", "column_sums", "bias", "bias_out", "activations")
EXTRA_VIEWS = frozenset(VIEWS)
WRITTEN = {False: ("o", "lse", "o_rest", "column_sums"), True: ("d_q", "d_k", "d_v")}

# Fields that stand at their defaults after a run: those of an array that have other names than it.
CLEARED = {"page_table_stride": 0, "base": 0, "beta": 0, "base_o": None, "base_lse": None}


class Frame:
    """Structs of the arguments of one run at a time, and its workspace on the host."""

    def __init__(self, plan: "Planned"):
        self.arguments = library.new(c.Arguments)
        self.error = c.Error(struct_size=ctypes.sizeof(c.Error))
        self.views = {name: plan.view(name) for name in VIEWS}
        for name, view in self.views.items():
            setattr(self, name, view.set)
        # Those of arrays that the plan makes.
        self.made = {name: plan.view(name).again for name in WRITTEN[plan.backward]}
        for name in plan.always:
            setattr(self.arguments, name, self.views[name].address)
        self.layout = None  # of q, k and v, as their views stand
        self.point = plan.kind.pointer(*(self.views[name].struct for name in "qkv"))
        self.held = None
        if plan.device == HOST:
            self.held, self.arguments.workspace = memory(plan.workspace_size, HOST, plan.torch, 64)
        self.arguments.workspace_size = plan.workspace_size
        self.arguments.image, self.arguments.image_size = plan.image_address, plan.image_size
        self.call = (plan.handle, ctypes.byref(self.arguments), ctypes.byref(self.error))
        # A run on the host, which answers the status without a function of Python between; None on CUDA.
        self.start = functools.partial(library.c.tess_run, *self.call, None) if plan.device == HOST else None

    def load(self, plan: "Planned", layout: tuple | None, q: Any, k: Any, v: Any) -> None:
        """Views of q, k and v whose layout is not the last one's."""
        self.layout = None
        if (v is None) != bool(plan.problem.v_in_k):
            expected = "values, as the plan was made with them" if v is None else "None, as values lie in keys"
            raise ArgumentError(f"v is {type(v).__name__}, expected {expected}")
        self.q(q), self.k(k)
        if v is not None:
            self.v(v)
            if plan.kind.ours(q) and plan.kind.ours(k) and plan.kind.ours(v):
                self.layout = layout


class Planned:
    """Parts that plans of either operation share: the handle, its image, and calls on the current stream.

    Immutable; threads and streams may share one. A run allocates the outputs that it is not given and, on CUDA, the
    workspace, both by torch: it is ordered by the current stream and may be captured in a graph, which needs the plan
    for as long as it is replayed.
    """

    backward = False
    always: tuple[str, ...] = ()

    def __init__(self, problem: c.Problem, q: Any, make: Callable[[c.Target], int]):
        self.torch, self.device = is_torch(q), device_of(q, "q")
        self.backend = c.TESS_CPU if self.device == HOST else c.TESS_CUDA
        self.problem, self.dtype, self.kind = problem, q.dtype, view_class(self.torch)
        self.place = q.device if self.torch else None
        self.frames: list[Frame] = []
        self.handle = self.image = self.image_address = None
        if self.device != HOST and torch_module().cuda.is_current_stream_capturing():
            raise CudaError("a plan cannot be made while a graph is captured, as its lists come from the host: run "
                            "once before")
        with self.current():
            target = library.new(c.Target)
            library.call("tess_target_query", ctypes.byref(target), self.backend, -1)
            self.handle = make(target)
            self.workspace_size = library.c.tess_plan_workspace_size(self.handle)
            self.image_size = library.c.tess_plan_image_size(self.handle)
            if self.image_size:
                self.image, self.image_address = memory(self.image_size, self.device, self.torch, 256)
                self.upload()
        if self.device != HOST:
            torch = torch_module()
            self.raw_stream, self.current_device = torch._C._cuda_getCurrentRawStream, torch._C._cuda_getDevice
            self.make_workspace = maker((self.workspace_size,), torch.uint8, self.place, True)
        self.streams = {self.stream()}

    def __del__(self, free: Callable = library.c.tess_plan_free) -> None:
        if getattr(self, "handle", None):
            free(self.handle)
            self.handle = None

    def upload(self) -> None:
        """Lists to the device, once: runs on any stream find them."""
        stream = self.stream()
        library.call("tess_plan_upload", self.handle, self.image_address, self.image_size, stream=stream)
        torch_module().cuda.current_stream().synchronize()

    def view(self, name: str) -> View:
        """A view for an argument of runs."""
        written = name in WRITTEN[self.backward] or name == "activations"
        return self.kind(name, self.types_of(name), self.device, written)

    def types_of(self, name: str) -> tuple[int, ...]:
        """Types that a tensor of a run may have."""
        p = self.problem
        if name in ("lse", "d_lse", "delta", "k_scale", "v_scale", "base_lse", "lse_reference"):
            return (c.TESS_F32,)
        if name == "column_sums":
            return (p.sum_type,)
        if name in ("bias", "bias_out"):
            return (p.type, c.TESS_F32)
        if name in ("k", "v"):
            return ((p.k_type if name == "k" else p.v_type) or p.type,)
        if name == "k_rope":
            return (p.k_rope_type or (p.k_type if p.k_type in FLOATS else 0) or p.type,)
        if name in ("o", "base_o"):
            return (p.type, c.TESS_F32) if self.backward else (c.TESS_F32 if p.o_f32 else p.type,)
        return (p.type, c.TESS_F32) if name in ("d_q", "d_k", "d_v") else (p.type,)

    def current(self) -> Any:
        """The plan's device as the current one."""
        if self.device == HOST or torch_module().cuda.current_device() == self.device:
            return contextlib.nullcontext()
        return torch_module().cuda.device(self.device)

    def stream(self) -> int | None:
        return None if self.device == HOST else torch_module()._C._cuda_getCurrentRawStream(self.device)

    def maker(self, shape: tuple[int, ...], f32: bool = False) -> Callable[[], Any]:
        """A function that makes outputs, in the type of q or in f32."""
        dtype = self.dtype if not f32 else torch_module().float32 if self.torch else numpy.float32
        return maker(shape, dtype, self.place, self.torch)

    def frame(self, layout: tuple | None, q: Any, k: Any, v: Any) -> Frame:
        """A frame with views of q, k and v. layout is what View.look says of them."""
        try:
            frame = self.frames.pop()
        except IndexError:
            frame = Frame(self)
        if layout is not None and (layout is frame.layout or layout == frame.layout):
            frame.point(q, k, v)
        else:
            frame.load(self, layout, q, k, v)
        return frame

    def launch(self, frame: Frame, function: Callable) -> int:
        """The status of a call; on CUDA with the current stream, which orders the workspace in torch's allocator."""
        if self.device == HOST:
            return function(*frame.call, None)
        stream = self.raw_stream(self.device)
        if stream not in self.streams:
            # Memory of the image is not given to others before this stream has passed.
            self.image.record_stream(torch_module().cuda.current_stream(self.device))
            self.streams.add(stream)
        if self.workspace_size:
            workspace = self.make_workspace()  # kept until the call is over
            frame.arguments.workspace = workspace.data_ptr()
        if self.current_device() == self.device:
            return function(*frame.call, stream)
        with torch_module().cuda.device(self.device):
            return function(*frame.call, stream)

    def start(self, frame: Frame, function: Callable, arrays: dict[str, Any] | None) -> None:
        """A call over the frame's views and over arrays that few problems have."""
        kept = self.extras(frame, arrays) if arrays else ()
        if self.launch(frame, function):
            raise error_of(frame.error)
        if arrays:
            for name, x in arrays.items():  # runs to come are given none of these
                if x is not None and name not in CLEARED:
                    setattr(frame.arguments, name, None)
            for name, value in CLEARED.items():
                setattr(frame.arguments, name, value)
        del kept

    def extras(self, frame: Frame, given: dict[str, Any]) -> list[Any]:
        """Sets arrays that few problems have; answers them, to be kept until the call is over."""
        p, arguments, kept = self.problem, frame.arguments, []
        for name, x in given.items():
            if x is None:
                continue
            if name in EXTRA_VIEWS:
                x = array(x, name)
                setattr(arguments, name, frame.views[name].set(x))
            elif name == "base":
                x = self.base(frame, x)
            elif name == "beta":
                if not x:
                    raise ArgumentError("beta is 0: the base is the answer, and needs no run")
                arguments.beta = x
            elif name in ("alibi", "sink", "d_alibi", "d_sink"):
                setattr(arguments, name, vector(x, name, ("float32",), (p.heads_q,), self.device, name[0] == "d"))
            elif name == "seed":
                arguments.seed = vector(x, name, ("uint64", "int64"), (1,), self.device)
            elif name == "key_positions":
                arguments.key_positions = vector(x, name, ("int32",), (p.n_kv,), self.device)
            elif name == "page_table":
                x, pages = array(x, name), -(-p.n_kv // max(p.page_size, 1))
                if x.ndim != 2 or x.shape[0] != p.batch or x.shape[1] < pages:
                    raise ArgumentError(f"page_table has shape {tuple(x.shape)}, expected ({p.batch}, {pages})")
                arguments.page_table = vector(x[0], name, ("int32",), (-1,), self.device)
                arguments.page_table_stride = strides_of(x, name)[0] if p.batch > 1 else 0
            else:
                raise ArgumentError(f"{name}: a run has no such array")
            kept.append(x)
        return kept

    def base(self, frame: Frame, given: Any) -> tuple:
        """Sets a base, (o, lse) or o alone, and answers its arrays."""
        if not isinstance(given, (tuple, list)):
            given = (given,)
        if not 1 <= len(given) <= 2:
            raise ArgumentError(f"base has {len(given)} arrays, expected (o, lse), which is merged, or o alone")
        found = tuple(array(x, name) for x, name in zip(given, ("base_o", "base_lse")))
        for x, name in zip(found, ("base_o", "base_lse")):
            setattr(frame.arguments, name, frame.views[name].set(x))
        frame.arguments.base = c.TESS_BASE_MERGE if len(found) == 2 else c.TESS_BASE_ADD
        return found

    @property
    def info(self) -> dict[str, Any]:
        """The plan in numbers (tess_plan_info)."""
        info = library.new(c.PlanInfo)
        library.call("tess_plan_describe", self.handle, ctypes.byref(info))
        return {name: getattr(info, name) for name, _ in info._fields_[1:]}

    @property
    def kernels(self) -> dict[str, str]:
        """The kernel of each stage that the plan has."""
        found = {}
        for stage in range(c.TESS_STAGE_MLP_DOWN + 1):
            name = library.c.tess_plan_kernel(self.handle, stage)
            if name:
                found[library.c.tess_stage_name(stage).decode()] = name.decode()
        return found

    def predict(self, keys: int = -1) -> float:
        """Seconds that a run is predicted to take (tess_plan_predict)."""
        return library.c.tess_plan_predict(self.handle, keys)

    def __str__(self) -> str:
        """The plan in words: kernels chosen and why others were not, lists, schedule, cost."""
        text = ctypes.create_string_buffer(library.c.tess_plan_print(self.handle, None, 0) + 1)
        library.c.tess_plan_print(self.handle, text, len(text))
        return text.value.decode()
