"""Attention and its gradients in double precision, with the bounds of docs/semantics.md, "Accuracy", row by row."""
import torch

UNIT = 2.0 ** -22
ROUNDED = {torch.float32: 0.0, torch.float16: 1e-3, torch.bfloat16: 6e-3}


class Reference:
    """o, lse and gradients of drawn tensors, f64, and how far a row of each may be away. mask is bool [n_q, n_kv]."""

    def __init__(self, q, k, v, mask, d_o, d_lse):
        self.half, group = ROUNDED[q.dtype], q.shape[1] // k.shape[1]
        q, k, v, d_o, d_lse = (x.detach().double() for x in (q, k, v, d_o, d_lse))
        shape = k.shape
        k, v = (x.repeat_interleave(group, 1) for x in (k, v))
        scale, listed = q.shape[3] ** -0.5, mask.to(q.device)
        s = q @ k.mT * scale
        p = s.masked_fill(~listed, -torch.inf).softmax(-1)
        size = torch.maximum(s.abs(), 0.5 * scale * q.norm(dim=-1)[..., None] * k.norm(dim=-1)[..., None, :])
        size = size.where(listed, 0).amax(-1)
        sums = torch.stack([(x[:, None] * y[None]).cumsum(-1).square().sum(-1).sqrt() for x, y in zip(
            q.flatten(0, 1), k.flatten(0, 1))]).reshape(s.shape)  # partial sums of a dot product
        slip = UNIT * ((size[..., None].square() + (0.5 * scale * sums).square()).sqrt() - size[..., None])
        self.o, self.lse = p @ v, s.masked_fill(~listed, -torch.inf).logsumexp(-1)
        o = self.o
        count = listed.sum(-1).expand(size.shape)
        wide = ((slip * p).square(), p.square())
        apart = wide[0] @ v.square() - 2 * o * (wide[0] @ v) + o.square() * wide[0].sum(-1, keepdim=True)
        self.o_bound = self.bound(o, self.norm(wide[1] @ v.square()), 0, 0,
                                  self.norm(apart.clamp_min(0)), size, count)
        stored = 1e-4 * self.lse.abs().clamp_min(1) + 2 * UNIT * size if self.half else (
            2 * UNIT * torch.maximum(self.lse.abs(), size).clamp_min(1))
        self.lse_bound = stored + wide[0].sum(-1).sqrt()
        d_s = p * (d_o @ v.mT - ((d_o * o).sum(-1) - d_lse)[..., None])
        lost = (d_o * o).square().sum(-1).sqrt()  # of a delta, by rounding of o
        spread = p.square() * (d_o.square() @ v.square().mT)
        self.d_q = scale * d_s @ k
        self.d_q_bound = self.bound(
            self.d_q, scale * self.norm(d_s.square() @ k.square()), scale * lost * (p @ k).norm(dim=-1),
            scale * self.norm(spread @ k.square()), scale * self.norm((slip * d_s).square() @ k.square()), size, count)

        def shared(x):
            return x.reshape(*shape[:2], group, *x.shape[2:])

        keys = shared(size[..., None].where(listed, 0).amax(-2)).amax(2)
        terms = (listed.sum(0) * group).expand(keys.shape)

        def summed(weights, rows):
            return self.norm(shared(weights.mT @ rows.square()).sum(2))

        self.d_k, self.d_v = shared(scale * d_s.mT @ q).sum(2), shared(p.mT @ d_o).sum(2)
        self.d_k_bound = self.bound(
            self.d_k, scale * summed(d_s.square(), q), scale * summed(p.square() * lost[..., None].square(), q),
            scale * summed(spread, q), scale * summed((slip * d_s).square(), q), keys, terms)
        self.d_v_bound = self.bound(self.d_v, summed(wide[1], d_o), 0, 0, summed(wide[0], d_o), keys, terms)

    @staticmethod
    def norm(squares):
        return squares.sum(-1).sqrt()

    def bound(self, found, a, b, w, x, size, count):
        e32 = UNIT * (4 + size) * (1 + count.sqrt() / 64)
        r = torch.maximum(found.norm(dim=-1), a)
        return (1 + 2 / found.shape[-1] ** 0.5) * ((self.half + e32) * (r + b) + e32 * w + x)

    def excess(self, name, found):
        """The largest error of a row over its bound: 1 at most."""
        error = found.detach().double() - getattr(self, name)
        error = error.abs() if name == "lse" else error.norm(dim=-1)
        return float((error / getattr(self, name + "_bound")).max())
