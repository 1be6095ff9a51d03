#!/usr/bin/env python3
"""Each rule of rules.py and the runner of console.py must notice a planted violation and leave good text alone."""

import pathlib
import tempfile
import unittest

import console
import rules

GOOD_HEADER = "// Why it exists.\n#pragma once\n"
PLANTED_VARIABLE = "ROWJIT_" + "PLANTED"


class TreeTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.root = pathlib.Path(scratch.name)

    def check(self, rule, files):
        for path, text in files.items():
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            (self.root / path).write_text(text, encoding="utf-8")
        return list(rule(rules.Tree(self.root, files)))


class IncludeDirection(TreeTest):
    def include(self, path, line):
        return self.check(rules.include_direction, {path: line + "\n"})

    def test_an_include_to_the_left_or_inside_is_allowed(self):
        self.assertEqual(self.include("compiler/emit/gpu.cpp", '#include "dsl/graph.h"'), [])
        self.assertEqual(self.include("compiler/emit/gpu.cpp", '#include "compiler/kernel.h"'), [])
        self.assertEqual(self.include("base/error.cpp", '#include "rowjit/error.h"'), [])
        self.assertEqual(self.include("compiler/emit/gpu.cpp", '#include "embedded/prelude.h"'), [])
        self.assertEqual(self.include("tools/catalogue_commands.cpp", '#include "embedded/coverage.h"'), [])
        self.assertEqual(self.include("runtime/choice_table.cpp", '#include "embedded/choices_sm_90a.h"'), [])

    def test_an_include_to_the_right_is_found(self):
        for path, line in [("base/log.cpp", '#include "dsl/graph.h"'), ("cache/store.cpp", '  #  include "runtime/engine.h"'),
                           ("dsl/graph.h", '#include "compiler/kernel.h"'), ("include/rowjit/a.h", '#include "base/fail.h"')]:
            self.assertEqual(len(self.include(path, line)), 1, line)

    def test_folders_of_one_layer_do_not_see_each_other(self):
        self.assertEqual(len(self.include("tools/main.cpp", '#include "python/module.h"')), 1)

    def test_a_template_is_included_by_nobody(self):
        self.assertEqual(len(self.include("compiler/emit/gpu.cpp", '#include "templates/prelude.h"')), 1)
        self.assertEqual(len(self.include("runtime/engine.cpp", '#include "embedded/prelude.h"')), 1)
        self.assertEqual(len(self.include("tools/main.cpp", '#include "embedded/choices_sm_90a.h"')), 1)

    def test_an_include_not_from_the_root_is_found(self):
        self.assertEqual(len(self.include("base/error.cpp", '#include "check.h"')), 1)

    def test_a_public_header_requires_no_third_party_header(self):
        self.assertEqual(len(self.include("include/rowjit/a.h", "#include <fmt/format.h>")), 1)
        self.assertEqual(self.include("include/rowjit/a.h", "#include <cstdint>"), [])

    def test_an_example_sees_public_headers_only(self):
        self.assertEqual(len(self.include("examples/a.cpp", '#include "dsl/graph.h"')), 1)
        self.assertEqual(self.include("examples/a.cpp", '#include "rowjit/dtype.h"'), [])


class SourcesListed(TreeTest):
    def listed(self, build_file):
        return self.check(rules.sources_listed_once, {"base/CMakeLists.txt": build_file, "base/a.cpp": "", "base/x/b.cpp": ""})

    def test_each_file_listed_once_is_good(self):
        self.assertEqual(self.listed("add(rowjit\n  ../base/a.cpp\n  ${CMAKE_SOURCE_DIR}/base/x/b.cpp)  # not c.cpp\n"), [])

    def test_an_unlisted_a_doubly_listed_and_an_absent_file_are_found(self):
        self.assertIn("no CMakeLists.txt", self.listed("add(a.cpp)")[0])
        self.assertIn("listed 2 times", self.listed("add(a.cpp x/b.cpp)\nadd(a.cpp)")[0])
        self.assertIn("does not exist", self.listed("add(a.cpp x/b.cpp c.cpp)")[0])

    def test_a_fixture_may_be_part_of_two_tests(self):
        files = {"tests/CMakeLists.txt": "add(a.cpp)\nadd(a.cpp)\n", "tests/a.cpp": ""}
        self.assertEqual(self.check(rules.sources_listed_once, files), [])


class MachinePaths(TreeTest):
    def test_an_absolute_path_of_a_machine_is_found(self):
        for place in ["/ho" "me/ann/rowjit", "/ro" "ot/x", "/wo" "rk/rowjit"]:
            self.assertEqual(len(self.check(rules.no_machine_paths, {"a.md": f"see {place}\n"})), 1, place)
        self.assertEqual(len(self.check(rules.no_machine_paths, {"a.md": f"see {self.root.resolve()}/b\n"})), 1)

    def test_system_and_relative_paths_are_good(self):
        text = "/ho" "me/u/x /usr/local/cuda ~/.cache /tmp/x ${HOME}/wo" "rk/x a/wo" "rk/b --root /etc\n"
        self.assertEqual(self.check(rules.no_machine_paths, {"a.md": text}), [])


class Environment(TreeTest):
    def test_a_variable_without_documentation_is_found(self):
        files = {"base/a.cpp": f'getenv("{PLANTED_VARIABLE}");\n', "README.md": "nothing\n"}
        self.assertIn(PLANTED_VARIABLE, self.check(rules.environment_documented, files)[0])
        files["README.md"] = f"`{PLANTED_VARIABLE}` is a variable.\n"
        self.assertEqual(self.check(rules.environment_documented, files), [])

    def test_a_test_documents_what_it_reads_and_not_what_it_sets(self):
        for call, count in [("getenv", 1), ("ScopedVariable", 0)]:
            files = {"tests/a_test.cpp": f'{call}("{PLANTED_VARIABLE}");\n', "README.md": "nothing\n"}
            self.assertEqual(len(self.check(rules.environment_documented, files)), count, call)

    def test_a_documented_variable_that_nothing_reads_is_found(self):
        files = {"docs/a.md": f"Set {PLANTED_VARIABLE}.\n", "base/a.cpp": "\n"}
        self.assertIn("nothing reads it", self.check(rules.environment_documented, files)[0])

    def test_a_variable_read_past_the_table_is_found(self):
        files = {"cache/b.cpp": f'getenv("{PLANTED_VARIABLE}");\n'}
        self.assertEqual(len(self.check(rules.one_reader_of_the_environment, files)), 1)
        files = {"cache/b.cpp": f'environment_text("{PLANTED_VARIABLE}");\ngetenv("HOME");\n'}
        self.assertEqual(self.check(rules.one_reader_of_the_environment, files), [])


class Copies(TreeTest):
    def lines(self, count):
        return "".join(f"    statement_{i}(value);\n" for i in range(count))

    def test_a_copied_run_of_lines_is_found_once(self):
        files = {"base/a.cpp": self.lines(12), "dsl/b.cpp": "int x;\n" + self.lines(12)}
        self.assertEqual(len(self.check(rules.no_copies, files)), 1)

    def test_a_short_resemblance_is_good(self):
        files = {path: f"int {path[0]};\n" + self.lines(rules.COPY_LINES - 1) for path in ["base/a.cpp", "dsl/b.cpp"]}
        self.assertEqual(self.check(rules.no_copies, files), [])


class Names(TreeTest):
    def test_a_vague_name_is_found(self):
        for path in ["base/util.h", "dsl/graph_helpers.cpp", "common/a.h"]:
            self.assertEqual(len(self.check(rules.named_and_finished, {path: ""})), 1, path)
        self.assertEqual(self.check(rules.named_and_finished, {"dsl/commons_graph.h": ""}), [])

    def test_an_unfinished_comment_is_found(self):
        self.assertEqual(len(self.check(rules.named_and_finished, {"base/a.cpp": "// TO" "DO: rest\n"})), 1)

    def test_a_header_without_its_reason_or_guard_is_found(self):
        self.assertEqual(self.check(rules.headers_open_with_why, {"base/a.h": GOOD_HEADER}), [])
        self.assertEqual(len(self.check(rules.headers_open_with_why, {"base/a.h": "#pragma once\n"})), 1)
        self.assertEqual(len(self.check(rules.headers_open_with_why, {"base/a.h": "// Why.\n"})), 1)


class Console(unittest.TestCase):
    def run_document(self, text):
        with tempfile.TemporaryDirectory() as scratch:
            document = pathlib.Path(scratch, "a.md")
            document.write_text(text, encoding="utf-8")
            return console.run(document, pathlib.Path(scratch), pathlib.Path(scratch, "none"))

    def test_a_command_that_works_is_run_and_its_printed_output_is_not(self):
        self.assertEqual(self.run_document("```console\n$ touch x\n$ test -f x\nfalse\n```\n"), (2, []))

    def test_a_command_that_fails_is_found(self):
        ran, failures = self.run_document("```console\n$ true\n$ no-such-command\n```\n")
        self.assertEqual((ran, len(failures)), (2, 1))
        self.assertIn("no-such-command", failures[0])

    def test_a_continued_command_is_one_command(self):
        self.assertEqual(self.run_document("```console\n$ test 1 \\\n    = 1\n```\n"), (1, []))

    def test_a_block_marked_not_run_is_skipped(self):
        self.assertEqual(self.run_document("<!-- not run: needs a GPU -->\n```console\n$ false\n```\n"), (0, []))

    def test_the_mark_reaches_the_next_block_only(self):
        text = "<!-- not run: x -->\n```console\n$ false\n```\n```console\n$ false\n```\n"
        self.assertEqual(len(self.run_document(text)[1]), 1)

    def test_an_expected_exit_code_is_held(self):
        self.assertEqual(self.run_document("<!-- exits: 3 -->\n```console\n$ exit 3\n```\n"), (1, []))
        self.assertEqual(len(self.run_document("<!-- exits: 3 -->\n```console\n$ true\n```\n")[1]), 1)

    def test_other_blocks_are_not_commands(self):
        self.assertEqual(self.run_document("```cpp\n$ false\n```\n"), (0, []))


if __name__ == "__main__":
    unittest.main()
