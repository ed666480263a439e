"""The MLP on lists: the hidden columns that a group of rows lists, and deltas against cached activations."""
from __future__ import annotations

from typing import Any

from ._library import ArgumentError
from .arrays import array, is_torch
from .device_pattern import DevicePattern
from .pattern import Pattern
from .plan import Plan, ReservedPlan

GROUP = 128  # rows of a group where all columns are computed


def rows_of(x: Any, name: str, batch: int | None = None) -> Any:
    """x [.., rows, dims] as [batch, 1, rows, dims]; without a batch of its own all batches share it."""
    x = array(x, name)
    if x.ndim not in (2, 3):
        raise ArgumentError(f"{name} has {x.ndim} dims, expected [rows, dims], or [batch, rows, dims]")
    x = x[None, None] if x.ndim == 2 else x[:, None]
    if batch in (None, x.shape[0]):
        return x
    if is_torch(x):
        return x.expand(batch, -1, -1, -1)
    import numpy
    return numpy.broadcast_to(x, (batch, *x.shape[1:]))


class MLP:
    """act(x w1^T + bias) w2 + bias_out over the hidden columns that each group of rows lists (docs/semantics.md, "MLP").

    lists is a Pattern of n_q = rows and n_kv = hidden columns, whose block rows are the groups; a DevicePattern, which
    fill reads; or None: all columns. x [batch, rows, k] or [rows, k], w1 [hidden, k], w2 [hidden, n], of which sizes,
    types and alignment are taken. torch.nn.Linear stores w2 transposed: hand over linear.weight.t().contiguous().
    activation is gelu, gelu_tanh, silu, relu or identity; other fields of tess_problem go by name: threads, o_f32, ...
    """

    def __init__(self, lists: Pattern | DevicePattern | None, x: Any, w1: Any, w2: Any, *, activation: str = "gelu",
                 **fields: Any):
        x = rows_of(x, "x")
        w1, w2 = (rows_of(y, name, x.shape[0]) for y, name in ((w1, "w1"), (w2, "w2")))
        if lists is None:
            lists = Pattern.from_spec("dense", x.shape[2], w1.shape[2], block=GROUP)
        if x.shape[2] * x.dtype.itemsize % 16:  # columns of cached activations begin wherever they come to lie
            fields.setdefault("alignment", x.dtype.itemsize)
        kind = ReservedPlan if isinstance(lists, DevicePattern) else Plan
        self.plan = kind(lists, x, w1, w2, activation=activation, **fields)

    def fill(self, lists: DevicePattern) -> None:
        """Lists as they are when the current stream reaches them (ReservedPlan.fill)."""
        if not isinstance(self.plan, ReservedPlan):
            raise ArgumentError("the MLP was made for lists of the host: make one for a DevicePattern")
        self.plan.fill(lists)

    def __call__(self, x: Any, w1: Any, w2: Any, *, bias: Any = None, bias_out: Any = None, activations: Any = None,
                 base: Any = None, beta: float = 1, out: Any = None) -> Any:
        """o [batch, rows, n], or [rows, n] for an x of two dims; `out` where it is given.

        activations [batch, hidden, rows], or [hidden, rows], is a cache of the hidden layer. Without a base its listed
        columns are written: the step of caching. With base, the o of an earlier step, the run is a delta: what
        activations changed by, times w2, is added to base beta times, and activations are brought up to date. A base
        may be `out`. bias [hidden] and bias_out [n] are of x's type or f32; a delta has no use for bias_out.
        """
        rank = array(x, "x").ndim
        x = rows_of(x, "x")
        w1, w2 = (rows_of(y, name, x.shape[0]) for y, name in ((w1, "w1"), (w2, "w2")))
        given = {name: array(y, name)[None, None, None] for name, y in (("bias", bias), ("bias_out", bias_out))
                 if y is not None}
        if activations is not None:
            given["activations"] = rows_of(activations, "activations")
        if base is not None:
            given["base"], given["beta"] = rows_of(base, "base"), beta
        o = self.plan(x, w1, w2, out=None if out is None else rows_of(out, "out"), **given)
        return out if out is not None else o[:, 0] if rank == 3 else o[0, 0]
