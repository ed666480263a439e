"""Every example runs to its end, where its own checks are; one that lacks a package says which."""
import pathlib
import subprocess
import sys
import unittest

EXAMPLES = pathlib.Path(__file__).resolve().parents[1] / "examples"


class Examples(unittest.TestCase):
    def test_every_example_passes_its_own_checks(self):
        files = sorted(EXAMPLES.glob("*.py"))
        self.assertGreater(len(files), 3)
        for file in files:
            with self.subTest(file.name):
                run = subprocess.run([sys.executable, file], capture_output=True, text=True)
                if run.returncode == 77:
                    self.skipTest(run.stdout.strip())
                self.assertEqual(run.returncode, 0, run.stdout + run.stderr)


if __name__ == "__main__":
    unittest.main()
