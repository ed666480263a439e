"""Attention in double precision, from docs/semantics.md, drawn tensors, and a process's memory."""
import pathlib

import numpy


def draw(seed, *shapes, dtype="float32"):
    random = numpy.random.default_rng(seed)
    return [random.standard_normal(shape).astype(dtype) for shape in shapes]


def weights(q, k, mask, scale=None, softcap=0.0, alibi=None, sink=None):
    """Weights of keys [batch, heads, n_q, n_kv], and lse; k has the heads of q."""
    n_q, n_kv = q.shape[2], k.shape[2]
    s = numpy.einsum("bhid,bhjd->bhij", q, k) * (scale or q.shape[3] ** -0.5)
    if softcap:
        s = softcap * numpy.tanh(s / softcap)
    if alibi is not None:
        apart = numpy.arange(n_kv)[None, :] - (numpy.arange(n_q)[:, None] + n_kv - n_q)
        s = s + numpy.asarray(alibi, float)[:, None, None] * apart
    s = numpy.where(mask, s, -numpy.inf)
    top = s.max(-1, keepdims=True)
    top = numpy.where(numpy.isinf(top), 0, top)
    with numpy.errstate(divide="ignore"):
        lse = numpy.log(numpy.exp(s - top).sum(-1, keepdims=True)) + top
    below = lse if sink is None else numpy.logaddexp(lse, numpy.asarray(sink, float)[:, None, None])
    with numpy.errstate(invalid="ignore"):
        p = numpy.where(numpy.isinf(lse), 0, numpy.exp(s - below))
    return p, lse[..., 0]


def attention(q, k, v, mask, **modifiers):
    """o and lse."""
    q, k, v = (numpy.asarray(x, float) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    p, lse = weights(q, numpy.repeat(k, group, axis=1), mask, **modifiers)
    return numpy.einsum("bhij,bhjd->bhid", p, numpy.repeat(v, group, axis=1)), lse


def gradients(q, k, v, mask, d_o, d_lse=0.0):
    """d_q, d_k, d_v."""
    q, k, v, d_o = (numpy.asarray(x, float) for x in (q, k, v, d_o))
    group, scale = q.shape[1] // k.shape[1], q.shape[3] ** -0.5
    wide_k, wide_v = (numpy.repeat(x, group, axis=1) for x in (k, v))
    p, _ = weights(q, wide_k, mask)
    o = numpy.einsum("bhij,bhjd->bhid", p, wide_v)
    delta = (d_o * o).sum(-1) - d_lse
    d_s = p * (numpy.einsum("bhid,bhjd->bhij", d_o, wide_v) - delta[..., None]) * scale

    def shared(x):
        return x.reshape(*k.shape[:2], group, *x.shape[2:]).sum(2)

    return (numpy.einsum("bhij,bhjd->bhid", d_s, wide_k), shared(numpy.einsum("bhij,bhid->bhjd", d_s, q)),
            shared(numpy.einsum("bhij,bhid->bhjd", p, d_o)))


def near(found, expected, bound=2e-6):
    """Whether errors are small beside the expected tensor's size; infinities in equal places."""
    found, expected = numpy.asarray(found, float), numpy.asarray(expected, float)
    finite = numpy.isfinite(expected)
    error, size = numpy.abs((found - expected)[finite]), numpy.abs(expected[finite])
    return (numpy.isfinite(found) == finite).all() and error.max(initial=0) <= bound * max(1, size.max(initial=0))


def resident(field="VmRSS"):
    """KiB of memory that the process has; of VmHWM, has had at most."""
    text = pathlib.Path("/proc/self/status").read_text()
    return int(text.partition(field + ":")[2].split()[0])
