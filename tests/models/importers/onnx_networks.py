"""Hand-written torch modules that are exported to ONNX and imported again."""

from tests.extras import optional

torch = optional("torch")
nn = torch.nn
functional = torch.nn.functional


class Gpt(nn.Module):
    """A layer with one product for queries, keys and values; the head tied or not."""

    def __init__(self, *, tied, vocab=50, width=16, heads=4, length=8):
        super().__init__()
        self.head = None if tied else nn.Linear(width, vocab, bias=False)
        self.tokens = nn.Embedding(vocab, width)
        self.positions = nn.Parameter(torch.randn(length, width))
        self.layer = GptLayer(width, heads)
        self.norm = nn.LayerNorm(width)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions[: ids.shape[1]]
        x = self.layer(x)
        table = self.tokens.weight if self.head is None else self.head.weight
        return functional.linear(self.norm(x), table)


class GptLayer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 32), nn.Linear(32, width)

    def forward(self, x):
        b, t, d = x.shape
        parts = self.qkv(self.norm1(x)).chunk(3, -1)
        q, k, v = (p.view(b, t, self.heads, d // self.heads).transpose(1, 2) for p in parts)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, d))
        return x + self.narrow(functional.gelu(self.wide(self.norm2(x)), approximate="tanh"))


class Root(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class OnnxLlama(nn.Module):
    """Rotary positions from buffers, two query heads per key head, a gated feed-forward."""

    def __init__(self, vocab=40, width=16, length=6):
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        self.norm1, self.norm2, self.norm3 = Root(width), Root(width), Root(width)
        self.q, self.k = nn.Linear(width, 16, bias=False), nn.Linear(width, 8, bias=False)
        self.v, self.o = nn.Linear(width, 8, bias=False), nn.Linear(16, width, bias=False)
        self.gate, self.up = nn.Linear(width, 24, bias=False), nn.Linear(width, 24, bias=False)
        self.down, self.head = nn.Linear(24, width, bias=False), nn.Linear(width, vocab)
        angles = torch.outer(torch.arange(length).float(), 1.0 / 10 ** (torch.arange(2) / 2))
        angles = torch.cat((angles, angles), -1)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        self.register_buffer("mask", torch.tril(torch.ones(length, length)).bool())

    def turned(self, x):
        first, second = x.chunk(2, -1)
        return x * self.cos + torch.cat((-second, first), -1) * self.sin

    def forward(self, ids):
        x = self.tokens(ids)
        y = self.norm1(x)
        q, k, v = (
            part(y).unflatten(-1, (-1, 4)).transpose(1, 2) for part in (self.q, self.k, self.v)
        )
        q, k = self.turned(q), self.turned(k)
        k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        scores = q @ k.transpose(-1, -2) / 4**0.5
        scores = scores.masked_fill(~self.mask, float("-inf"))
        mixed = scores.softmax(-1) @ v
        x = x + self.o(mixed.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        x = x + self.down(functional.silu(self.gate(y)) * self.up(y))
        return self.head(self.norm3(x))


class ResidualNet(nn.Module):
    """Convolutions with batch norm around a skip, a grouped one, and pooling."""

    def __init__(self, classes=5):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(8), nn.BatchNorm2d(8)
        self.inner = nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=4)
        self.point = nn.Conv2d(8, 8, 1)
        self.slopes = nn.PReLU(8)
        self.head = nn.Linear(8 * 4, classes)

    def forward(self, x):
        x = functional.relu(self.norm1(self.first(x)))
        y = self.slopes(self.norm2(self.inner(x)))
        x = functional.max_pool2d(x + self.point(y), 3, 2, 1)
        x = functional.avg_pool2d(x, 2)
        return self.head(x.flatten(1))


class Vit(nn.Module):
    """Patches, a class token, attention without a mask, and the first token's head."""

    def __init__(self, width=12, heads=3, classes=4):
        super().__init__()
        self.heads = heads
        self.patches = nn.Conv2d(1, width, 2, stride=2)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, 17, width))
        self.norm = nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.head = nn.Linear(width, classes)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), 1) + self.positions
        y = self.norm(x)
        q, k, v = (
            part(y).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        weights = (q * q.shape[-1] ** -0.5 @ k.transpose(-1, -2)).softmax(-1)
        x = x + self.o((weights @ v).transpose(1, 2).flatten(2))
        return self.head(x[:, 0])


class Activations(nn.Module):
    """A multilayer perceptron with another function after every layer."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(12, 12) for _ in range(8))
        self.head = nn.Linear(12, 4)

    def forward(self, x):
        functions = (
            functional.gelu,
            functional.silu,
            functional.softplus,
            functional.hardswish,
            functional.leaky_relu,
            torch.tanh,
            lambda y: y.clamp(-0.5, 0.75) - y.sigmoid() / (1 + y**2),
            lambda y: (y - y.mean(-1, keepdim=True)) / (y.exp().sum(-1, keepdim=True)).sqrt(),
        )
        for layer, function in zip(self.layers, functions, strict=True):
            x = function(layer(x))
        return self.head(x)


class Encoder(nn.Module):
    """PyTorch's own encoder layers, whose queries, keys and values come from one weight."""

    def __init__(self, vocab=40, width=16):
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        layer = nn.TransformerEncoderLayer(width, 4, 32, batch_first=True, dropout=0.0)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocab)

    def forward(self, ids):
        return self.head(self.layers(self.tokens(ids)))


class Recurrent(nn.Module):
    """An LSTM written out over four tokens, and a norm whose scale is one plus its weight."""

    def __init__(self, width=8):
        super().__init__()
        self.table = nn.Embedding(40, width)
        self.gates = nn.Linear(2 * width, 4 * width)
        self.weight = nn.Parameter(torch.zeros(width))
        self.head = nn.Linear(width, 40)

    def forward(self, ids):
        x = self.table(ids)
        h = c = torch.zeros(x.shape[0], x.shape[2])
        states = []
        for t in range(4):
            i, f, g, o = self.gates(torch.cat([x[:, t], h], -1)).chunk(4, -1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            states.append(h)
        y = torch.stack(states, 1)
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6) * (1 + self.weight)
        return self.head(y)
