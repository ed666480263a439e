"""Plans: a problem over a pattern, made once and run many times."""
from __future__ import annotations

import ctypes
import functools
from typing import Any, Callable

import numpy

from . import _structs as c
from ._library import ArgumentError, error_of, library
from .arrays import array, device_name, maker, torch_module
from .device_pattern import DevicePattern
from .pattern import Pattern, hold
from .planned import WRITTEN, Frame, Planned
from .problem import GRADIENTS, problem_of


class Plan(Planned):
    """Attention over a pattern, planned for tensors like q, k and v.

    q [batch, heads_q, n_q, d_qk], k [batch, heads_kv, n_kv, d_qk] and v [batch, heads_kv, n_kv, d_v] are arrays of
    numpy or torch on one device: sizes, types and alignment are taken, values are not looked at. v is None where it is
    the first d_v dims of k. scale None means 1/sqrt(d_qk). Other fields of tess_problem go by name: softcap, alibi,
    sink, dropout, threads, kernel, tile_rows, part_keys, pipeline, page_size, k_scale, v_scale, rope_dims, o_f32,
    sum_rows, ...
    """

    always = ("q", "k", "v")

    def __init__(self, pattern: Pattern, q: Any, k: Any, v: Any = None, *, scale: float | None = None,
                 d_v: int | None = None, **fields: Any):
        q, k, v = (x if x is None else array(x, name) for name, x in (("q", q), ("k", k), ("v", v)))
        self.pattern = hold(pattern, "pattern")
        problem = problem_of(pattern, q, k, v, False, None, d_v, dict(fields, scale=scale))
        if v is None:
            self.always = ("q", "k")
        super().__init__(problem, q, lambda target: library.make(
            "tess_plan_create", ctypes.byref(problem), pattern.handle, ctypes.byref(target)))
        self.shape_outputs()

    def shape_outputs(self) -> None:
        p = self.problem
        self.make_o = self.maker((p.batch, p.heads_q, p.n_q, p.d_v), bool(p.o_f32))
        self.make_lse = self.maker((p.batch, p.heads_q, p.n_q), True)

    def make_sums(self) -> Any:
        """An array for column_sums, [batch, heads_q, ceil(n_q / sum_rows), n_kv] of sum_type: of each group of queries,
        the sum of exp(s - reference) to each key, 0 where it is not listed."""
        p = self.problem
        if not p.sum_rows:
            raise ArgumentError("the plan was made without sum_rows: it has no column sums")
        shape, name = (p.batch, p.heads_q, -(-p.n_q // p.sum_rows), p.n_kv), "bfloat16" if p.sum_type else "float32"
        dtype = getattr(torch_module(), name) if self.torch else numpy.dtype(name)
        return maker(shape, dtype, self.place, self.torch)()

    def __call__(self, q: Any, k: Any, v: Any = None, *, out: Any = None, return_lse: bool = False, lse: Any = None,
                 **arrays: Any) -> Any:
        """o [batch, heads_q, n_q, d_v]; with return_lse (o, lse), lse f32 [batch, heads_q, n_q] in natural logarithm.

        out and lse are written where they are given. Arrays that the problem's modifiers need go by name: alibi and
        sink [heads_q] f32, seed (one 64-bit word), key_positions, page_table, k_scale, v_scale, q_rope, k_rope, o_rest.

        base is what the run starts from: (o, lse) of other keys, which is merged, or o alone, to which beta (1) times
        the run is added. A base's o may be `out`. With sum_rows in the problem, lse_reference [batch, heads_q, n_q] f32
        is given, and column_sums (see make_sums) written.
        """
        return self.once(self.kind.look(q, k, v), q, k, v, out, return_lse, lse, arrays)

    def once(self, layout: tuple | None, q: Any, k: Any, v: Any, out: Any, return_lse: bool, lse: Any,
             arrays: dict[str, Any] | None, function: Callable | None = None) -> Any:
        """A call; layout is what View.look says of q, k and v, function None is tess_run."""
        frame = self.frame(layout, q, k, v)
        arguments = frame.arguments
        if out is None:
            out = self.make_o()
            arguments.o = frame.made["o"](out)
        else:
            arguments.o = frame.o(out)
        if lse is not None:
            arguments.lse = frame.lse(lse)
        elif return_lse:
            lse = self.make_lse()
            arguments.lse = frame.made["lse"](lse)
        else:
            arguments.lse = None
        if arrays or function or not frame.start:
            self.start(frame, function or library.c.tess_run, arrays)
        elif frame.start():
            raise error_of(frame.error)
        self.frames.append(frame)  # of a run that failed it is not used again
        return (out, lse) if return_lse else out

    def bind(self, q: Any, k: Any, v: Any = None, *, out: Any = None, lse: Any = None,
             **arrays: Any) -> Callable[[], Any]:
        """A function without arguments that runs over these very tensors and answers out: for loops whose tensors
        stay. It keeps them, checks them once, and serves one thread and one stream at a time."""
        if out is None:
            out = self.make_o()
        frame = Frame(self)
        kept = self.extras(frame, dict(arrays, q=q, k=k, v=v, o=out, lse=lse))
        start = frame.start or functools.partial(self.launch, frame, library.c.tess_run)

        def bound(held: Any = (self, kept)) -> Any:
            if start():
                raise error_of(frame.error)
            return out

        return bound


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
        return self.once(self.kind.look(q, k, v), q, k, v, o, lse, d_o, d_lse, delta, out, arrays)

    def once(self, layout: tuple | None, q: Any, k: Any, v: Any, o: Any, lse: Any, d_o: Any, d_lse: Any, delta: Any,
             out: dict[str, Any] | None, arrays: dict[str, Any]) -> dict[str, Any]:
        """A call; layout is what View.look says of q, k and v."""
        frame, found = self.frame(layout, q, k, v), {}
        frame.lse(lse), frame.d_o(d_o)
        arguments = frame.arguments
        arguments.o = None if o is None else frame.o(o)
        arguments.d_lse = None if d_lse is None else frame.d_lse(d_lse)
        arguments.delta = None if delta is None else frame.delta(delta)
        for name, make in self.makers.items():
            given, field = out.get(name) if out else None, "d_" + name
            found[name] = x = make() if given is None else given
            if field in WRITTEN[True]:
                setattr(arguments, field, (frame.made[field] if given is None else getattr(frame, field))(x))
            else:
                arrays[field] = x
        self.start(frame, library.c.tess_run, arrays)
        self.frames.append(frame)
        return found

    def delta(self, o: Any, d_o: Any, d_lse: Any = None, out: Any = None) -> Any:
        """delta [batch, heads_q, n_q], f32: the sum of d_o * o of each query, less d_lse (tess_delta)."""
        out = self.make_delta() if out is None else out
        frame = Frame(self)
        for name in self.always:
            setattr(frame.arguments, name, None)
        frame.views["delta"].write = True
        self.start(frame, library.c.tess_delta, {"o": o, "d_o": d_o, "d_lse": d_lse, "delta": out})
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
            self.always = ("q", "k")
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
        call = self.fill_run(device_pattern, self.image_address, self.image_size)
        return self.once(self.kind.look(q, k, v), q, k, v, out, return_lse, lse, arrays, call)

    def direct(self, device_pattern: DevicePattern, q: Any, k: Any, v: Any = None, *, out: Any = None,
               return_lse: bool = False, lse: Any = None, **arrays: Any) -> Any:
        """step without an image, where info has fill_run_direct: the kernel reads the lists, whose indices are promised
        to be distinct, and the image stays as it is. Sums have another order than step's."""
        call = self.fill_run(device_pattern, None, 0)
        return self.once(self.kind.look(q, k, v), q, k, v, out, return_lse, lse, arrays, call)

    def fill_run(self, device_pattern: DevicePattern, place: int | None, size: int) -> Any:
        """tess_plan_fill_run over an image or none, called as tess_run is."""
        self.hold_device(device_pattern)
        lists = device_pattern.address

        def call(handle: int, arguments: Any, error: Any, stream: int | None) -> int:
            given = arguments._obj
            image, image_size = given.image, given.image_size
            given.image, given.image_size = None, 0
            status = library.c.tess_plan_fill_run(handle, lists, place, size, None, arguments, error, stream)
            given.image, given.image_size = image, image_size
            return status

        return call

    def report(self) -> dict[str, int]:
        """Findings of the last fill (tess_fill_report): faults, overflows, keys, items, pairs and the first fault's
        place. On CUDA it waits for the current stream."""
        report, image = library.new(c.FillReport), self.image_address
        if self.backend == c.TESS_CUDA:
            start = self.image_address - self.image.data_ptr()
            copy = self.image[start:start + c.TESS_REPORT_SIZE].cpu()
            image = copy.data_ptr()
        library.call("tess_plan_report", self.handle, image, ctypes.byref(report))
        return {name: getattr(report, name) for name, _ in report._fields_[1:]}
