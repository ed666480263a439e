"""A training step of torch: a layer of sparse attention that learns to copy what stood 8 tokens before.

    python3 train_step.py [cpu|cuda]
"""
import sys

try:
    import torch
except ImportError:
    print("needs torch")
    sys.exit(77)

import tessera

device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
torch.manual_seed(0)
N, D, H = 128, 32, 4
pattern = tessera.Pattern.from_spec("causal&window(15,0)", N, block=16)


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.project = torch.nn.Linear(2 * D, 3 * D)
        self.out = torch.nn.Linear(D, D)

    def forward(self, x):
        q, k, v = self.project(x).unflatten(-1, (3, H, D // H)).permute(2, 0, 3, 1, 4)  # [batch, heads, n, dims]
        return self.out(tessera.attention(q, k, v, pattern).transpose(1, 2).flatten(2))


layer = Layer().to(device)
optimiser = torch.optim.Adam(layer.parameters(), lr=1e-2)
position = torch.randn(1, N, D, device=device)
losses = []
for step in range(60):
    x = torch.randn(4, N, D, device=device)
    found = layer(torch.cat([x, position.expand_as(x)], -1))
    loss = torch.nn.functional.mse_loss(found[:, 8:], x[:, :-8])
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    losses.append(loss.item())
print(f"loss {losses[0]:.3f}, after {len(losses)} steps {losses[-1]:.3f}")
assert losses[-1] < losses[0]
