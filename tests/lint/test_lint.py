"""The lint must find what it is there to find, and nothing else."""

import tempfile
import unittest
from pathlib import Path

import lint


class LintTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)

    def faults_of(self, text: str, name: str = "a.rs", allowed=None) -> list[str]:
        path = self.root / name
        path.write_text(text)
        return lint.faults(self.root, [path], allowed or {})

    def test_a_file_over_the_cap_is_a_fault(self):
        self.assertEqual(self.faults_of("x\n" * lint.MAX_LINES), [])
        self.assertIn("801 lines", self.faults_of("x\n" * (lint.MAX_LINES + 1))[0])

    def test_a_long_file_with_a_reason_is_allowed_and_a_stale_reason_is_not(self):
        self.assertEqual(self.faults_of("x\n" * 900, allowed={"a.rs": "a flat table"}), [])
        self.assertIn("remove it", self.faults_of("x\n", allowed={"a.rs": "a flat table"})[0])
        self.assertIn("not there", self.faults_of("x\n", allowed={"gone.rs": "a flat table"})[0])

    def test_machine_paths_are_faults(self):
        for path in ("/home" + "/ada/x", "/Users" + "/ada/x", "/root" + "/.cargo", "/work" + "/main/x", "/tmp" + "/w/x"):
            for line in (path, f'open("{path}")', f"see {path}", f"PATH={path}"):
                self.assertEqual(len(self.faults_of(line)), 1, line)

    def test_data_may_be_long_but_names_no_machine(self):
        self.assertEqual(self.faults_of("1\n" * 900, "raw.json"), [])
        self.assertEqual(len(self.faults_of('{"command": "x --out /root' + '/out"}', "raw.json")), 1)

    def test_other_paths_are_not(self):
        for line in ("/home" + "/you/models", "https://example.org/work" + "/x", "target/work" + "/x", "/tmp" + "/linnet.sock",
                     "~/models", "$ROOT/work" + "/x", "/usr/share", "/v1/work"):
            self.assertEqual(self.faults_of(line), [], line)

    def test_binary_files_are_left_alone(self):
        self.assertEqual(self.faults_of("x\n" * 900, "model.safetensors"), [])


if __name__ == "__main__":
    unittest.main()
