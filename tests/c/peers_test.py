#!/usr/bin/env python3
"""What benchmarks/peers does without torch: its ctypes structs are the header's, the library answers through them, and a
page is made of a run in which things failed.

    peers_test.py SOURCE_DIRECTORY LIBRARY
"""

import ctypes
import json
import pathlib
import re
import sys
import tempfile
import unittest

SOURCE, LIBRARY = map(pathlib.Path, sys.argv[1:3])
sys.path.insert(0, str(SOURCE / "benchmarks/peers"))

import report  # noqa: E402
import rowjit_c  # noqa: E402


def kept_layouts():
    """struct name → (bytes, {member: (offset, bytes)}), from abi.txt."""
    layouts, members = {}, {}
    for line in (SOURCE / "tests/c/abi.txt").read_text(encoding="utf-8").splitlines():
        if match := re.fullmatch(r"struct (\w+) (\d+) bytes", line):
            members = {}
            layouts[match[1]] = (int(match[2]), members)
        elif match := re.fullmatch(r"  (\w+) at (\d+), (\d+)", line):
            members[match[1]] = (int(match[2]), int(match[3]))
    return layouts


class LayoutTest(unittest.TestCase):
    def test_every_struct_is_laid_out_as_the_header_says(self):
        layouts = kept_layouts()
        structs = [kind for kind in vars(rowjit_c).values()
                   if isinstance(kind, type) and issubclass(kind, ctypes.Structure) and hasattr(kind, "_fields_")]
        self.assertGreater(len(structs), 7)
        for kind in structs:
            name = "rowjit_" + re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower()
            members = {field: (getattr(kind, field).offset, getattr(kind, field).size) for field, _ in kind._fields_}
            self.assertEqual((ctypes.sizeof(kind), members), layouts[name], name)


class LibraryTest(unittest.TestCase):
    def test_a_loss_is_differentiated_and_its_bytes_are_counted(self):
        library = rowjit_c.Library(LIBRARY)
        graph = library.op("cross_entropy", 512, "bf16")
        _, backward = graph.differentiate(["logits"])
        self.assertEqual(graph.outputs(), ["loss"])
        self.assertIn("d_loss", backward.inputs())
        self.assertEqual(backward.shape("d_logits", 7), [7, 512])
        self.assertEqual(graph.least_bytes(8), 8 * 512 * 2 + 8 * 8 + 4)

    def test_a_failing_call_says_what_the_library_said(self):
        with self.assertRaisesRegex(rowjit_c.RowjitError, "invalid_argument: unknown op 'no_op'"):
            rowjit_c.Library(LIBRARY).op("no_op", 512, "bf16")


def entry(ms):
    return {"ms": ms, "spread": 0.01, "samples": 3, "host_us": 5.0, "peak_mib": 10.0}


class ReportTest(unittest.TestCase):
    def page(self, rows):
        document = {"date": "2026-01-01", "command": ["peers.py"], "tuned": True,
                    "machine": {"device": "cpu <fast>"}, "versions": {"rowjit": "0.1.0"}, "rows": rows}
        with tempfile.TemporaryDirectory() as scratch:
            data, page = pathlib.Path(scratch, "run.json"), pathlib.Path(scratch, "page.html")
            data.write_text(json.dumps(document), encoding="utf-8")
            sys.argv = ["report.py", str(page), str(data)]
            report.main()
            return page.read_text(encoding="utf-8")

    def row(self, **members):
        return {"name": "rms_norm 8x256 bf16", "op": "rms_norm", "set": "sweep", "rows": 8, "columns": 256,
                "dtype": "bf16", "options": {}, "parts": {}, "failures": {}} | members

    def test_rows_peers_and_copies_that_failed_leave_a_page(self):
        parts = {"forward": {"ours": entry(2.0), "copy": entry(1.0), "liger": entry(3.0)}, "both": {"eager": entry(4.0)}}
        page = self.page([self.row(parts=parts, failures={"aten": {"forward": "AttributeError: <none>"}}),
                          self.row(columns=512, failure="OutOfMemoryError: too much")])
        self.assertIn("1.50 times as fast as the best peer", page)
        self.assertIn("50 % of copy", page)
        self.assertIn("AttributeError: &lt;none&gt;", page)
        self.assertIn("OutOfMemoryError: too much", page)
        self.assertIn("cpu &lt;fast&gt;", page)
        self.assertNotRegex(page, r'(?:src|href)="')

    def test_what_is_slower_or_outside_the_bar_is_named_first(self):
        page = self.page([self.row(parts={"forward": {"ours": entry(2.0), "eager": entry(1.0)}},
                                   checks={"y": {"error": 9.0, "eager_error": 1.0, "within_bar": False}})])
        self.assertIn("slower than it in 1: rms_norm 8x256 bf16", page)
        self.assertIn("outside the bar of accuracy: rms_norm 8x256 bf16 y", page)

    def test_a_run_of_failures_alone_leaves_a_page(self):
        self.assertIn("no driver", self.page([self.row(failure="RowjitError: no driver")]))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
