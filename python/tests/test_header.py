"""The mirror of tessera.h against the header, the compiler and the library; what the package leaves out."""
import ctypes
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import tessera
from tessera import _library, _structs

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADER = ROOT / "include" / "tessera.h"

# Public functions that the package does not call, and why. Any other has to be called by a file of python/tessera.
LEFT_OUT = {
    "tess_attention": "Plan, which tessera.attention keeps, does the same without allocating at each call",
    "tess_attention_backward": "likewise BackwardPlan",
    "tess_sddmm": "a stage by itself serves those who write kernels, in C",
    "tess_softmax": "likewise",
    "tess_spmm": "likewise",
    "tess_plan_scores_count": "likewise",
    "tess_plan_stage_workspace_size": "a run's workspace serves tess_delta too",
    "tess_struct_init": "all defaults are zero, which ctypes gives",
    "tess_type_size": "numpy and torch know it",
    "tess_type_name": "types go by numpy's names",
    "tess_status_name": "exceptions have classes, and the library's words",
    "tess_status_text": "likewise",
    "tess_list_fault_name": "likewise",
}


class Header(unittest.TestCase):
    def test_the_mirror_is_what_the_script_writes(self):
        script = ROOT / "tools" / "scripts" / "python_structs.py"
        written = subprocess.run([sys.executable, script, HEADER], capture_output=True, text=True, check=True).stdout
        mirror = ROOT / "python" / "tessera" / "_structs.py"
        self.assertEqual(written, mirror.read_text(), f"the header changed: python3 {script} {HEADER} > {mirror}")

    def test_offsets_are_the_compilers(self):
        compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
        if not compiler:
            self.skipTest("needs a C compiler")
        lines = ['#include "tessera.h"', "#include <stdio.h>", "int main(void) {"]
        expected = []
        for name, struct in _structs.STRUCTS.items():
            lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
            expected.append(f"{name} {ctypes.sizeof(struct)}")
            for field, _ in struct._fields_:
                lines.append(f'printf("{name}.{field} %zu %zu\\n", offsetof({name}, {field}), '
                             f"sizeof((({name} *)0)->{field}));")
                member = getattr(struct, field)
                expected.append(f"{name}.{field} {member.offset} {member.size}")
        for name in (x for x in dir(_structs) if x.startswith("TESS_")):
            lines.append(f'printf("{name} %d\\n", (int){name});')
            expected.append(f"{name} {getattr(_structs, name)}")
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder) / "layout.c"
            source.write_text("\n".join([*lines, "return 0;", "}"]))
            subprocess.run([compiler, "-I", HEADER.parent, source, "-o", source.with_suffix("")], check=True)
            printed = subprocess.run([source.with_suffix("")], capture_output=True, text=True, check=True).stdout
        self.assertEqual(printed.split("\n")[:-1], expected)

    def test_every_function_is_called_or_left_out_with_a_reason(self):
        sources = "".join(x.read_text() for x in (ROOT / "python" / "tessera").glob("*.py") if x.name != "_structs.py")
        called = set(re.findall(r"\btess_\w+", re.sub(r'""".*?"""|#[^\n]*', "", sources, flags=re.S)))
        missing = set(_structs.FUNCTIONS) - called - set(LEFT_OUT)
        self.assertFalse(missing, "call these in python/tessera, or add them to LEFT_OUT of this file with a reason")
        self.assertFalse(set(LEFT_OUT) & called, "these are called: take them out of LEFT_OUT of this file")
        self.assertFalse(set(LEFT_OUT) - set(_structs.FUNCTIONS), "these are not in the header any more")

    def test_another_layout_is_refused_with_both_numbers(self):
        class Short(ctypes.Structure):
            _fields_ = _structs.Problem._fields_[:-2]  # types of 4 bytes each: without one the size is the same

        known = dict(_structs.STRUCTS)
        try:
            _structs.STRUCTS["tess_problem"] = Short
            with self.assertRaises(tessera.LibraryError) as caught:
                _library.Library(tessera.library.path)
        finally:
            _structs.STRUCTS.update(known)
        for struct in (Short, _structs.Problem):
            self.assertIn(str(ctypes.sizeof(struct)), str(caught.exception))

    def test_a_library_that_is_none_is_an_import_error_with_its_path(self):
        with self.assertRaises(ImportError) as caught:
            _library.Library("/nowhere/libtessera.so")
        self.assertIsInstance(caught.exception, tessera.TesseraError)
        self.assertIn("/nowhere/libtessera.so", str(caught.exception))

    def test_a_library_of_another_version_is_refused_with_both(self):
        known = _structs.VERSION
        try:
            _structs.VERSION = "99.0.0"
            with self.assertRaises(tessera.LibraryError) as caught:
                _library.Library(tessera.library.path)
        finally:
            _structs.VERSION = known
        self.assertIn(known, str(caught.exception))
        self.assertIn("99.0.0", str(caught.exception))

    def test_the_environment_names_the_library_and_nothing_else_is_tried(self):
        kept = dict(os.environ, TESSERA_LIBRARY="/nowhere/libtessera.so")
        run = subprocess.run([sys.executable, "-c", "import tessera"], env=kept, capture_output=True, text=True)
        self.assertEqual(run.returncode, 1)
        self.assertIn("/nowhere/libtessera.so: no such file", run.stderr)
        self.assertIn("set TESSERA_LIBRARY", run.stderr)

    def test_importing_takes_numpy_alone_and_at_most_50_ms_above_it(self):
        code = ("import time, sys, numpy; a = time.process_time(); import tessera; b = time.process_time() - a;"
                "print(b, 'torch' in sys.modules, 'scipy' in sys.modules)")
        kept = {name: x for name, x in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        runs = [subprocess.run([sys.executable, "-c", code], env=kept, capture_output=True, text=True,
                               check=True).stdout.split() for _ in range(5)]
        self.assertEqual(runs[0][1:], ["False", "False"])
        self.assertLess(min(float(run[0]) for run in runs), 0.05)

    def test_the_report_of_the_environment_names_library_and_kernels(self):
        run = subprocess.run([sys.executable, "-m", "tessera"], capture_output=True, text=True, check=True)
        self.assertIn(tessera.library.path, run.stdout)
        self.assertRegex(run.stdout, r"\d+ of \d+ kernels run here")


if __name__ == "__main__":
    unittest.main()
