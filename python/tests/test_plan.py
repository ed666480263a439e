"""Plans and attention on numpy arrays, against an oracle in double precision."""
import gc
import os
import threading
import unittest

import numpy
import oracle

import tessera
from tessera import ArgumentError, DevicePattern, Pattern, TesseraError, UnsupportedError

N = 150


def case(seed=0, batch=2, heads=4, heads_kv=2, n_q=N, n_kv=N, d=32, d_v=48):
    return oracle.draw(seed, (batch, heads, n_q, d), (batch, heads_kv, n_kv, d), (batch, heads_kv, n_kv, d_v))


class Attention(unittest.TestCase):
    def setUp(self):
        self.pattern = Pattern.from_spec("window(31,0)+global(3)", N, block=16)
        self.mask = self.pattern.to_mask()
        self.q, self.k, self.v = case()

    def test_o_and_lse_are_the_oracles(self):
        o, lse = tessera.attention(self.q, self.k, self.v, self.pattern, return_lse=True)
        expected, expected_lse = oracle.attention(self.q, self.k, self.v, self.mask)
        self.assertEqual((o.dtype, o.shape, lse.shape), (numpy.float32, (2, 4, N, 48), (2, 4, N)))
        self.assertTrue(oracle.near(o, expected) and oracle.near(lse, expected_lse))

    def test_half_precision_keeps_its_type(self):
        q, k, v = (x.astype("float16") for x in (self.q, self.k, self.v))
        o = tessera.attention(q, k, v, self.pattern)
        self.assertEqual(o.dtype, numpy.float16)
        self.assertTrue(oracle.near(o, oracle.attention(q, k, v, self.mask)[0], 2e-3))

    def test_modifiers_are_the_oracles(self):
        given = dict(alibi=numpy.float32([0.1, -0.2, 0.3, 0]), sink=numpy.float32([0, 1, -numpy.inf, 2]), softcap=3.0,
                     scale=0.4)
        o = tessera.attention(self.q, self.k, self.v, self.pattern, **given)
        self.assertTrue(oracle.near(o, oracle.attention(self.q, self.k, self.v, self.mask, **given)[0], 4e-6))

    def test_a_query_without_keys_is_zero_with_an_lse_of_minus_infinity(self):
        mask = self.mask.copy()
        mask[7] = False
        o, lse = tessera.attention(self.q, self.k, self.v, Pattern.from_mask(mask, block=16), return_lse=True)
        self.assertTrue((o[:, :, 7] == 0).all() and numpy.isneginf(lse[:, :, 7]).all())

    def test_views_with_strides_are_read_in_place(self):
        q, k, v = (x.transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3) for x in (self.q, self.k, self.v))
        self.assertFalse(q.flags.c_contiguous)
        plain = tessera.attention(self.q, self.k, self.v, self.pattern)
        self.assertTrue((tessera.attention(q, k, v, self.pattern) == plain).all())
        out = numpy.empty((2, N, 4, 48), "float32").transpose(0, 2, 1, 3)
        self.assertIs(tessera.Plan(self.pattern, q, k, v)(q, k, v, out=out), out)
        self.assertTrue((out == plain).all())

    def test_gradients_are_the_oracles(self):
        o, lse = tessera.attention(self.q, self.k, self.v, self.pattern, return_lse=True)
        d_o, d_lse = oracle.draw(3, o.shape, lse.shape)
        found = tessera.attention_backward(self.q, self.k, self.v, self.pattern, o, lse, d_o, d_lse=d_lse)
        for x, y in zip(found, oracle.gradients(self.q, self.k, self.v, self.mask, d_o, d_lse)):
            self.assertTrue(oracle.near(x, y, 4e-6))
        plan = tessera.BackwardPlan(self.pattern, self.q, self.k, self.v, gradients=("v",))
        delta = plan.delta(o, d_o, d_lse)
        self.assertTrue(oracle.near(delta, (d_o * o).sum(-1) - d_lse, 4e-6))
        again = plan(self.q, self.k, self.v, None, lse, d_o, delta=delta)
        self.assertEqual(list(again), ["v"])
        self.assertTrue(oracle.near(again["v"], found[2]))

    def test_dropout_is_repeated_by_its_seed_and_asks_for_one(self):
        seed = numpy.array([5], numpy.uint64)
        first, again, other = (tessera.attention(self.q, self.k, self.v, self.pattern, dropout=0.3, seed=x)
                               for x in (seed, seed, seed + 1))
        self.assertTrue((first == again).all() and not (first == other).all())
        with self.assertRaisesRegex(ArgumentError, "seed"):
            tessera.attention(self.q, self.k, self.v, self.pattern, dropout=0.3)

    def test_parts_merge_into_the_whole(self):
        halves = [Pattern.from_mask(self.mask & (numpy.arange(N) % 2 == i), block=16) for i in range(2)]
        parts = [tessera.attention(self.q, self.k, self.v, x, return_lse=True) for x in halves]
        o, lse = tessera.merge(*zip(*parts))
        expected, expected_lse = oracle.attention(self.q, self.k, self.v, self.mask)
        self.assertTrue(oracle.near(o, expected, 4e-6) and oracle.near(lse, expected_lse, 4e-6))
        with self.assertRaisesRegex(ArgumentError, "as many of each"):
            tessera.merge([o], [])

    def test_what_is_left_of_the_whole_is_attention_to_the_other_keys(self):
        third = numpy.arange(N) % 3 == 0
        kept, rest = (Pattern.from_mask(self.mask & keys, block=16) for keys in (third, ~third))
        whole, part, expected = (tessera.attention(self.q, self.k, self.v, x, return_lse=True)
                                 for x in (self.pattern, kept, rest))
        o, lse = tessera.unmerge(whole, part)
        some = numpy.isfinite(expected[1])
        for found, right in zip((o, lse), expected):
            self.assertTrue(oracle.near(found[some], right[some], 1e-4))
        self.assertTrue((o[~some] == 0).all() and numpy.isneginf(lse[~some]).all())
        nothing = tessera.unmerge(part, part)
        self.assertTrue((nothing[0] == 0).all() and numpy.isneginf(nothing[1]).all())
        with self.assertRaisesRegex(ArgumentError, "whole and kept"):
            tessera.unmerge(whole[0], part)

    def test_a_base_is_merged_or_added_to_in_place_too(self):
        third = numpy.arange(N) % 3 == 0
        kept, rest = (Pattern.from_mask(self.mask & keys, block=16) for keys in (third, ~third))
        q, k, v = self.q, self.k, self.v
        part = tessera.attention(q, k, v, kept, return_lse=True)
        o, lse = tessera.attention(q, k, v, rest, base=part, return_lse=True)
        expected, expected_lse = oracle.attention(q, k, v, self.mask)
        self.assertTrue(oracle.near(o, expected) and oracle.near(lse, expected_lse))
        plan = tessera.Plan(rest, q, k, v)
        alone = plan(q, k, v)
        self.assertTrue(oracle.near(plan(q, k, v, base=part[0], beta=-0.5), part[0] - 0.5 * alone))
        self.assertTrue((plan(q, k, v) == alone).all())
        out = part[0].copy()
        self.assertIs(plan(q, k, v, base=out, out=out), out)
        self.assertTrue(oracle.near(out, part[0] + alone))
        for given, words in (({"base": part, "beta": 2.0}, "beta"), ({"base": (o, lse, o)}, "base has 3"),
                             ({"base": part[0], "beta": 0.0}, "beta is 0"), ({"base": k}, "base_o")):
            with self.assertRaisesRegex(ArgumentError, words):
                plan(q, k, v, **given)

    def test_column_sums_are_the_weights_that_keys_get(self):
        plan = tessera.Plan(self.pattern, self.q, self.k, self.v, sum_rows=16)
        o, lse = tessera.attention(self.q, self.k, self.v, self.pattern, return_lse=True)
        sums = plan.make_sums()
        found = plan(self.q, self.k, self.v, lse_reference=lse, column_sums=sums)
        self.assertTrue(oracle.near(found, o))
        weights, _ = oracle.weights(self.q.astype(float), numpy.repeat(self.k, 2, 1).astype(float), self.mask)
        weights = numpy.pad(weights, ((0, 0), (0, 0), (0, -N % 16), (0, 0)))
        self.assertTrue(oracle.near(sums, weights.reshape(2, 4, -1, 16, N).sum(3), 4e-6))
        with self.assertRaisesRegex(ArgumentError, "without sum_rows"):
            tessera.Plan(self.pattern, self.q, self.k, self.v).make_sums()
        with self.assertRaisesRegex(ArgumentError, "column_sums"):
            plan(self.q, self.k, self.v, lse_reference=lse)

    def test_what_speaks_dlpack_is_an_input(self):
        class Foreign:
            def __init__(self, x):
                self.x = x

            def __dlpack__(self, **options):
                return self.x.__dlpack__(**options)

            def __dlpack_device__(self):
                return self.x.__dlpack_device__()

        plain = tessera.attention(self.q, self.k, self.v, self.pattern)
        foreign = [Foreign(x) for x in (self.q, self.k, self.v)]
        self.assertTrue((tessera.attention(*foreign, self.pattern) == plain).all())
        self.assertTrue((tessera.Plan(self.pattern, *foreign)(*foreign) == plain).all())


class Plans(unittest.TestCase):
    def setUp(self):
        self.pattern = Pattern.from_spec("causal", N, block=16)
        self.q, self.k, self.v = case()
        self.plan = tessera.Plan(self.pattern, self.q, self.k, self.v)

    def test_a_bound_run_has_the_bits_of_a_call(self):
        expected = self.plan(self.q, self.k, self.v)
        out = numpy.empty_like(expected)
        run = self.plan.bind(self.q, self.k, self.v, out=out)
        self.q *= 2
        self.assertIs(run(), out)
        self.q /= 2
        self.assertTrue((run() == expected).all())

    def test_a_bound_run_keeps_plan_and_tensors_alive(self):
        def make():
            q, k, v = case(seed=4)
            return tessera.Plan(Pattern.from_spec("causal", N, block=16), q, k, v).bind(q, k, v)

        run = make()
        gc.collect()
        ballast = [case(seed=i) for i in range(4)]
        self.assertTrue(oracle.near(run(), oracle.attention(*case(seed=4), numpy.tri(N, dtype=bool))[0]))
        del ballast

    def test_plans_speak(self):
        self.assertIn("attention", self.plan.kernels)
        self.assertIn("fused attention on cpu", str(self.plan))
        self.assertGreater(self.plan.info["pairs"], 0)
        self.assertGreater(self.plan.predict(), 0)

    def test_threads_share_a_plan(self):
        expected, found = self.plan(self.q, self.k, self.v), {}

        def work(number):
            found[number] = all((self.plan(self.q, self.k, self.v) == expected).all() for _ in range(10))

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(found, dict.fromkeys(range(4), True))

    def test_the_cache_is_bounded_and_hits_by_what_a_plan_depends_on(self):
        cache = tessera.plan_cache
        cache.clear()
        before, limit = cache.misses, cache.limit
        try:
            for _ in range(3):
                tessera.attention(self.q, self.k, self.v, self.pattern)
            self.assertEqual(cache.misses, before + 1)
            tessera.attention(self.q, self.k, self.v, self.pattern, scale=0.5)
            self.assertEqual((cache.misses, len(cache)), (before + 2, 2))
            cache.resize(1)
            self.assertEqual(len(cache), 1)
            for n in (10, 20, 30):
                tessera.attention(*(x[:, :, :n] for x in (self.q, self.k, self.v)), Pattern.from_spec("causal", n))
            self.assertEqual(len(cache), 1)
        finally:
            cache.resize(limit)

    def test_values_within_keys_are_their_first_dims(self):
        plan = tessera.Plan(self.pattern, self.q, self.k, d_v=16)
        expected, _ = oracle.attention(self.q, self.k, self.k[..., :16], numpy.tri(N, dtype=bool))
        self.assertTrue(oracle.near(plan(self.q, self.k), expected))
        with self.assertRaisesRegex(ArgumentError, "expected None"):
            plan(self.q, self.k, self.v)

    def test_misaligned_views_get_a_plan_of_their_own(self):
        memory = numpy.empty(self.q.nbytes + 4, numpy.uint8)
        q = memory[4:].view("float32")[: self.q.size].reshape(self.q.shape)
        q[:] = self.q
        plain = tessera.attention(self.q, self.k, self.v, self.pattern)
        self.assertTrue(oracle.near(tessera.attention(q, self.k, self.v, self.pattern), plain))

    def test_memory_does_not_grow_with_calls(self):
        def calls(count):
            for _ in range(count):
                self.plan(q, k, v, return_lse=True)
                tessera.attention(q, k, v, pattern)
            return oracle.resident()

        pattern = Pattern.from_spec("causal", 8, block=8)
        q, k, v = case(batch=1, heads=1, heads_kv=1, n_q=8, n_kv=8, d=8, d_v=8)
        self.plan = tessera.Plan(pattern, q, k, v)
        before = calls(1000)
        self.assertLess(calls(100000 if os.environ.get("TESSERA_LONG") else 5000) - before, 1024)  # KiB


class Refused(unittest.TestCase):
    def setUp(self):
        self.pattern = Pattern.from_spec("causal", N, block=16)
        self.q, self.k, self.v = case()
        self.plan = tessera.Plan(self.pattern, self.q, self.k, self.v)

    def test_bad_input_names_argument_found_and_expected(self):
        q, k, v, plan = self.q, self.k, self.v, self.plan
        read_only = numpy.broadcast_to(numpy.float32(0), (2, 4, N, 48))
        for call, kind, words in (
                (lambda: plan(q.astype("float16"), k, v), ArgumentError, "q is float16, expected float32"),
                (lambda: plan(q.astype("float64"), k, v), UnsupportedError, "q is float64"),
                (lambda: plan(q.astype("int32"), k, v), UnsupportedError, "q is int32"),
                (lambda: plan(q[:, :, :100], k, v), ArgumentError, "q: q has 100 rows, should have 150"),
                (lambda: plan(q[0, 0], k, v), ArgumentError, "q has 2 dims"),
                (lambda: plan(q, k.tolist(), v), ArgumentError, "k is list"),
                (lambda: plan(q, k, None), ArgumentError, "v"),
                (lambda: plan(q, k, v, out=read_only), ArgumentError, "read-only"),
                (lambda: plan(q.repeat(2, axis=3)[..., ::2], k, v), ArgumentError, "q"),
                (lambda: plan(q, k, v, sink=numpy.zeros(4, "float32")), ArgumentError, "sink"),
                (lambda: plan(q, k, v, nonsense=q), ArgumentError, "nonsense"),
                (lambda: tessera.Plan(self.pattern, q, k, v, sofcap=1), ArgumentError, "sofcap"),
                (lambda: tessera.Plan(self.pattern, q, k, v, kernel="none"), UnsupportedError, "none"),
                (lambda: tessera.Plan("causal", q, k, v), ArgumentError, "pattern is str"),
                (lambda: tessera.Plan(self.pattern, q, k, v, pipeline="other"), ArgumentError, "pipeline"),
                (lambda: tessera.attention(q, k, v, Pattern.from_spec("causal", N - 1)), TesseraError, "pattern"),
                (lambda: tessera.attention(q, k.astype("float16"), v, self.pattern), ArgumentError, "k is float16"),
                (lambda: tessera.attention(q, k, v, self.pattern, sink=numpy.zeros(3, "f4")), ArgumentError, "sink"),
                (lambda: tessera.BackwardPlan(self.pattern, q, k, v, gradients=("x",)), ArgumentError, "gradients")):
            with self.assertRaises(kind) as caught:
                call()
            self.assertIn(words, str(caught.exception))
            self.assertIsInstance(caught.exception, TesseraError)

    def test_a_plan_serves_on_after_a_refusal(self):
        expected = self.plan(self.q, self.k, self.v)
        for bad in (self.q[:, :, :3], self.q.astype("float16")):
            with self.assertRaises(TesseraError):
                self.plan(bad, self.k, self.v)
        self.assertTrue((self.plan(self.q, self.k, self.v) == expected).all())

    def test_a_temporary_of_another_type_is_refused_and_not_read_later(self):
        for _ in range(5):
            with self.assertRaises(ArgumentError):
                self.plan(self.q.astype("float16"), self.k, self.v)
            gc.collect()
        self.plan(self.q, self.k, self.v)


class DeviceLists(unittest.TestCase):
    def test_filled_indices_are_the_topk_pattern_each_step(self):
        q, k, v = case(n_q=20)
        random = numpy.random.default_rng(9)
        indices = random.integers(-1, N, (2, 1, 20, 8)).astype("int32")
        lists = DevicePattern.indices(indices, N)
        plan = tessera.ReservedPlan(lists, q, k, v)
        for _ in range(3):
            indices[:] = random.integers(-1, N, indices.shape)
            plan.fill(lists)
            pattern = Pattern.from_topk(indices, N)
            mask = numpy.stack([pattern.to_mask(b) for b in range(2)])[:, None]
            self.assertTrue(oracle.near(plan(q, k, v), oracle.attention(q, k, v, mask)[0]))
            self.assertEqual(plan.report()["pairs"], 4 * pattern.describe()["pairs"])

    def test_a_step_fills_and_runs_with_the_bits_of_both(self):
        q, k, v = case(n_q=20)
        indices = numpy.random.default_rng(2).integers(-1, N, (2, 1, 20, 8)).astype("int32")
        lists = DevicePattern.indices(indices, N)
        plan = tessera.ReservedPlan(lists, q, k, v)
        o, lse = plan.step(lists, q, k, v, return_lse=True)
        plan.fill(lists)
        expected, expected_lse = plan(q, k, v, return_lse=True)
        self.assertTrue((o == expected).all() and (lse == expected_lse).all())
        self.assertEqual(plan.info["fill_run_direct"], 0)
        with self.assertRaisesRegex(tessera.TesseraError, "reads lists from an image"):
            plan.direct(lists, q, k, v)
        self.assertTrue((plan(q, k, v) == expected).all())

    def test_a_boolean_mask_lists_its_elements(self):
        q, k, v = case(n_q=32, n_kv=64)
        mask = numpy.random.default_rng(4).random((2, 1, 32, 64)) < 0.3
        lists = DevicePattern.mask(mask, block=16)
        plan = tessera.ReservedPlan(lists, q, k, v)
        plan.fill(lists)
        self.assertTrue(oracle.near(plan(q, k, v), oracle.attention(q, k, v, mask)[0]))

    def test_selected_columns_are_the_highest_and_make_lists(self):
        (scores,) = oracle.draw(5, (2, 1, 20, N))
        found = tessera.select(scores, k=8, bits=True)
        expected = numpy.sort(numpy.argsort(-scores, axis=-1, kind="stable")[..., :8], axis=-1)
        self.assertTrue((found.indices == expected).all() and (found.counts == 8).all() and not found.overflows.any())
        listed = numpy.unpackbits(found.bits.view("uint8"), axis=-1, bitorder="little")[..., :N]
        self.assertTrue((listed == (tessera.select(scores, k=8).indices[..., None] == numpy.arange(N)).any(-2)).all())
        forced = numpy.array([[3, 40, 41]], dtype=numpy.int32)
        bits = tessera.columns(tessera.Columns(indices=forced), N, "bits").bits
        kept = tessera.select(scores, k=8, keep=bits)
        self.assertTrue((kept.counts == 8).all())
        self.assertTrue((kept.indices[..., None] == forced[0]).any(-2).all())
        some = tessera.select(scores, threshold=1.0)
        self.assertTrue((some.counts == (scores >= 1).sum(-1)).all())
        q, k, v = case(n_q=20)
        lists = DevicePattern.indices(found.indices, N, counts=found.counts, promises=("distinct", "ascending"))
        plan = tessera.ReservedPlan(lists, q, k, v)
        plan.fill(lists)
        self.assertTrue(oracle.near(plan(q, k, v), oracle.attention(q, k, v, listed.astype(bool))[0]))
        with self.assertRaisesRegex(ArgumentError, "one of k, threshold and p"):
            tessera.select(scores)

    def test_pooled_blocks_are_scored_and_chosen(self):
        q, k = oracle.draw(6, (2, 4, 48, 16), (2, 2, 70, 16))
        lengths = numpy.array([70, 33], "int32")
        means = tessera.pool(k, 16, lengths=lengths)
        for b, length in enumerate(lengths):
            for j in range(-(-length // 16)):
                block = k[b, :, 16 * j:min(16 * j + 16, length)]
                self.assertTrue(numpy.allclose(means[b, :, j], block.mean(-2), atol=1e-6))
        bounds = tessera.pool(k, 16, "min_max")
        self.assertTrue((bounds[:, :, 1, :16] == k[:, :, 16:32].min(-2)).all())
        self.assertTrue((bounds[:, :, 1, 16:] == k[:, :, 16:32].max(-2)).all())
        pooled = tessera.pool(q, 16)
        scores = tessera.pool_score(pooled, tessera.pool(k, 16), heads=2, block=16, n_kv=70, causal=True, n_q=48)
        products = numpy.einsum("bhrd,bhcd->bhrc", pooled, numpy.repeat(tessera.pool(k, 16), 2, 1)) / 4
        expected = products.reshape(2, 2, 2, 3, 5).sum(2)
        seen = (numpy.arange(5) * 16)[None] <= (numpy.arange(3) * 16 + 15 + 22)[:, None]
        self.assertTrue(numpy.allclose(scores[..., seen], expected[..., seen], atol=1e-5))
        self.assertTrue((scores[..., ~seen] == -numpy.inf).all())
        self.assertTrue((tessera.select(scores, k=2, block=16).counts == 2).all())
        with self.assertRaisesRegex(ArgumentError, "mode is 'max'"):
            tessera.pool(k, 16, "max")

    def test_columns_are_the_same_in_every_form(self):
        listed = (oracle.draw(7, (5, 131))[0] > 0.5).astype("uint8")
        made = tessera.columns(tessera.Columns(bytes=listed), 131, ("bits", "indices"))
        bits = numpy.unpackbits(made.bits.view("uint8"), axis=-1, bitorder="little")[:, :131]
        self.assertTrue((bits == listed).all() and (made.counts == listed.sum(-1)).all())
        for row, indices in zip(listed, made.indices):
            self.assertEqual([x for x in indices if x >= 0], list(numpy.flatnonzero(row)))
        back = tessera.columns(tessera.Columns(indices=made.indices, counts=made.counts), 131, "bytes")
        self.assertTrue((back.bytes == listed).all())
        self.assertTrue((tessera.columns(tessera.Columns(bits=made.bits), 131, "bytes").bytes == listed).all())
        with self.assertRaisesRegex(ArgumentError, "one of bytes, bits and indices"):
            tessera.columns(tessera.Columns(), 131, "bits")

    def test_faults_are_counted_in_the_report_and_refused_where_strict(self):
        q, k, v = case(batch=1, n_q=4)
        indices = numpy.array([[[[1, 2], [N, 3], [-7, -1], [0, 0]]]], "int32")
        lists = DevicePattern.indices(indices, N)
        plan = tessera.ReservedPlan(lists, q, k, v)
        plan.fill(lists)
        report = plan.report()
        self.assertEqual((report["faults"], report["row"], report["position"]), (2, 2, 0))
        with self.assertRaises(tessera.ListError) as caught:
            tessera.ReservedPlan(lists, q, k, v, strict=1).fill(lists)
        self.assertEqual(caught.exception.row, 2)

    def test_pages_and_lengths_are_those_of_the_whole_cache(self):
        q, k, v = case(n_q=1, n_kv=64)
        page, table = 16, numpy.array([[3, 0, 5, 1], [2, 7, 4, 6]], "int32")
        pages = [numpy.zeros((8, 2, page, x.shape[3]), "float32") for x in (k, v)]
        for x, paged in zip((k, v), pages):
            for batch in range(2):
                for j in range(4):
                    paged[table[batch, j]] = x[batch, :, j * page:(j + 1) * page]
        lengths = numpy.array([40, 57], "int32")
        ranges = numpy.array([[[[[0, -1]]]]], "int32")
        lists = DevicePattern.ranges(ranges, 1, 64, block_q=1, lengths=lengths)
        plan = tessera.ReservedPlan(lists, q, *pages, page_size=page)
        plan.fill(lists)
        mask = (numpy.arange(64) < lengths[:, None])[:, None, None]
        self.assertTrue(oracle.near(plan(q, *pages, page_table=table), oracle.attention(q, k, v, mask)[0]))
        with self.assertRaisesRegex(ArgumentError, "page_table"):
            plan(q, *pages, page_table=table[:, :3])

    def test_blocks_by_rows_and_by_bits_list_the_same(self):
        q, k, v = case(batch=1, n_q=32, n_kv=64)
        blocks = numpy.random.default_rng(3).random((1, 1, 4, 8)) < 0.5
        row_ptr = numpy.zeros((1, 1, 5), "int64")
        row_ptr[..., 1:] = blocks.sum(-1).cumsum(-1)
        rows = DevicePattern.rows(row_ptr, blocks.nonzero()[3].astype("int32"), 32, 64, block=8, cut=tessera.CAUSAL)
        words = numpy.zeros((1, 1, 4, 8), numpy.uint8)
        words[..., 0] = numpy.packbits(blocks, axis=-1, bitorder="little")[..., 0]
        bits = DevicePattern.bits(words.view("uint64"), 32, 64, block=8, cut=tessera.CAUSAL)
        expected = Pattern.from_blocks(blocks, 32, 64, block=8) & Pattern.from_spec("causal", 32, 64, block=8)
        for lists in (rows, bits):
            plan = tessera.ReservedPlan(lists, q, k, v)
            plan.fill(lists)
            self.assertTrue(oracle.near(plan(q, k, v), oracle.attention(q, k, v, expected.to_mask())[0]))


if __name__ == "__main__":
    unittest.main()
