"""Attention of Hugging Face's transformers, by Tessera.

    import tessera.transformers
    tessera.transformers.register()
    model = AutoModel.from_config(config, attn_implementation="tessera")
"""
from __future__ import annotations

import functools
from typing import Any, Callable

from ._library import UnsupportedError
from .pattern import Pattern
from .torch import attend, mask_patterns, strided


@functools.lru_cache(maxsize=32)
def joined(pattern: Pattern, padding: Pattern) -> Pattern:
    return pattern & padding


def register(name: str = "tessera", pattern: Pattern | Callable[[Any, int, int], Pattern] | None = None) -> None:
    """Registers attention and mask function under a name, for attn_implementation.

    Without a pattern the model's own masks are computed: causal, sliding windows, padding, packed sequences. Each
    is imported once for all layers. A pattern, or a function of (module, n_q, n_kv) that answers one, stands in the
    place of the model's mask; padding is joined to it. Softcap and sinks are the model's. Attention weights are not
    answered, and a causal model that hands over no mask is refused: it would see the future.
    """
    from torch.nn import functional
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    def mask(*args: Any, **kwargs: Any) -> Any:
        if pattern is None:
            return sdpa_mask(*args, **dict(kwargs, allow_is_causal_skip=False, allow_is_bidirectional_skip=False))
        padding = kwargs.get("attention_mask")
        if padding is None:
            return None
        first, n_kv = kwargs.get("kv_offset", 0), kwargs["kv_length"]
        found = padding[:, first:first + n_kv].bool()
        return functional.pad(found, (0, n_kv - found.shape[1]))[:, None, None]  # keys past the mask are not seen

    def attention(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, scaling: float | None = None,
                  dropout: float = 0.0, is_causal: bool | None = None, **kwargs: Any) -> tuple[Any, None]:
        """o [batch, n_q, heads, dims] of query [batch, heads, n_q, dims], and no weights."""
        for found in ("position_bias", "output_attentions", "head_mask"):
            if kwargs.get(found) is not None and kwargs[found] is not False:
                raise UnsupportedError(f"{found} is given: no biases but ALiBi's are computed, and no weights answered")
        n_q, n_kv = query.shape[2], key.shape[2]
        if pattern is not None:
            seen = pattern if isinstance(pattern, Pattern) else pattern(module, n_q, n_kv)
            if attention_mask is not None:
                seen = joined(seen, mask_patterns.get(attention_mask, n_q, seen.block))
        elif attention_mask is not None:
            seen = mask_patterns.get(attention_mask, n_q, 64)
        else:
            raise UnsupportedError("attention_mask is None: the model did not call the registered mask function, and "
                                   "which keys it means is not known; give register a pattern")
        o = attend(*strided(query, key, value), seen, scaling, False, kwargs.get("softcap") or 0.0, None,
                   kwargs.get("s_aux"), dropout, None)
        return o.transpose(1, 2), None

    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, mask)
