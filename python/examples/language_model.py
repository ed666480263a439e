"""A transformers model with random weights, its attention swapped for Tessera's.

    python3 language_model.py
"""
import sys

try:
    import torch
    import transformers
except ImportError:
    print("needs torch and transformers")
    sys.exit(77)

import tessera
import tessera.transformers

torch.manual_seed(0)
config = transformers.LlamaConfig(vocab_size=100, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                                  num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512)
model = transformers.LlamaForCausalLM(config).eval()
tokens = torch.randint(0, 100, (1, 256))


def logits(name):
    model.set_attn_implementation(name)
    with torch.no_grad():
        return model(tokens).logits


# The model's own masks: causal here, sliding windows and padding where a model has them.
tessera.transformers.register()
error = (logits("tessera") - logits("eager")).abs().max()
print(f"Tessera beside eager attention: largest difference of logits {error:.1e}")
assert error < 1e-4

# A pattern in their place: each query sees 64 tokens back, and the first 4.
window = tessera.Pattern.from_spec("causal&(window(63,0)+global(4))", 256, block=32)
tessera.transformers.register("tessera_window", window)
change = (logits("tessera_window") - logits("tessera")).abs().max()
print(f"with {window.describe()['pairs'] / (256 * 257 / 2):.0%} of the causal pairs logits differ by {change:.1e}")
