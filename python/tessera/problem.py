"""Problems: sizes, types and modifiers of attention, from the caller's tensors."""
from __future__ import annotations

import contextlib
import ctypes
from typing import Any

from . import _structs as c
from ._library import ArgumentError, library
from .arrays import HOST, TYPES, device_of, is_torch, torch_module, view_class

PIPELINES = {"fused": c.TESS_FUSED, "staged": c.TESS_STAGED}
SCALINGS = {None: c.TESS_SCALE_NONE, "tensor": c.TESS_SCALE_TENSOR, "head": c.TESS_SCALE_HEAD,
            "token": c.TESS_SCALE_TOKEN, "group": c.TESS_SCALE_GROUP}
GRADIENTS = {"q": c.TESS_GRADIENT_Q, "k": c.TESS_GRADIENT_K, "v": c.TESS_GRADIENT_V, "alibi": c.TESS_GRADIENT_ALIBI,
             "sink": c.TESS_GRADIENT_SINK}
ACTIVATIONS = {"gelu": c.TESS_GELU, "gelu_tanh": c.TESS_GELU_TANH, "silu": c.TESS_SILU, "relu": c.TESS_RELU,
               "identity": c.TESS_IDENTITY}
# Fields of tess_problem that a caller may set by name; the others follow from the tensors.
FIELDS = frozenset(name for name, _ in c.Problem._fields_) - {"struct_size", "type", "operation", "gradients"}


def problem_of(pattern: Any, q: Any, k: Any, v: Any, backward: bool, gradients: str | tuple | None, d_v: int | None,
               fields: dict[str, Any]) -> c.Problem:
    """The problem of the tensors and of `fields`."""
    unknown = set(fields) - FIELDS
    if unknown:
        raise ArgumentError(f"{', '.join(sorted(unknown))}: there is no such field of a problem")
    where, torch = device_of(q, "q"), is_torch(q)
    views = [view_class(torch)(name, tuple(TYPES.values()), where) for name in "qkv"]
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
    if "activation" in fields:
        problem.operation = c.TESS_MLP
    if backward:
        problem.operation = c.TESS_ATTENTION_BACKWARD
        if gradients is not None:
            problem.gradients = sum(GRADIENTS[name] for name in gradients)
    if torch and where == HOST:
        problem.threads = torch_module().get_num_threads()
    tables = {"pipeline": PIPELINES, "k_scale": SCALINGS, "v_scale": SCALINGS, "k_type": TYPES, "v_type": TYPES,
              "k_rope_type": TYPES, "sum_type": TYPES, "activation": ACTIVATIONS}
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
