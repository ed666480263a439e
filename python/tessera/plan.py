"""Plans: a problem over a pattern, made once and run many times."""
from __future__ import annotations

import contextlib
import ctypes
from typing import Any, Callable

import numpy

from . import _structs as c
from ._library import ArgumentError, CudaError, UnsupportedError, error_of, library
from .arrays import (HOST, TYPES, NumpyView, TorchView, array, device_name, device_of, empty, is_torch, maker, memory,
                     strides_of, torch_module, type_of, vector)
from .device_pattern import DevicePattern
from .pattern import Pattern, hold

PIPELINES = {"fused": c.TESS_FUSED, "staged": c.TESS_STAGED}
SCALINGS = {None: c.TESS_SCALE_NONE, "tensor": c.TESS_SCALE_TENSOR, "head": c.TESS_SCALE_HEAD,
            "token": c.TESS_SCALE_TOKEN, "group": c.TESS_SCALE_GROUP}
GRADIENTS = {"q": c.TESS_GRADIENT_Q, "k": c.TESS_GRADIENT_K, "v": c.TESS_GRADIENT_V, "alibi": c.TESS_GRADIENT_ALIBI,
             "sink": c.TESS_GRADIENT_SINK}
FLOATS = (c.TESS_F32, c.TESS_F16, c.TESS_BF16)
VIEWS = ("q", "k", "v", "o", "lse", "o_rest", "d_o", "d_lse", "delta", "d_q", "d_k", "d_v", "k_scale", "v_scale",
         "q_rope", "k_rope")  # fields of tess_arguments that are tensors
EXTRA_VIEWS = frozenset(VIEWS)
WRITTEN = {False: ("o", "lse", "o_rest"), True: ("d_q", "d_k", "d_v")}
# Fields of tess_problem that a caller may set by name; the others follow from the tensors.
FIELDS = frozenset(name for name, _ in c.Problem._fields_) - {"struct_size", "type", "operation", "gradients"}


def problem_of(pattern: Any, q: Any, k: Any, v: Any, backward: bool, gradients: str | tuple | None, d_v: int | None,
               fields: dict[str, Any]) -> c.Problem:
    """The problem of the tensors and of `fields`."""
    unknown = set(fields) - FIELDS
    if unknown:
        raise ArgumentError(f"{', '.join(sorted(unknown))}: there is no such field of a problem")
    where, torch = device_of(q, "q"), is_torch(q)
    views = [(TorchView if torch else NumpyView)(name, tuple(TYPES.values()), where) for name in "qkv"]
    for view, x in zip(views, (q, k, k if v is None else v)):
        with torch_module().no_grad() if torch else contextlib.nullcontext():
            view.set(x)
    if v is None and d_v is not None:
        views[2].struct.size[3] = d_v
    problem = library.new(c.Problem)
    library.call("tess_problem_from_tensors", ctypes.byref(problem), *(x.address for x in views), None)
    problem.n_kv = pattern.n_kv  # of pages the tensors tell the rows of a page
    if v is None:
        problem.v_in_k = 1
    if backward:
        problem.operation = c.TESS_ATTENTION_BACKWARD
        if gradients is not None:
            problem.gradients = sum(GRADIENTS[name] for name in gradients)
    if torch and where == HOST:
        problem.threads = torch_module().get_num_threads()
    tables = {"pipeline": PIPELINES, "k_scale": SCALINGS, "v_scale": SCALINGS, "k_type": TYPES, "v_type": TYPES,
              "k_rope_type": TYPES}
    for name, value in fields.items():
        if value is None and name not in ("k_scale", "v_scale"):
            continue
        if name in tables and not isinstance(value, int):
            if value not in tables[name]:
                raise ArgumentError(f"{name} is {value!r}, expected one of {', '.join(map(str, tables[name]))}")
            value = tables[name][value]
        try:
            setattr(problem, name, value.encode() if name == "kernel" else value)
        except TypeError:
            raise ArgumentError(f"{name} is {value!r}, expected a number") from None
    return problem


class Frame:
    """Structs of the arguments of one run at a time, and its workspace on the host."""

    def __init__(self, plan: "Planned"):
        self.arguments = library.new(c.Arguments)
        self.error = c.Error(struct_size=ctypes.sizeof(c.Error))
        kind = TorchView if plan.torch else NumpyView
        self.views = {name: kind(name, plan.types_of(name), plan.device, name in WRITTEN[plan.backward])
                      for name in VIEWS}
        for name, view in self.views.items():
            setattr(self, name, view.set)
        for name in plan.always:
            setattr(self.arguments, name, self.views[name].address)
        self.held = None
        if plan.device == HOST:
            self.held, self.arguments.workspace = memory(plan.workspace_size, HOST, plan.torch, 64)
        self.arguments.workspace_size = plan.workspace_size
        self.arguments.image, self.arguments.image_size = plan.image_address, plan.image_size
        self.call = (plan.handle, ctypes.byref(self.arguments), ctypes.byref(self.error))


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
        self.problem, self.dtype = problem, q.dtype
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

    def types_of(self, name: str) -> tuple[int, ...]:
        """Types that a tensor of a run may have."""
        p = self.problem
        if name in ("lse", "d_lse", "delta", "k_scale", "v_scale"):
            return (c.TESS_F32,)
        if name in ("k", "v"):
            return ((p.k_type if name == "k" else p.v_type) or p.type,)
        if name == "k_rope":
            return (p.k_rope_type or (p.k_type if p.k_type in FLOATS else 0) or p.type,)
        if name == "o":
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

    def frame(self) -> Frame:
        try:
            return self.frames.pop()
        except IndexError:
            return Frame(self)

    def launch(self, frame: Frame, function: Callable = library.c.tess_run) -> None:
        """The call; on CUDA with the current stream, and a workspace that torch's allocator orders by it."""
        if self.device == HOST:
            if function(*frame.call, None):
                raise error_of(frame.error)
            return
        torch = torch_module()
        stream = torch._C._cuda_getCurrentRawStream(self.device)
        if stream not in self.streams:
            # Memory of the image is not given to others before this stream has passed.
            self.image.record_stream(torch.cuda.current_stream(self.device))
            self.streams.add(stream)
        workspace = None
        if self.workspace_size:
            workspace = torch.empty(self.workspace_size, dtype=torch.uint8, device=self.place)
            frame.arguments.workspace = workspace.data_ptr()
        if torch._C._cuda_getDevice() == self.device:
            status = function(*frame.call, stream)
        else:
            with torch.cuda.device(self.device):
                status = function(*frame.call, stream)
        if status:
            raise error_of(frame.error)

    def extras(self, frame: Frame, given: dict[str, Any]) -> list[Any]:
        """Sets arrays that few problems have; answers them, to be kept until the call is over."""
        p, arguments, kept = self.problem, frame.arguments, []
        for name, x in given.items():
            if x is None:
                continue
            if name in EXTRA_VIEWS:
                x = array(x, name)
                setattr(arguments, name, frame.views[name].set(x))
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

    def forget(self, frame: Frame, given: dict[str, Any]) -> None:
        """Runs to come are given none of these."""
        for name, x in given.items():
            if x is not None:
                setattr(frame.arguments, name, None)
        frame.arguments.page_table_stride = 0

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
        for stage in range(c.TESS_STAGE_SPMM_TRANSPOSED + 1):
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


class Plan(Planned):
    """Attention over a pattern, planned for tensors like q, k and v.

    q [batch, heads_q, n_q, d_qk], k [batch, heads_kv, n_kv, d_qk] and v [batch, heads_kv, n_kv, d_v] are arrays of
    numpy or torch on one device: sizes, types and alignment are taken, values are not looked at. v is None where it is
    the first d_v dims of k. scale None means 1/sqrt(d_qk). Other fields of tess_problem go by name: softcap, alibi,
    sink, dropout, threads, kernel, tile_rows, part_keys, pipeline, page_size, k_scale, v_scale, rope_dims, o_f32, ...
    """

    always = ("q", "k", "v", "o")

    def __init__(self, pattern: Pattern, q: Any, k: Any, v: Any = None, *, scale: float | None = None,
                 d_v: int | None = None, **fields: Any):
        q, k, v = (x if x is None else array(x, name) for name, x in (("q", q), ("k", k), ("v", v)))
        self.pattern = hold(pattern, "pattern")
        problem = problem_of(pattern, q, k, v, False, None, d_v, dict(fields, scale=scale))
        if v is None:
            self.always = ("q", "k", "o")
        super().__init__(problem, q, lambda target: library.make(
            "tess_plan_create", ctypes.byref(problem), pattern.handle, ctypes.byref(target)))
        self.shape_outputs()

    def shape_outputs(self) -> None:
        p = self.problem
        self.make_o = self.maker((p.batch, p.heads_q, p.n_q, p.d_v), bool(p.o_f32))
        self.make_lse = self.maker((p.batch, p.heads_q, p.n_q), True)

    def __call__(self, q: Any, k: Any, v: Any = None, *, out: Any = None, return_lse: bool = False, lse: Any = None,
                 **arrays: Any) -> Any:
        """o [batch, heads_q, n_q, d_v]; with return_lse (o, lse), lse f32 [batch, heads_q, n_q] in natural logarithm.

        out and lse are written where they are given. Arrays that the problem's modifiers need go by name: alibi and
        sink [heads_q] f32, seed (one 64-bit word), key_positions, page_table, k_scale, v_scale, q_rope, k_rope, o_rest.
        """
        if out is None:
            out = self.make_o()
        if return_lse and lse is None:
            lse = self.make_lse()
        frame = self.frame()
        self.run(frame, library.c.tess_run, q, k, v, out, lse, arrays)
        self.frames.append(frame)  # of a run that failed it is not used again
        return (out, lse) if return_lse else out

    def run(self, frame: Frame, function: Callable, q: Any, k: Any, v: Any, out: Any, lse: Any,
            arrays: dict[str, Any]) -> None:
        """Sets the frame's views, and calls the function over them."""
        frame.q(q), frame.k(k), frame.o(out)
        if (v is None) != bool(self.problem.v_in_k):
            expected = "values, as the plan was made with them" if v is None else "None, as values lie in keys"
            raise ArgumentError(f"v is {type(v).__name__}, expected {expected}")
        if v is not None:
            frame.v(v)
        frame.arguments.lse = None if lse is None else frame.lse(lse)
        if arrays:
            kept = self.extras(frame, arrays)
            self.launch(frame, function)
            self.forget(frame, arrays)
            del kept
        else:
            self.launch(frame, function)

    def bind(self, q: Any, k: Any, v: Any = None, *, out: Any = None, lse: Any = None,
             **arrays: Any) -> Callable[[], Any]:
        """A function without arguments that runs over these very tensors and answers out: for loops whose tensors
        stay. It keeps them, checks them once, and serves one thread and one stream at a time."""
        if out is None:
            out = self.make_o()
        frame = Frame(self)
        kept = self.extras(frame, dict(arrays, q=q, k=k, v=v, o=out, lse=lse))
        if self.device != HOST:
            return lambda held=kept: (self.launch(frame), out)[1]
        run, (handle, arguments, error) = library.c.tess_run, frame.call

        def bound(held: Any = (self, kept, frame)) -> Any:
            if run(handle, arguments, error, None):
                raise error_of(frame.error)
            return out

        return bound


SETTERS = {"q": "d_q", "k": "d_k", "v": "d_v"}  # gradients that are tensors


class BackwardPlan(Planned):
    """Gradients of attention over a pattern, planned for tensors like q, k and v (see Plan). gradients names those that
    runs write, of "q", "k", "v", "alibi" and "sink"; None means the first three."""

    backward = True
    always = ("q", "k", "v", "lse", "d_o")

    def __init__(self, pattern: Pattern, q: Any, k: Any, v: Any, *, scale: float | None = None,
                 gradients: tuple[str, ...] | None = None, **fields: Any):
        q, k, v = (array(x, name) for name, x in (("q", q), ("k", k), ("v", v)))
        self.pattern = hold(pattern, "pattern")
        self.gradients = ("q", "k", "v") if gradients is None else tuple(gradients)
        if not self.gradients or set(self.gradients) - set(GRADIENTS):
            raise ArgumentError(f"gradients is {gradients!r}, expected some of {', '.join(GRADIENTS)}")
        problem = problem_of(pattern, q, k, v, True, self.gradients, None, dict(fields, scale=scale))
        super().__init__(problem, q, lambda target: library.make(
            "tess_plan_create", ctypes.byref(problem), pattern.handle, ctypes.byref(target)))
        p = self.problem
        shapes = {"q": (p.batch, p.heads_q, p.n_q, p.d_qk), "k": (p.batch, p.heads_kv, p.n_kv, p.d_qk),
                  "v": (p.batch, p.heads_kv, p.n_kv, p.d_v), "alibi": (p.heads_q,), "sink": (p.heads_q,)}
        self.makers = {name: self.maker(shapes[name], name in ("alibi", "sink")) for name in self.gradients}
        self.make_delta = self.maker((p.batch, p.heads_q, p.n_q), True)

    def __call__(self, q: Any, k: Any, v: Any, o: Any, lse: Any, d_o: Any, *, d_lse: Any = None, delta: Any = None,
                 out: dict[str, Any] | None = None, **arrays: Any) -> dict[str, Any]:
        """{name: gradient} of those that the plan was made for, each like its tensor.

        o [batch, heads_q, n_q, d_v] and lse [batch, heads_q, n_q] are attention's; o may be None where delta is given.
        d_o is the gradient of o, d_lse that of lse. out has gradients that are written in place, in the type of q or in
        float32. alibi, sink, seed and others go by name, as in the forward.
        """
        frame, found = self.frame(), {}
        frame.q(q), frame.k(k), frame.v(v), frame.lse(lse), frame.d_o(d_o)
        arguments = frame.arguments
        arguments.o = None if o is None else frame.o(o)
        arguments.d_lse = None if d_lse is None else frame.d_lse(d_lse)
        arguments.delta = None if delta is None else frame.delta(delta)
        for name, make in self.makers.items():
            x = out.get(name) if out else None
            found[name] = x = make() if x is None else x
            if name in SETTERS:
                setattr(arguments, SETTERS[name], getattr(frame, SETTERS[name])(x))
            else:
                arrays["d_" + name] = x
        if arrays:
            kept = self.extras(frame, arrays)
            self.launch(frame)
            self.forget(frame, arrays)
            del kept
        else:
            self.launch(frame)
        self.frames.append(frame)
        return found

    def delta(self, o: Any, d_o: Any, d_lse: Any = None, out: Any = None) -> Any:
        """delta [batch, heads_q, n_q], f32: the sum of d_o * o of each query, less d_lse (tess_delta)."""
        out = self.make_delta() if out is None else out
        frame = Frame(self)
        for name in self.always:
            setattr(frame.arguments, name, None)
        frame.views["delta"].write = True
        self.extras(frame, {"o": o, "d_o": d_o, "d_lse": d_lse, "delta": out})
        self.launch(frame, library.c.tess_delta)
        return out


class ReservedPlan(Plan):
    """Attention over lists that change: kernels and sizes are fixed for what the device pattern holds at most, fill
    reads its lists, and runs follow the last fill. One image: it serves one stream at a time."""

    def __init__(self, device_pattern: DevicePattern, q: Any, k: Any, v: Any = None, *, scale: float | None = None,
                 d_v: int | None = None, **fields: Any):
        q, k, v = (x if x is None else array(x, name) for name, x in (("q", q), ("k", k), ("v", v)))
        if not isinstance(device_pattern, DevicePattern):
            raise ArgumentError(f"device_pattern is {type(device_pattern).__name__}, expected DevicePattern")
        problem = problem_of(device_pattern, q, k, v, False, None, d_v, dict(fields, scale=scale))
        if v is None:
            self.always = ("q", "k", "o")
        Planned.__init__(self, problem, q, lambda target: library.make(
            "tess_plan_reserve", ctypes.byref(problem), device_pattern.address, ctypes.byref(target)))
        self.pattern = device_pattern
        self.shape_outputs()

    def upload(self) -> None:
        """Nothing: a fill writes the image."""

    def hold_device(self, device_pattern: DevicePattern) -> None:
        if device_pattern.device != self.device:
            raise ArgumentError(f"device_pattern is on {device_name(device_pattern.device)}, expected "
                                f"{device_name(self.device)}")

    def fill(self, device_pattern: DevicePattern) -> None:
        """Lists as they are when the current stream reaches them. What they say is counted, not refused: see report."""
        self.hold_device(device_pattern)
        with self.current():
            library.call("tess_plan_fill", self.handle, device_pattern.address, self.image_address, self.image_size,
                         stream=self.stream())

    def step(self, device_pattern: DevicePattern, q: Any, k: Any, v: Any = None, *, out: Any = None,
             return_lse: bool = False, lse: Any = None, **arrays: Any) -> Any:
        """fill and a call in one (tess_plan_fill_run)."""
        self.hold_device(device_pattern)
        out = self.make_o() if out is None else out
        if return_lse and lse is None:
            lse = self.make_lse()
        place, size, lists = self.image_address, self.image_size, device_pattern.address

        def fill_run(handle: int, arguments: Any, error: Any, stream: int | None) -> int:
            return library.c.tess_plan_fill_run(handle, lists, place, size, None, arguments, error, stream)

        frame = self.frame()
        frame.arguments.image, frame.arguments.image_size = None, 0
        self.run(frame, fill_run, q, k, v, out, lse, arrays)
        frame.arguments.image, frame.arguments.image_size = place, size
        self.frames.append(frame)
        return (out, lse) if return_lse else out

    def report(self) -> dict[str, int]:
        """Findings of the last fill (tess_fill_report): faults, overflows, keys, items, pairs and the first fault's
        place. On CUDA it waits for the current stream."""
        report, image = library.new(c.FillReport), self.image_address
        if self.device != HOST:
            start = self.image_address - self.image.data_ptr()
            copy = self.image[start:start + c.TESS_REPORT_SIZE].cpu()
            image = copy.data_ptr()
        library.call("tess_plan_report", self.handle, image, ctypes.byref(report))
        return {name: getattr(report, name) for name, _ in report._fields_[1:]}


def merge(outs: Any, lses: Any, *, out: Any = None, lse: Any = None) -> tuple[Any, Any]:
    """(o, lse) over all keys from attention over disjoint sets of them: o of the parts [batch, heads, n, d_v], lse
    [batch, heads, n] f32 in natural logarithm. (0, -inf) is neutral. out and lse may be those of a part."""
    outs = [array(x, f"outs[{i}]") for i, x in enumerate(outs)]
    lses = [array(x, f"lses[{i}]") for i, x in enumerate(lses)]
    if not outs or len(outs) != len(lses):
        raise ArgumentError(f"{len(outs)} outs and {len(lses)} lses: expected as many of each, and one at least")
    first, torch = outs[0], is_torch(outs[0])
    where = device_of(first, "outs[0]")
    place = first.device if torch else None
    out = empty(tuple(first.shape), first.dtype, place, torch) if out is None else array(out, "out")
    lse = empty(tuple(first.shape[:3]), lses[0].dtype, place, torch) if lse is None else array(lse, "lse")

    def views(arrays: list[Any], name: str, types: tuple[int, ...], write: bool = False) -> tuple[Any, list[Any]]:
        kind = TorchView if torch else NumpyView
        made = [kind(name if write else f"{name}[{i}]", types, where, write) for i in range(len(arrays))]
        return (ctypes.c_void_p * len(made))(*(view.set(x) for view, x in zip(made, arrays))), made

    o_parts, lse_parts = views(outs, "outs", (type_of(first, "outs[0]"),)), views(lses, "lses", (c.TESS_F32,))
    o_all, lse_all = views([out], "out", FLOATS, True), views([lse], "lse", (c.TESS_F32,), True)
    stream, guard = None, contextlib.nullcontext()
    if where != HOST:
        stream, guard = torch_module()._C._cuda_getCurrentRawStream(where), torch_module().cuda.device(where)
    with guard:
        library.call("tess_merge", c.TESS_CPU if where == HOST else c.TESS_CUDA, len(outs), o_parts[0], lse_parts[0],
                     o_all[0][0], lse_all[0][0], stream=stream)
    return out, lse
