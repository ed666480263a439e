"""torch: autograd, operators, compile and export, vmap, masks; on CUDA where there is a device."""
import gc
import os
import shutil
import unittest
import warnings

import numpy
from oracle import resident

import tessera
from tessera import ArgumentError, Pattern, TesseraError, UnsupportedError

try:
    import torch
except ImportError:
    torch = None
else:
    import tessera.torch
    from bounds import Reference
    from torch.nn.functional import scaled_dot_product_attention as sdpa

N = 150
LONG = os.environ.get("TESSERA_LONG")


def case(seed=0, device="cpu", dtype=None, heads=4, heads_kv=2, batch=2, n_q=N, n_kv=N, d=32, grad=False):
    generator = torch.Generator().manual_seed(seed)
    found = [torch.randn(batch, h, n, d, generator=generator).to(device, dtype or torch.float32)
             for h, n in ((heads, n_q), (heads_kv, n_kv), (heads_kv, n_kv))]
    return [x.requires_grad_() for x in found] if grad else found


def reference(q, k, v, mask):
    mask = torch.from_numpy(mask.copy()).to(q.device)
    return sdpa(q.double(), k.double(), v.double(), attn_mask=mask, enable_gqa=True)


def near(found, expected, bound=3e-6):
    return bool((found.double() - expected.double()).norm() <= bound * (expected.double().norm() + 1e-30))


@unittest.skipUnless(torch, "needs torch")
class Base(unittest.TestCase):
    device = "cpu"

    def setUp(self):
        self.pattern = Pattern.from_spec("causal&window(40,0)", N, block=16)
        self.mask = self.pattern.to_mask()

    def case(self, *args, **kwargs):
        return case(*args, device=self.device, **kwargs)


class Autograd(Base):
    def test_rows_of_o_lse_and_gradients_hold_the_documented_bounds(self):
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            q, k, v = self.case(dtype=dtype, grad=True)
            o, lse = tessera.attention(q, k, v, self.pattern, return_lse=True)
            d_o, d_lse = torch.randn_like(o), torch.randn_like(lse)
            reference = Reference(q, k, v, torch.from_numpy(self.mask.copy()), d_o, d_lse)
            found = torch.autograd.grad((o, lse), (q, k, v), (d_o, d_lse))
            for name, x in zip(("o", "lse", "d_q", "d_k", "d_v"), (o, lse, *found)):
                self.assertLess(reference.excess(name, x), 1, (name, dtype))

    def test_gradcheck_passes_on_small_inputs(self):
        if self.device != "cpu":
            self.skipTest("finite differences of f32 are for the CPU")
        inputs = self.case(heads=2, heads_kv=1, batch=1, n_q=12, n_kv=12, d=8, grad=True)
        pattern = Pattern.from_spec("causal", 12, block=8)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.assertTrue(torch.autograd.gradcheck(lambda *x: tessera.attention(*x, pattern), inputs, eps=1e-2,
                                                     atol=2e-2, nondet_tol=0))

    def test_modifiers_have_gradients_and_dropout_repeats_by_seed(self):
        q, k, v = self.case(grad=True)
        sink, alibi = (torch.randn(4, device=self.device).mul(0.1).requires_grad_() for _ in range(2))
        o = tessera.attention(q, k, v, self.pattern, sink=sink, alibi=alibi, softcap=4.0)
        self.assertEqual([x.shape for x in torch.autograd.grad(o.sum(), (q, sink, alibi))], [q.shape, (4,), (4,)])
        seed = torch.tensor([7], device=self.device)
        drops = [tessera.attention(q, k, v, self.pattern, dropout=0.3, seed=seed) for _ in range(2)]
        first, again = (torch.autograd.grad(x.sum(), v)[0] for x in drops)
        self.assertTrue((first == again).all())
        torch.manual_seed(3)
        first = tessera.attention(q, k, v, self.pattern, dropout=0.3)
        torch.manual_seed(3)
        self.assertTrue((first == tessera.attention(q, k, v, self.pattern, dropout=0.3)).all())

    def test_an_expanded_gradient_and_strided_inputs_are_taken(self):
        q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for x in self.case())
        torch.autograd.grad(tessera.attention(q, k, v, self.pattern).sum(), (q, k, v))

    def test_a_gradient_of_the_gradient_is_refused(self):
        q, k, v = self.case(grad=True)
        (d_q,) = torch.autograd.grad(tessera.attention(q, k, v, self.pattern).square().sum(), q, create_graph=True)
        with self.assertRaises(RuntimeError):
            d_q.sum().backward()

    def test_half_and_bfloat16_keep_their_type(self):
        for dtype, bound in ((torch.float16, 2e-3), (torch.bfloat16, 1e-2)):
            q, k, v = self.case(dtype=dtype, grad=True)
            o = tessera.attention(q, k, v, self.pattern)
            self.assertEqual(o.dtype, dtype)
            self.assertTrue(near(o, reference(q, k, v, self.mask), bound))
            self.assertEqual(torch.autograd.grad(o.sum(), k)[0].dtype, dtype)


class Operators(Base):
    def arguments(self, **kwargs):
        return (*self.case(**kwargs), None, None, None, self.pattern.key, 0.0, 0.0, 0.0)

    def test_opcheck_finds_nothing(self):
        torch.library.opcheck(torch.ops.tessera.attention.default, self.arguments(grad=True))

    def compiled(self, backend):
        q, k, v = self.case(grad=True)
        expected = tessera.attention(q * 2, k, v, self.pattern)
        function = torch.compile(lambda q, k, v: tessera.attention(q * 2, k, v, self.pattern), fullgraph=True,
                                 backend=backend)
        found = function(q, k, v)
        self.assertTrue((found == expected).all())
        for x, y in zip(*(torch.autograd.grad(o.square().sum(), (q, k, v)) for o in (found, expected))):
            self.assertTrue((x == y).all())

    def test_compiled_whole_with_the_same_bits_and_gradients(self):
        self.compiled("aot_eager")

    def test_inductors_code_has_the_same_bits_and_gradients(self):
        if self.device == "cpu" and not (LONG and (shutil.which("g++") or shutil.which("clang++"))):
            self.skipTest("needs a C++ compiler, and half a minute of it: TESSERA_LONG=1")
        self.compiled("inductor")

    def test_exported_by_its_spec(self):
        pattern = self.pattern

        class Model(torch.nn.Module):
            def forward(self, q, k, v):
                return tessera.attention(q, k, v, pattern)

        q, k, v = self.case()
        program = torch.export.export(Model(), (q, k, v))
        self.assertTrue((program.module()(q, k, v) == tessera.attention(q, k, v, pattern)).all())

    def test_a_pattern_that_is_gone_is_named(self):
        pattern = Pattern.from_mask(self.mask, block=16)
        key = pattern.key
        del pattern
        gc.collect()
        with self.assertRaisesRegex(TesseraError, "kept alive"):
            torch.ops.tessera.attention(*self.case(), None, None, None, key, 0.0, 0.0, 0.0)

    def test_vmap_and_func_grad_have_the_values_of_a_loop(self):
        q, k, v = self.case()
        many = torch.stack([q, q + 1, q - 1])
        found = torch.vmap(lambda x: tessera.attention(x, k, v, self.pattern))(many)
        for x, y in zip(many, found):
            self.assertTrue((tessera.attention(x, k, v, self.pattern) == y).all())
        grads = torch.vmap(torch.func.grad(lambda x: tessera.attention(x, k, v, self.pattern).sum()))(many)
        leaf = (q + 1).requires_grad_()
        (expected,) = torch.autograd.grad(tessera.attention(leaf, k, v, self.pattern).sum(), leaf)
        self.assertTrue(near(grads[1], expected))


class Calls(Base):
    def test_scaled_dot_product_attention_has_torchs_meaning(self):
        q, k, v = self.case(n_kv=77)
        mask = torch.rand(2, 1, N, 77, device=self.device) < 0.5
        mask[..., 0] = True
        floats = torch.zeros_like(mask, dtype=torch.float32).masked_fill(~mask, float("-inf"))
        for options in ({}, {"is_causal": True}, {"attn_mask": mask}, {"attn_mask": floats}, {"scale": 0.3}):
            found = tessera.torch.scaled_dot_product_attention(q, k, v, enable_gqa=True, **options)
            double = dict(options)
            if double.get("attn_mask") is floats:
                double["attn_mask"] = floats.double()
            expected = sdpa(q.double(), k.double(), v.double(), enable_gqa=True, **double)
            self.assertTrue(near(found, expected, 1e-5), options)

    def test_a_mask_is_imported_once_until_it_is_written(self):
        q, k, v = self.case(heads_kv=4)
        kept = tessera.torch.mask_patterns.kept
        mask = torch.ones(N, N, dtype=torch.bool, device=self.device)
        before = len(kept)
        call = tessera.torch.scaled_dot_product_attention
        first = call(q, k, v, mask)
        call(q, k, v, mask)
        self.assertEqual(len(kept), before + 1)
        mask[:, 3:] = False
        self.assertFalse((call(q, k, v, mask) == first).all())
        del mask
        gc.collect()
        self.assertEqual(len(kept), before)

    def test_inference_mode_is_served(self):
        q, k, v = self.case(heads_kv=4)
        expected = tessera.attention(q, k, v, self.pattern)
        with torch.inference_mode():
            self.assertTrue((tessera.attention(q, k, v, self.pattern) == expected).all())
            mask = torch.from_numpy(self.mask.copy()).to(self.device).clone()
            self.assertTrue(near(tessera.torch.scaled_dot_product_attention(q, k, v, mask), expected))

    def test_a_base_is_merged_and_has_no_gradient(self):
        q, k, v = self.case()
        odd = numpy.arange(N) % 2
        first, second = (Pattern.from_mask(self.mask & (odd == i), block=16) for i in range(2))
        part = tessera.attention(q, k, v, first, return_lse=True)
        o, lse = tessera.attention(q, k, v, second, base=part, return_lse=True)
        self.assertTrue(near(o, reference(q, k, v, self.mask), 1e-5))
        rest = tessera.unmerge((o, lse), part)
        plan = tessera.Plan(first, q, k, v)
        self.assertTrue(near(plan(q, k, v, base=rest, out=rest[0]), reference(q, k, v, self.mask), 1e-5))
        with self.assertRaisesRegex(UnsupportedError, "torch.func"):
            torch.vmap(lambda x: tessera.attention(x, k, v, second, base=part))(torch.stack([q, q]))
        with self.assertRaisesRegex(UnsupportedError, "which has no gradient"):
            tessera.attention(q.requires_grad_(), k, v, second, base=part)

    def test_column_sums_of_todays_lse_are_shares(self):
        q, k, v = self.case(dtype=torch.bfloat16)
        pattern = Pattern.from_spec("causal", N, block=16)
        plan = tessera.Plan(pattern, q, k, v, sum_rows=16, sum_type="bfloat16")
        o, lse = tessera.attention(q, k, v, pattern, return_lse=True)
        sums = plan.make_sums()
        plan(q, k, v, lse_reference=lse, column_sums=sums)
        rows = torch.tensor([16.0] * 9 + [6], device=self.device)
        self.assertTrue(near(sums.double().sum(-1), rows.expand(2, 4, 10), 1e-2))

    def test_bad_input_is_refused_by_name(self):
        q, k, v = self.case()
        plan = tessera.Plan(self.pattern, q, k, v)
        leaf = q.clone().requires_grad_()
        call = tessera.torch.scaled_dot_product_attention
        for function, kind, words in (
                (lambda: tessera.attention(q.double(), k.double(), v, self.pattern), UnsupportedError, "float64"),
                (lambda: tessera.attention(q, k.half(), v, self.pattern), ArgumentError, "k is float16"),
                (lambda: tessera.attention(q, k.numpy(force=True), v, self.pattern), ArgumentError, "k is ndarray"),
                (lambda: tessera.attention(q.to("meta"), k, v, self.pattern), TesseraError, "meta"),
                (lambda: plan(leaf, k, v), UnsupportedError, "q requires grad"),
                (lambda: plan(q.numpy(force=True), k, v), ArgumentError, "q is numpy.ndarray"),
                (lambda: call(q, k, v), ArgumentError, "enable_gqa"),
                (lambda: call(q, k, v, torch.randn(N, N), enable_gqa=True), UnsupportedError, "0 and -inf"),
                (lambda: call(q, k, v, torch.ones(N, N) > 0, is_causal=True), ArgumentError, "attn_mask")):
            with self.subTest(words):
                with self.assertRaises(kind) as caught:
                    function()
                self.assertIn(words, str(caught.exception))

    def test_sparse_tensors_are_patterns(self):
        dense = torch.rand(64, 64) < 0.05
        dense = torch.stack([dense, dense.roll(8, 0)])
        pattern = Pattern.from_bsr(dense.float().to_sparse_bsr((8, 8)))
        self.assertEqual((pattern.heads, pattern.block), (2, (8, 8)))
        self.assertTrue((pattern.to_mask(0, 1) >= dense[1].numpy()).all())
        self.assertTrue((Pattern.from_csr(dense[0].float().to_sparse_csr()).to_mask() == dense[0].numpy()).all())

    def test_block_masks_come_and_go(self):
        try:
            from torch.nn.attention.flex_attention import create_block_mask
        except ImportError:
            self.skipTest("needs FlexAttention")
        block_mask = create_block_mask(lambda b, h, q, k: (q >= k) & (q - k <= 40), None, None, N, N, self.device)
        self.assertTrue((Pattern.from_block_mask(block_mask).to_mask() == self.mask).all())
        heads = Pattern.from_spec("random(0.4,1)+causal", 256, block=128, heads=2)
        again = Pattern.from_block_mask(heads.to_block_mask(self.device))
        for head in range(2):
            self.assertTrue((again.to_mask(0, head) == heads.to_mask(0, head)).all())

    def test_a_mask_mod_may_read_tables(self):
        documents = torch.repeat_interleave(torch.arange(3), 50).to(self.device)
        pattern = Pattern.from_mask_mod(lambda b, h, q, k: documents[q] == documents[k], N, block=32,
                                        device=self.device)
        self.assertTrue((pattern.to_mask() == numpy.kron(numpy.eye(3, dtype=bool), numpy.ones((50, 50), bool))).all())

    def test_no_memory_is_lost_over_many_calls(self):
        q, k, v = self.case(heads=1, heads_kv=1, batch=1, n_q=8, n_kv=8, d=8, grad=True)
        pattern = Pattern.from_spec("causal", 8, block=8)

        def calls(count):
            for _ in range(count):
                tessera.attention(q, k, v, pattern).sum().backward()
            return resident()

        before = calls(500)
        self.assertLess(calls(100000 if LONG else 3000) - before, 2048)  # KiB


class Cuda:
    """The same on CUDA, and what CUDA alone has."""

    device = "cuda"

    def setUp(self):
        if not torch.cuda.is_available():
            self.skipTest("needs a CUDA device")
        super().setUp()


class CudaAutograd(Cuda, Autograd):
    pass


class CudaOperators(Cuda, Operators):
    pass


class CudaCalls(Cuda, Calls):
    pass


class CudaAlone(Cuda, Base):
    def test_a_thousand_replays_have_equal_bits(self):
        q, k, v = self.case(dtype=torch.bfloat16)
        expected = tessera.attention(q, k, v, self.pattern)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            o = tessera.attention(q, k, v, self.pattern)
        tessera.plan_cache.resize(tessera.plan_cache.limit)
        for _ in range(1000):
            graph.replay()
        self.assertTrue((o == expected).all())

    def test_a_plan_is_not_made_while_a_graph_is_captured(self):
        q, k, v = self.case(dtype=torch.bfloat16, seed=5)
        pattern = Pattern.from_spec("causal", N, block=32)
        with self.assertRaisesRegex(tessera.CudaError, "captured"):
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                tessera.attention(q, k, v, pattern)

    def test_side_streams_wait_for_what_they_were_told_to(self):
        q, k, v = self.case(dtype=torch.float16)
        expected = tessera.attention(q * 2, k, v, self.pattern)
        for _ in range(20):
            stream, event = torch.cuda.Stream(), torch.cuda.Event()
            torch.cuda._sleep(1000000)
            late = q * 2
            event.record()
            with torch.cuda.stream(stream):
                event.wait()
                o = tessera.attention(late, k, v, self.pattern)
            torch.cuda.current_stream().wait_stream(stream)
            self.assertTrue((o == expected).all())

    def test_device_lists_fill_and_run_in_one_graph(self):
        q, k, v = self.case(dtype=torch.bfloat16, n_q=16, d=64)
        indices = torch.randint(-1, N, (2, 1, 16, 32), dtype=torch.int32, device="cuda")
        lists = tessera.DevicePattern.indices(indices, N)
        plan = tessera.ReservedPlan(lists, q, k, v)
        plan.fill(lists)
        plan(q, k, v)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            plan.fill(lists)
            o = plan(q, k, v)
        for seed in range(3):
            indices.copy_(torch.randint(-1, N, indices.shape, dtype=torch.int32, device="cuda"))
            graph.replay()
            pattern = Pattern.from_topk(indices, N)
            mask = numpy.stack([pattern.to_mask(b) for b in range(2)])[:, None]
            self.assertTrue(near(o, reference(q, k, v, mask), 1e-2))
            self.assertEqual(plan.report()["pairs"], 4 * pattern.describe()["pairs"])

    def test_pages_of_eight_bits_are_read_by_their_table(self):
        q, k, v = self.case(dtype=torch.bfloat16, n_q=1, n_kv=128, d=64)
        table = torch.randperm(16, device="cuda").reshape(2, 8).to(torch.int32)
        pages, scale = [], torch.full((1, 1, 1, 1), 0.5, device="cuda")
        for x in (k, v):
            paged = torch.empty(16, 2, 16, 64, dtype=torch.float8_e4m3fn, device="cuda")
            for batch in range(2):
                for j in range(8):
                    paged[table[batch, j]] = (x[batch, :, j * 16:j * 16 + 16] * 2).to(torch.float8_e4m3fn)
            pages.append(paged)
        lengths = torch.tensor([100, 128], dtype=torch.int32, device="cuda")
        ranges = torch.tensor([[[[[0, -1]]]]], dtype=torch.int32, device="cuda")
        lists = tessera.DevicePattern.ranges(ranges, 1, 128, block_q=1, lengths=lengths)
        plan = tessera.ReservedPlan(lists, q, *pages, page_size=16, k_scale="tensor", v_scale="tensor")
        plan.fill(lists)
        o = plan(q, *pages, page_table=table, k_scale=scale, v_scale=scale)
        mask = (numpy.arange(128) < numpy.array([[100], [128]]))[:, None, None]
        stored = [(x * 2).to(torch.float8_e4m3fn).float() * 0.5 for x in (k, v)]
        self.assertTrue(near(o, reference(q.float(), *stored, mask), 1e-2))

    def test_tensors_of_other_devices_are_refused(self):
        q, k, v = self.case()
        with self.assertRaisesRegex(ArgumentError, "k is on the host, expected cuda:0"):
            tessera.attention(q, k.cpu(), v, self.pattern)

    def test_parts_merge_on_the_device(self):
        q, k, v = self.case(dtype=torch.float16)
        odd = numpy.arange(N) % 2
        parts = [tessera.attention(q, k, v, Pattern.from_mask(self.mask & (odd == i), block=16), return_lse=True)
                 for i in range(2)]
        self.assertTrue(near(tessera.merge(*zip(*parts))[0], reference(q, k, v, self.mask), 3e-3))


if __name__ == "__main__":
    unittest.main()
