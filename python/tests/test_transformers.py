"""transformers: a small model with random weights, against its own attention."""
import unittest

import tessera

try:
    import torch
    import transformers
except ImportError:
    transformers = None
else:
    import tessera.transformers


@unittest.skipUnless(transformers, "needs torch and transformers")
class Model(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)
        config = dict(vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                      num_key_value_heads=2, max_position_embeddings=128)
        self.model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config)).eval()
        self.tokens = torch.randint(0, 50, (2, 40))

    def logits(self, name, **inputs):
        self.model.set_attn_implementation(name)
        with torch.no_grad():
            return self.model(self.tokens, **inputs).logits

    def test_logits_are_those_of_eager_attention(self):
        tessera.transformers.register()
        padding = torch.ones(2, 40, dtype=torch.long)
        padding[1, :7] = 0
        for inputs in ({}, {"attention_mask": padding}):
            seen = inputs.get("attention_mask", torch.ones(2, 40)).bool()
            found, expected = (self.logits(name, **inputs)[seen] for name in ("tessera", "eager"))
            self.assertLess((found - expected).abs().max(), 1e-5)

    def test_generated_tokens_are_the_same(self):
        tessera.transformers.register()
        found = []
        for name in ("tessera", "eager"):
            self.model.set_attn_implementation(name)
            found.append(self.model.generate(self.tokens, max_new_tokens=5, do_sample=False, pad_token_id=0))
        self.assertTrue((found[0] == found[1]).all())

    def test_a_pattern_stands_for_the_models_mask_and_padding_is_joined(self):
        tessera.transformers.register("windowed", tessera.Pattern.from_spec("causal&window(8,0)", 40, block=16))
        found = self.logits("windowed")
        self.tokens[:, 0] += 1  # 20 positions before what two windows of 8 reach from query 39
        again = self.logits("windowed")
        self.assertTrue((found[:, 39] == again[:, 39]).all() and not (found[:, 1] == again[:, 1]).all())
        padding = torch.ones(2, 40, dtype=torch.long)
        padding[:, :3] = 0
        padded = self.logits("windowed", attention_mask=padding)
        self.tokens[:, 0] += 1
        self.assertTrue((self.logits("windowed", attention_mask=padding)[:, 3:] == padded[:, 3:]).all())

    def test_a_causal_model_without_a_mask_is_refused(self):
        tessera.transformers.register()
        attention = transformers.AttentionInterface()["tessera"]
        q = torch.zeros(1, 1, 4, 8)
        with self.assertRaisesRegex(tessera.UnsupportedError, "attention_mask is None"):
            attention(self.model.model.layers[0].self_attn, q, q, q, None)


if __name__ == "__main__":
    unittest.main()
