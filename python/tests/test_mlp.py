"""The MLP on lists on numpy arrays, against numpy in double precision."""
import unittest

import numpy

import tessera
from tessera import MLP, ArgumentError, DevicePattern, Pattern

ROWS, HIDDEN, K, N, GROUP = 150, 96, 40, 24, 64


def silu(x):
    return x / (1 + numpy.exp(-x))


class OfNumpy(unittest.TestCase):
    def setUp(self):
        draw = numpy.random.default_rng(5)
        self.x, self.w1, self.w2 = (draw.standard_normal(shape).astype("float32")
                                    for shape in ((ROWS, K), (HIDDEN, K), (HIDDEN, N)))
        self.bias, self.bias_out = (draw.standard_normal(n).astype("float32") for n in (HIDDEN, N))
        self.indices = numpy.stack([draw.permutation(HIDDEN)[:30] for _ in range(-(-ROWS // GROUP))]).astype("int32")
        self.listed = numpy.zeros((ROWS, HIDDEN), bool)
        for i in range(ROWS):
            self.listed[i, self.indices[i // GROUP]] = True
        self.lists = DevicePattern.indices(self.indices[None, None], HIDDEN, n_q=ROWS, block=(GROUP, 1))

    def hidden(self, x):
        return silu(x.astype("float64") @ self.w1.T + self.bias) * self.listed

    def test_listed_columns_alone_are_computed(self):
        mlp = MLP(self.lists, self.x, self.w1, self.w2, activation="silu")
        mlp.fill(self.lists)
        o = mlp(self.x, self.w1, self.w2, bias=self.bias, bias_out=self.bias_out)
        self.assertEqual((o.shape, o.dtype), ((ROWS, N), numpy.float32))
        self.assertLess(numpy.abs(o - (self.hidden(self.x) @ self.w2 + self.bias_out)).max(), 1e-4)

    def test_deltas_follow_x_and_are_nothing_where_it_stayed(self):
        pattern = Pattern.from_counts(self.indices[None, None], n_q=ROWS, n_kv=HIDDEN, block=(GROUP, 1))
        mlp = MLP(pattern, self.x, self.w1, self.w2, activation="silu")
        cache = numpy.zeros((HIDDEN, ROWS), "float32")
        o = mlp(self.x, self.w1, self.w2, bias=self.bias, bias_out=self.bias_out, activations=cache)
        self.assertLess(numpy.abs(cache - self.hidden(self.x).T).max(), 1e-5)
        self.assertTrue((mlp(self.x, self.w1, self.w2, bias=self.bias, activations=cache, base=o) == o).all())
        moved = self.x + numpy.float32(0.1)
        out = mlp(moved, self.w1, self.w2, bias=self.bias, activations=cache, base=o, out=o)
        self.assertIs(out, o)
        self.assertLess(numpy.abs(o - (self.hidden(moved) @ self.w2 + self.bias_out)).max(), 1e-4)

    def test_all_columns_are_the_dense_mlp_of_batches_that_share_weights(self):
        x = numpy.stack([self.x, -self.x])
        o = MLP(None, x, self.w1, self.w2, activation="relu")(x, self.w1, self.w2)
        self.assertEqual(o.shape, (2, ROWS, N))
        self.assertLess(numpy.abs(o - numpy.maximum(x.astype("float64") @ self.w1.T, 0) @ self.w2).max(), 1e-4)

    def test_weights_as_torch_stores_them_are_refused_in_words(self):
        with self.assertRaisesRegex(ArgumentError, r"torch stores \[N, F\]"):
            MLP(None, self.x, self.w1, self.w2)(self.x, self.w1, numpy.ascontiguousarray(self.w2.T))
        with self.assertRaisesRegex(tessera.TesseraError, "activation"):
            MLP(None, self.x, self.w1, self.w2, activation="tanh")


if __name__ == "__main__":
    unittest.main()
