"""Attention over parts of the keys, joined and parted."""
from __future__ import annotations

import ctypes
from typing import Any

from ._library import ArgumentError
from .arrays import array, device_of, empty, is_torch
from .calls import call, view_of


def pointers(arrays: list[Any], name: str, where: int) -> tuple[Any, list[Any]]:
    """An array of views' addresses, and the views, which it does not keep."""
    views = [view_of(x, f"{name}[{i}]", where) for i, x in enumerate(arrays)]
    return (ctypes.c_void_p * len(views))(*(view.address for view in views)), views


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
    (o_parts, o_views), (lse_parts, lse_views) = pointers(outs, "outs", where), pointers(lses, "lses", where)
    written = view_of(out, "out", where, True), view_of(lse, "lse", where, True)
    call("tess_merge", where, len(outs), o_parts, lse_parts, *(view.address for view in written))
    del o_views, lse_views
    return out, lse


def unmerge(whole: tuple[Any, Any], kept: tuple[Any, Any], *, out: Any = None, lse: Any = None) -> tuple[Any, Any]:
    """(o, lse) over the keys that are not kept, from (o, lse) over all keys and over those that are (tess_unmerge): o
    [batch, heads, n, d_v], lse [batch, heads, n] f32 in natural logarithm. (0, -inf) where nothing is left. out and lse
    may be those of the whole or of the kept. As a base it makes a run over the kept keys the whole again."""
    names = ("whole[0]", "whole[1]", "kept[0]", "kept[1]")
    if any(not isinstance(x, (tuple, list)) or len(x) != 2 for x in (whole, kept)):
        raise ArgumentError("whole and kept are (o, lse) each")
    given = [array(x, name) for x, name in zip((*whole, *kept), names)]
    first, torch = given[0], is_torch(given[0])
    where = device_of(first, names[0])
    place = first.device if torch else None
    out = empty(tuple(first.shape), first.dtype, place, torch) if out is None else array(out, "out")
    lse = empty(tuple(first.shape[:3]), given[1].dtype, place, torch) if lse is None else array(lse, "lse")
    views = [view_of(x, name, where) for x, name in zip(given, names)]
    views += [view_of(out, "out", where, True), view_of(lse, "lse", where, True)]
    call("tess_unmerge", where, *(view.address for view in views))
    return out, lse
