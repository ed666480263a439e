"""Patterns: sources, operators, round trips, pictures and what is refused."""
import gc
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
import unittest

import numpy

import tessera
from tessera import ListError, Pattern, TesseraError, UnsupportedError, _structs


def drawn(seed, *shape, keep=0.3):
    return numpy.random.default_rng(seed).random(shape) < keep


class Sources(unittest.TestCase):
    def test_a_mask_comes_back_whatever_the_blocks(self):
        mask = drawn(1, 2, 3, 37, 50)
        for block in (1, 8, (16, 5), 64):
            pattern = Pattern.from_mask(mask, block=block)
            for batch in range(2):
                for head in range(3):
                    self.assertTrue((pattern.to_mask(batch, head) == mask[batch, head]).all())
            self.assertEqual(pattern.describe()["pairs"], mask.sum())

    def test_a_spec_and_a_mask_mod_of_the_same_meaning_are_equal(self):
        pattern = Pattern.from_spec("causal&window(31,0)", 150, block=(16, 32))
        other = Pattern.from_mask_mod(lambda b, h, q, k: (q >= k) & (q - k <= 31), 150, block=(16, 32), chunk=4096)
        self.assertTrue((pattern.to_mask() == other.to_mask()).all())
        self.assertEqual(other.describe()["full_tiles"], pattern.describe()["full_tiles"])

    def test_a_float_mask_of_zeros_and_infinities_is_one_and_others_are_refused(self):
        mask = drawn(2, 20, 30)
        floats = numpy.where(mask, 0, -numpy.inf).astype("float32")
        self.assertTrue((Pattern.from_mask(floats, block=8).to_mask() == mask).all())
        floats[3, 4] = -1.5
        with self.assertRaisesRegex(UnsupportedError, "0 and -inf"):
            Pattern.from_mask(floats)

    def test_expanded_batches_and_heads_stay_one_list(self):
        mask = numpy.broadcast_to(drawn(3, 20, 30), (4, 6, 20, 30))
        pattern = Pattern.from_mask(mask, block=8)
        self.assertEqual((pattern.batch, pattern.heads), (1, 1))

    def test_a_mask_of_one_row_is_repeated_for_all_queries(self):
        mask = drawn(4, 2, 1, 1, 90)
        pattern = Pattern.from_mask(mask, n_q=37, block=(8, 16))
        for batch in range(2):
            self.assertTrue((pattern.to_mask(batch, 0) == mask[batch, 0]).all())

    def test_a_large_boolean_mask_is_read_in_place(self):
        n = 32768 if os.environ.get("TESSERA_LONG") else 8192
        code = ("import numpy, oracle, tessera\n"
                f"mask = numpy.ones(({n}, {n}), bool)\n"
                "mask[:, ::512] = False\n"
                "before = oracle.resident()\n"
                "pattern = tessera.Pattern.from_mask(mask, block=128)\n"
                "print(oracle.resident('VmHWM') - before, pattern.describe()['pairs'])")
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        more, pairs = map(int, run.stdout.split())
        self.assertEqual(pairs, n * n // 512 * 511)
        self.assertLess(more, n * n / 1024 / 4)  # KiB: bits of its tiles are an eighth

    def test_blocks_bits_and_padded_columns_say_the_same(self):
        blocks = drawn(5, 2, 1, 5, 70)
        first = Pattern.from_blocks(blocks, 5 * 4 - 1, 70 * 2, block=(4, 2))
        words = numpy.packbits(numpy.pad(blocks, ((0, 0), (0, 0), (0, 0), (0, 58))), axis=-1, bitorder="little")
        second = Pattern.from_bits(words.view(numpy.uint64), 19, 140, block=(4, 2))
        order = numpy.argsort(~blocks, axis=-1, kind="stable").astype("int32")
        third = Pattern.from_counts(order, blocks.sum(-1).astype("int32"), n_q=19, n_kv=140, block=(4, 2))
        for other in (second, third):
            for x, y in zip(first.lists(), other.lists()):
                self.assertTrue((x == y).all())

    def test_topk_indices_are_the_keys_of_their_query(self):
        indices = numpy.random.default_rng(6).integers(-1, 40, (1, 2, 9, 5))
        pattern = Pattern.from_topk(indices, 40)
        self.assertEqual(pattern.keys(7, head=1).tolist(), sorted(set(indices[0, 1, 7].tolist()) - {-1}))

    def test_bsr_and_csr_of_scipy_come_back(self):
        try:
            import scipy.sparse
        except ImportError:
            self.skipTest("needs scipy")
        dense = drawn(7, 64, 96, keep=0.05)
        for matrix in (scipy.sparse.csr_array(dense), scipy.sparse.bsr_array(dense, blocksize=(8, 16))):
            pattern = Pattern.from_bsr(matrix)
            self.assertTrue((pattern.to_bsr().toarray() == (pattern.to_mask())).all())
            self.assertTrue((pattern.to_mask() >= dense).all())
        matrix = scipy.sparse.csr_array(dense)
        matrix.data[:5] = False  # stored zeros are listed
        self.assertEqual(Pattern.from_csr(matrix).describe()["pairs"], dense.sum())


class Operators(unittest.TestCase):
    def setUp(self):
        self.pattern = Pattern.from_spec("window(31,0)+global(3)", 200, block=(16, 32))
        self.mask = self.pattern.to_mask()

    def test_union_intersection_transposition_and_slices_are_those_of_masks(self):
        causal = Pattern.from_spec("causal", 200, block=(16, 32))
        lower = numpy.tri(200, dtype=bool)
        self.assertTrue(((self.pattern | causal).to_mask() == (self.mask | lower)).all())
        self.assertTrue(((self.pattern & causal).to_mask() == (self.mask & lower)).all())
        self.assertTrue((self.pattern.T.to_mask() == self.mask.T).all())
        self.assertTrue((self.pattern[13:50, -100:].to_mask() == self.mask[13:50, -100:]).all())

    def test_stacks_have_the_lists_of_their_parts_in_order(self):
        parts = [Pattern.from_mask(drawn(i, 24, 40), block=(3, 7)) for i in range(3)]
        heads = Pattern.stack(parts, "heads")
        both = Pattern.stack([heads, Pattern.stack(parts[::-1], "heads")])
        self.assertEqual((both.batch, both.heads), (2, 3))
        for i in range(3):
            self.assertTrue((both.to_mask(0, i) == parts[i].to_mask()).all())
            self.assertTrue((both.to_mask(1, i) == parts[2 - i].to_mask()).all())

    def test_documents_see_themselves_alone(self):
        joined = Pattern.concat([Pattern.from_spec("causal", n, block=16) for n in (20, 33)])
        expected = numpy.zeros((53, 53), bool)
        expected[:20, :20], expected[20:, 20:] = numpy.tri(20), numpy.tri(33)
        self.assertTrue((joined.to_mask() == expected).all())

    def test_lists_make_the_pattern_again(self):
        x = self.pattern.lists()
        again = Pattern.from_lists(x.row_ptr, x.col_idx, n_q=200, n_kv=200, block=(16, 32),
                                   bands=(x.band_entry, x.band), bitmasks=(x.bitmask_entry, x.bits))
        self.assertTrue((again.to_mask() == self.mask).all())

    def test_borrowed_lists_outlive_their_pattern_and_are_read_only(self):
        column = Pattern.from_spec("window(9,9)", 5000, block=8).lists().col_idx
        before = column.copy()
        gc.collect()
        for _ in range(20):
            Pattern.from_spec("window(3,3)", 5000, block=8)
        self.assertTrue((column == before).all())
        self.assertFalse(column.flags.writeable)

    def test_patterns_are_pickled_by_spec_or_by_lists(self):
        for pattern in (self.pattern, Pattern.from_mask(self.mask, block=7)):
            self.assertTrue((pickle.loads(pickle.dumps(pattern)).to_mask() == self.mask).all())

    def test_pictures_are_drawn_by_suffix(self):
        with tempfile.TemporaryDirectory() as folder:
            for suffix, begin in ((".svg", b"<svg"), (".png", b"\x89PNG")):
                file = pathlib.Path(folder) / f"a{suffix}"
                self.pattern.draw(file)
                self.assertTrue(file.read_bytes().startswith(begin))
            with self.assertRaises(TesseraError):
                self.pattern.draw(pathlib.Path(folder) / "a.gif")
        self.assertIn("</svg>", self.pattern._repr_svg_())
        self.assertIn("pairs", repr(self.pattern))


class Refused(unittest.TestCase):
    def test_bad_lists_name_fault_and_place(self):
        bad = {
            _structs.TESS_FAULT_DUPLICATE: ([0, 0, 2], [1, 1], 1, 1),
            _structs.TESS_FAULT_UNSORTED: ([0, 0, 2], [1, 0], 1, 1),
            _structs.TESS_FAULT_OUT_OF_RANGE: ([0, 1, 2], [0, 2], 1, 0),
            _structs.TESS_FAULT_NEGATIVE: ([0, 1, 2], [-1, 0], 0, 0),
            _structs.TESS_FAULT_NOT_MONOTONE: ([0, 2, 1], [0, 1], 1, -1),
        }
        for fault, (row_ptr, col_idx, row, position) in bad.items():
            with self.assertRaises(ListError) as caught:
                Pattern.from_lists(row_ptr, col_idx, n_q=8, n_kv=8, block=4)
            self.assertEqual((caught.exception.fault, caught.exception.row), (fault, row))
            if position >= 0:
                self.assertEqual(caught.exception.position, position)
            self.assertIsInstance(caught.exception, ValueError)

    def test_arrays_that_are_too_short_are_refused_before_the_library_reads_them(self):
        for call in (lambda: Pattern.from_lists([0, 1], [0], n_q=8, n_kv=8, block=4),
                     lambda: Pattern.from_lists([0, 1, 1], [0], n_q=8, n_kv=8, block=4, bitmasks=([0], [])),
                     lambda: Pattern.from_lists([0, 1, 1], [0], n_q=8, n_kv=8, block=4, bands=([0], [1])),
                     lambda: Pattern.from_blocks(numpy.ones((2, 2), bool), 100, block=8),
                     lambda: Pattern.from_bits(numpy.ones((1, 1, 2, 1), "uint64"), 100, block=8),
                     lambda: Pattern.from_counts(numpy.zeros((1, 1, 2, 3), "int32"), n_q=100, n_kv=100, block=8),
                     lambda: Pattern.from_topk(numpy.zeros((3, 4), "int32"), 8),
                     lambda: Pattern.from_topk(numpy.full((1, 1, 2, 2), 1 << 40), 8)):
            with self.assertRaises(tessera.ArgumentError):
                call()

    def test_memory_that_is_not_there_is_a_memory_error(self):
        code = ("import resource, tessera\n"
                "size = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize() + (64 << 20)\n"
                "resource.setrlimit(resource.RLIMIT_AS, (size, size))\n"
                "try:\n    tessera.Pattern.from_spec('dense', 1 << 16, block=2, threads=1)\n"
                "except MemoryError as raised:\n    print(type(raised).__name__, raised.function)")
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        self.assertEqual(run.stdout.split(), ["OutOfMemoryError", "tess_pattern_from_spec"], run.stderr)

    def test_what_is_no_pattern_number_or_mask_is_refused_by_name(self):
        pattern = Pattern.from_spec("dense", 8)
        for call, words in ((lambda: Pattern.from_spec("windo(3)", 8), "windo"),
                            (lambda: Pattern.from_spec("dense", 8.5), "n_q"), (lambda: pattern | 3, "other"),
                            (lambda: pattern[3], "rows"), (lambda: pattern[::2, :], "step"),
                            (lambda: Pattern.from_mask([[1, 0]]), "mask"), (lambda: pattern.to_mask(0, -1), "head"),
                            (lambda: Pattern.from_spec("dense", 8, block=(1, 2, 3)), "block"),
                            (lambda: Pattern.from_mask(numpy.zeros((3, 4), complex)), "mask"),
                            (lambda: Pattern.from_bsr(numpy.zeros((3, 4))), "matrix")):
            with self.assertRaisesRegex(TesseraError, words):
                call()


if __name__ == "__main__":
    unittest.main()
