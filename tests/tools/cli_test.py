#!/usr/bin/env python3
"""The `rowjit` command as a user or a script meets it: records, files, exit codes, refusals. Needs no GPU.

    cli_test.py ROWJIT SOURCE_DIRECTORY [TEST…]

Every test has a cache directory of its own. Where a target's toolchain is absent its test is skipped and says so;
ROWJIT_TESTS_REQUIRE_TOOLCHAINS=1 makes that a failure.
"""

import json
import os
import pathlib
import resource
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM = pathlib.Path(sys.argv[1]).resolve()
SOURCE = pathlib.Path(sys.argv[2]).resolve()
MODELS = SOURCE / "examples/models"
GRAPH = SOURCE / "examples/graphs/softcapped_norm.rj"
LLAMA = MODELS / "llama-3-8b.json"
SMALL = ["--tokens", "64", "--max-bytes", "1000000"]
OK, FINDINGS, USAGE, MISS, PARTIAL, ENVIRONMENT, IO, INTERRUPTED = 0, 1, 2, 3, 4, 5, 7, 130


class CommandTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.work = pathlib.Path(scratch.name)
        kept = {name: value for name, value in os.environ.items()
                if name in ("ROWJIT_NVRTC", "ROWJIT_HIPRTC", "ROWJIT_CLANG", "ROWJIT_AMD_TOOLCHAIN")
                or not name.startswith("ROWJIT_")}
        self.environment = kept | {"ROWJIT_CACHE_DIR": str(self.work / "cache")}

    def rowjit(self, *words, **environment):
        return subprocess.run([str(PROGRAM), *map(str, words)], cwd=self.work, env=self.environment | environment,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False)

    def limited(self, limit, number, *words):
        """The command under a limit of the operating system's."""
        return subprocess.run([str(PROGRAM), *map(str, words)], cwd=self.work, env=self.environment,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False,
                              preexec_fn=lambda: resource.setrlimit(limit, (number, number)))

    def on_a_full_disk(self, *words):
        """The command where no file may grow past 1 KiB, which is what a quota or a full disk comes to."""
        return self.limited(resource.RLIMIT_FSIZE, 1024, *words)

    def assert_nothing_half_written(self):
        left = [path for path in self.work.rglob("*")
                if path.is_file() and (path.suffix in (".tmp", ".partial", ".part") or path.stat().st_size == 1024)]
        self.assertEqual(left, [])

    def result(self, *words, **environment):
        """The result of a command that must succeed."""
        result = self.rowjit(*words, **environment)
        self.assertEqual(result.returncode, OK, result.stderr)
        return result

    def document(self, *words):
        """The one JSON document that a successful command prints."""
        return json.loads(self.result(*words, "--json").stdout)

    def assert_refused(self, code, words, *expected, **environment):
        """One line on standard error, naming what `expected` says; nothing on standard output."""
        result = self.rowjit(*words, **environment)
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertEqual(result.stdout, "")
        self.assertRegex(result.stderr, r"\Arowjit: [^\n]+\n\Z")
        for text in expected:
            self.assertIn(text, result.stderr)

    def write(self, name, text):
        path = self.work / name
        path.write_text(text, encoding="utf-8")
        return path

    def require_toolchains(self, *targets):
        found = {row["target"]: row for row in self.document("doctor")["toolchains"]}
        for target in targets:
            if found[target]["found"]:
                continue
            if os.environ.get("ROWJIT_TESTS_REQUIRE_TOOLCHAINS") == "1":
                self.fail(f"{target}: {found[target]['what']}")
            print(f"SKIPPED {self.id()}: no toolchain for {target}", file=sys.stderr)
            self.skipTest(f"no toolchain for {target}")


class Tune(CommandTest):
    def tune(self):
        return self.rowjit("tune", "--model", LLAMA, *SMALL, "--max-candidates", "2", "--device", "cpu", "--json")

    def test_a_models_records_say_what_was_measured_and_a_second_run_compiles_nothing(self):
        first = self.tune()
        self.assertEqual(first.returncode, OK, first.stderr)
        document = json.loads(first.stdout)
        records = document["records"]
        self.assertEqual([r["kernel"] for r in records], ["norm", "residual_norm", "rope", "gated_mlp", "loss"])
        for record in records:
            self.assertLessEqual(
                {"kernel", "op", "shape", "dtype", "target", "schedule", "launches", "per_step", "ms", "copy_ms",
                 "bytes", "percent_of_copy", "error", "eager_error", "within_bar"}, record.keys())
            self.assertEqual(record["dtype"], "bf16")
            self.assertGreater(record["ms"], 0)
            self.assertGreater(record["percent_of_copy"], 0)
            self.assertLessEqual(record["bytes"], 1500000)
            self.assertLessEqual(record["error"], record["eager_error"] + 1)
            self.assertTrue(record["within_bar"])
        self.assertEqual(records[0]["op"], "rms_norm")
        self.assertRegex(records[0]["shape"], r"\A\d+x4096\Z")
        self.assertEqual(document["summary"]["failed"], 0)
        self.assertGreater(document["summary"]["compiled"], 0)
        # Progress is not on standard output.
        self.assertIn("[5/5] loss: ", first.stderr)

        second = json.loads(self.tune().stdout)
        self.assertEqual(second["summary"]["compiled"], 0)
        self.assertGreater(second["summary"]["from_cache"], 0)
        self.assertEqual([r["schedule"] for r in second["records"]], [r["schedule"] for r in records])

    def test_what_tuning_found_is_exported_and_a_table_for_another_device_is_refused_first(self):
        words = ["tune", "--op", "silu", "--columns", "64", *SMALL, "--max-candidates", "2", "--device", "cpu"]
        path = self.work / "choices.json"
        self.result(*words, "--export", path)
        table = json.loads(path.read_text(encoding="utf-8"))
        self.assertEqual(table["architecture"], "native")
        self.assertLessEqual(len(table["choices"]), 1)
        kept = {"kernel": "kept", "operation": "00", "schedule": "s", "shape": "1", "ms": 1.0, "static_ms": 2.0}
        self.write("choices.json", json.dumps(table | {"choices": [kept]}))
        self.result(*words, "--force", "--export", path)
        self.assertIn(kept, json.loads(path.read_text(encoding="utf-8"))["choices"])
        self.write("choices.json", json.dumps(table | {"devices": ["another"]}))
        self.assert_refused(USAGE, [*words, "--export", path], "choices.json", "another file")

    def workers(self):
        """Processes that a tuner of this test has started and that still run."""
        mine = f"ROWJIT_CACHE_DIR={self.work / 'cache'}".encode()
        found = []
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if b"tune-worker" in (process / "cmdline").read_bytes() and mine in (process / "environ").read_bytes():
                    found.append(process.name)
            except OSError:
                continue  # ended meanwhile, or another user's
        return found

    def test_a_tuner_that_is_killed_leaves_no_process_and_goes_on_from_the_last_kernel(self):
        words = ["tune", "--model", LLAMA, *SMALL, "--max-candidates", "2", "--device", "cpu", "--json"]
        with subprocess.Popen([str(PROGRAM), *map(str, words)], cwd=self.work, env=self.environment,
                              stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                              text=True) as first:
            for line in first.stderr:
                if line.startswith("[2/5]"):
                    break
            first.kill()
        deadline = time.monotonic() + 10
        while self.workers() and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertEqual(self.workers(), [])
        records = json.loads(self.rowjit(*words).stdout)["records"]
        self.assertEqual([all(kernel["from_database"] for kernel in r["tuned"]) for r in records[:2]], [True, True])
        self.assertFalse(any(kernel["from_database"] for kernel in records[4]["tuned"]))

    def test_a_cache_directory_that_cannot_be_written_costs_one_warning(self):
        self.write("file", "")
        result = self.result("tune", "--op", "silu", "--columns", "64", *SMALL, "--max-candidates", "2", "--device",
                             "cpu", "--json", "--cache-dir", self.work / "file" / "cache")
        self.assertEqual(json.loads(result.stdout)["summary"]["failed"], 0)
        self.assertEqual(result.stderr.count("rowjit warning: "), 1, result.stderr)


    def test_a_full_disk_costs_one_warning(self):
        result = self.on_a_full_disk("tune", "--op", "silu", "--columns", "64", *SMALL, "--max-candidates", "2",
                                     "--device", "cpu", "--json")
        self.assertEqual(result.returncode, OK, result.stderr)
        self.assertEqual(json.loads(result.stdout)["summary"]["failed"], 0)
        self.assertEqual(result.stderr.count("rowjit warning: "), 1, result.stderr)
        self.assert_nothing_half_written()

    def test_a_second_run_says_plainly_that_it_compiled_nothing(self):
        words = ["tune", "--op", "silu", "--columns", "64", *SMALL, "--max-candidates", "2", "--device", "cpu"]
        self.assertRegex(self.result(*words).stdout, r": [1-9]\d* compiled, 0 from cache, 0 failed, ")
        self.assertRegex(self.result(*words).stdout, r": 0 compiled, [1-9]\d* from cache, 0 failed, ")


class Bench(CommandTest):
    def test_every_operation_is_swept_over_columns_by_one_command(self):
        records = self.document("bench", "--op", "all", "--columns", "32,64", "--tokens", "8", "--device",
                                "cpu")["records"]
        ops = [op["name"] for op in self.document("ops")]
        self.assertEqual([r["kernel"] for r in records], [f"{op} {width} bf16" for op in ops for width in (32, 64)])
        self.assertTrue(all(r["copy_ms"] > 0 and r["within_bar"] for r in records))

    def test_an_operation_has_a_usual_width(self):
        kernels = [r["kernel"] for r in self.document("bench", "--op", "silu,rope", "--device", "cpu", *SMALL)["records"]]
        self.assertEqual(kernels, ["silu 14336 bf16", "rope 128 bf16"])

    def keep(self, *words):
        """What `./dev bench` runs."""
        return subprocess.run([sys.executable, "-B", str(SOURCE / "benchmarks/keep.py"), str(PROGRAM), "results", *words],
                              cwd=self.work, env=self.environment, stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=300, check=False)

    def test_its_document_is_kept_by_day_device_and_what_was_measured(self):
        graph = self.write("own.rj", GRAPH.read_text(encoding="utf-8"))
        result = self.keep("--graph", str(graph), "--device", "cpu", *SMALL)
        self.assertEqual(result.returncode, OK, result.stderr)
        kept = list((self.work / "results").iterdir())
        self.assertEqual(len(kept), 1)
        self.assertRegex(kept[0].name, r"\A\d{4}-\d\d-\d\d-[a-z0-9.-]+-threads?-bench-own\.json\Z")
        text = kept[0].read_text(encoding="utf-8")
        self.assertNotIn(str(self.work), text)
        self.assertEqual(json.loads(text)["records"][0]["kernel"], "own.rj")

    def test_a_bench_that_is_refused_keeps_nothing(self):
        result = self.keep("--op", "bogus", "--device", "cpu")
        self.assertEqual(result.returncode, USAGE)
        self.assertIn("'bogus'", result.stderr)
        self.assertFalse((self.work / "results").exists())

    def test_a_document_that_cannot_be_kept_is_an_error_with_no_half_of_it_left(self):
        self.write("results", "")
        result = self.keep("--op", "silu", "--device", "cpu", *SMALL)
        self.assertEqual(result.returncode, IO, result.stderr)
        self.assertIn("cannot be written", result.stderr)
        self.assertEqual((self.work / "results").read_text(encoding="utf-8"), "")


class Interrupts(CommandTest):
    def interrupted(self, signal_number, *words):
        """The document and the jobs of a command that is interrupted once its first job is done."""
        words = [str(PROGRAM), *map(str, words), "--op", "all", "--device", "cpu", "--json"]
        with subprocess.Popen(words, cwd=self.work, env=self.environment, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            first = next(line for line in process.stderr if line.startswith("[1/"))
            process.send_signal(signal_number)
            output, errors = process.communicate(timeout=300)
        self.assertEqual(process.returncode, INTERRUPTED, errors)
        self.assertIn("rowjit: interrupted; ends after this job", errors)
        return json.loads(output), int(first[len("[1/"):first.index("]")])

    def test_a_bench_ends_behind_the_job_at_hand_and_says_what_it_has_measured(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            document, jobs = self.interrupted(number, "bench", "--tokens", "16", "--max-bytes", "1000000")
            self.assertTrue(document["summary"]["interrupted"])
            self.assertIn(len(document["records"]), range(1, jobs))
            self.assertTrue(all(record["ms"] > 0 for record in document["records"]))

    def test_so_does_a_verification(self):
        document, jobs = self.interrupted(signal.SIGTERM, "verify", "--max-bytes", "100000")
        self.assertTrue(document["summary"]["interrupted"])
        self.assertIn(len({record["job"] for record in document["records"]}), range(1, jobs))

    def test_what_ends_by_itself_was_not_interrupted(self):
        document = self.document("bench", "--op", "silu", "--device", "cpu", *SMALL)
        self.assertNotIn("interrupted", document["summary"])


class Compile(CommandTest):
    def test_every_shipped_configuration_has_a_plan_for_a_gpu_that_is_not_here(self):
        configurations = sorted(MODELS.glob("*.json"))
        self.assertGreater(len(configurations), 3)
        for configuration in configurations:
            with self.subTest(configuration.name):
                records = self.document("explain", "--model", configuration, "--target", "sm_90a")["records"]
                self.assertGreaterEqual(len(records), 5)
                self.assertTrue(all(record["kernels"] for record in records))

    def test_queries_and_keys_rotate_in_one_kernel_that_reads_the_angles_once(self):
        for options, heads in [([], 32 + 8), (["--option", "kv_heads=32"], 32 + 32)]:
            records = self.document("explain", "--op", "rope_qk", "--columns", "128", *options, "--target",
                                   "sm_90a,x86-64-v3")["records"]
            for record in records:
                self.assertEqual([kernel["bytes"] for kernel in record["kernels"]],
                                 [2 * record["kernels"][0]["rows"] * (2 * heads * 128 + 2 * 128)])

    def compile_for(self, target, extension):
        self.require_toolchains(target)
        output = self.work / "out"
        document = self.document("compile", "--op", "rms_norm", "--columns", "256", "--target", target, "--output",
                                 output, "--emit", "code-object,source,json")
        self.assertEqual(document["summary"], {"compiled": 1, "from_cache": 0, "failed": 0})
        source = ".cu" if extension == ".cubin" else ".hip"
        self.assertEqual(sorted(path.suffix for path in output.iterdir()), sorted([extension, ".json", source]))
        launch = json.loads(next(output.glob("*.json")).read_text(encoding="utf-8"))
        self.assertEqual((launch["kernel"], launch["target"]), (document["records"][0]["kernel"], target))
        self.assertEqual(launch["block"][1:], [1, 1])
        self.assertEqual([a["name"] for a in launch["arguments"] if a["kind"] == "pointer"], ["x", "weight", "y"])
        self.assertIn(launch["kernel"], next(output.glob("*" + source)).read_text(encoding="utf-8"))
        self.assertEqual(next(output.glob("*" + extension)).read_bytes()[:4], b"\x7fELF")

    def test_nvidia_files_are_written_without_a_gpu(self):
        self.compile_for("sm_90a", ".cubin")

    def test_amd_files_are_written_without_a_gpu(self):
        self.compile_for("gfx942", ".hsaco")

    def test_only_what_was_asked_for_is_written(self):
        self.result("compile", "--op", "silu", "--columns", "64", "--target", "x86-64-v3", "--output", "out", "--emit",
                    "json")
        self.assertEqual([path.suffix for path in (self.work / "out").iterdir()], [".json"])

    def test_no_file_of_a_graph_is_hidden(self):
        self.write("own.rj", GRAPH.read_text(encoding="utf-8"))
        self.result("compile", "--graph", "./own.rj", "--target", "x86-64-v3", "--output", "out", "--emit", "json")
        self.assertEqual([path.name[:6] for path in (self.work / "out").iterdir()], ["own.rj"])

    def test_an_absent_toolchain_is_refused_in_one_line(self):
        nothing = self.write("empty", "")
        self.assert_refused(ENVIRONMENT, ["compile", "--op", "silu", "--columns", "64", "--target", "sm_90a", "--output",
                                          "out"], "sm_90a", "ROWJIT_NVRTC", ROWJIT_NVRTC=str(nothing))
        self.assertEqual(list((self.work / "out").iterdir()), [])

    def test_an_output_directory_that_cannot_be_made_is_refused(self):
        self.write("file", "")
        self.assert_refused(IO, ["compile", "--op", "silu", "--columns", "64", "--target", "x86-64-v3", "--output",
                                 "file/out"], "file/out", "another directory")


    def test_output_on_a_full_disk_is_refused_with_no_half_of_a_file_left(self):
        result = self.on_a_full_disk("compile", "--op", "silu", "--columns", "64", "--target", "x86-64-v3", "--output",
                                     "out")
        self.assertEqual(result.returncode, IO, result.stderr)
        self.assertEqual(result.stdout, "")
        self.assertIn("free space or choose another place", result.stderr)
        self.assert_nothing_half_written()

    def test_kernels_that_are_kept_nowhere_are_an_error(self):
        words = ["compile", "--op", "silu", "--columns", "64", "--target", "x86-64-v3"]
        full = self.on_a_full_disk(*words)
        self.write("file", "")
        unwritable = self.rowjit(*words, "--cache-dir", self.work / "file" / "cache")
        for result in (full, unwritable):
            self.assertEqual(result.returncode, IO, result.stderr)
            self.assertEqual(result.stdout, "")
            self.assertIn("could not be kept", result.stderr)
        self.assert_nothing_half_written()


class GraphOfOnesOwn(CommandTest):
    def test_it_compiles_and_verifies_on_the_cpu(self):
        compiled = self.document("compile", "--graph", GRAPH, "--target", "native")
        self.assertEqual(len(compiled["records"]), 1)
        summary = self.document("verify", "--graph", GRAPH, "--device", "cpu")["summary"]
        self.assertGreater(summary["checks"], 3)
        self.assertEqual(summary["outside"], 0)

    def test_errors_are_said_in_units_and_absolutely(self):
        path = self.write("third.rj", "rows t\ninput x: bf16[t, 64]\noutput y = x / 3.0\n")
        for record in self.document("verify", "--graph", path, "--device", "cpu")["records"]:
            if not record["inputs"].startswith("no rows"):
                self.assertGreater(record["largest"], 0)
                # Half a unit in the last place of bf16's eight bits.
                self.assertLessEqual(record["most_off"], record["largest"] / 256)
                self.assertEqual(record["eager_most_off"], record["most_off"])

    def test_an_output_that_is_nan_all_over_is_a_finding_with_its_name(self):
        path = self.write("nan.rj", "rows t\ninput x: f32[t, 64]\noutput y = x + 1.0\noutput z = log(-abs(x) - 1.0)\n")
        result = self.rowjit("verify", "--graph", path, "--device", "cpu", "--json")
        self.assertEqual(result.returncode, FINDINGS, result.stderr)
        self.assertIn("nothing of output 'z' was compared", result.stderr)
        document = json.loads(result.stdout)
        self.assertEqual([entry["output"] for entry in document["not_compared"]], ["z"])
        self.assertEqual((document["summary"]["outside"], document["summary"]["not_compared"]), (0, 1))
        for record in document["records"]:
            if record["inputs"].endswith(" z"):
                self.assertEqual(record["compared"], 0)
        text = self.rowjit("verify", "--graph", path, "--device", "cpu")
        self.assertIn("1 outputs not compared", text.stderr + text.stdout)

    def test_a_value_squared_forty_times_is_explained_at_once(self):
        squares = "".join(f"v{i} = v{i - 1} * v{i - 1}\n" for i in range(1, 41))
        path = self.write("squares.rj", "rows t\ninput x: f32[t, 64]\ninput z: f32[t, 64]\ninput w: bf16[t, 64]\n"
                          f"v0 = x + z\n{squares}scale = cast(detach(v40), bf16)\ny = scale * w + cast(v40, bf16)\n"
                          "output y\n")
        for options in ([], ["--backward"]):
            began = time.monotonic()
            text = self.result("explain", "--graph", path, "--target", "sm_90a", *options).stdout
            self.assertLess(time.monotonic() - began, 60)
            self.assertIn("v40", text)

    def test_it_is_timed_and_explained(self):
        record = self.document("bench", "--graph", GRAPH, "--device", "cpu", *SMALL)["records"][0]
        self.assertEqual((record["op"], record["dtype"]), ("graph", "bf16"))
        self.assertIn("rsqrt", self.result("explain", "--graph", GRAPH, "--target", "sm_90a").stdout)


class Rows(CommandTest):
    ADVANTAGES = SOURCE / "examples/graphs/group_advantages.rj"

    def bytes_of(self, *words):
        return self.document("bench", "--graph", self.ADVANTAGES, "--device", "cpu", *words)["records"][0]["bytes"]

    def test_an_axis_that_is_named_has_its_own_extent_and_the_others_have_tokens(self):
        token, group = 2 * 4, 8
        self.assertEqual(self.bytes_of("--tokens", "100"), 100 * token + 101 * group)
        self.assertEqual(self.bytes_of("--tokens", "100", "--rows", "groups=7"), 100 * token + 8 * group)
        self.assertEqual(self.bytes_of("--rows", "groups=7", "--rows", "tokens=90"), 90 * token + 8 * group)

    def test_fewer_rows_for_max_bytes_are_those_of_axes_that_are_not_named(self):
        moved = self.bytes_of("--tokens", "1000", "--rows", "groups=7", "--max-bytes", "2100")
        self.assertEqual(moved, 250 * 8 + 8 * 8)
        self.assert_refused(USAGE, ["bench", "--graph", self.ADVANTAGES, "--device", "cpu", "--rows", "tokens=1000",
                                    "--max-bytes", "2100"], "--rows", "may move 2100", "--max-bytes")

    def test_outputs_are_verified_on_the_rows_that_are_named(self):
        records = self.document("verify", "--graph", self.ADVANTAGES, "--backward", "--rows", "tokens=300", "--rows",
                                "groups=7", "--device", "cpu")["records"]
        self.assertEqual({record["elements"] % 300 for record in records}, {0})

    def test_a_kernel_is_tuned_for_them(self):
        record = self.document("tune", "--graph", self.ADVANTAGES, "--rows", "tokens=200", "--rows", "groups=9",
                               "--max-candidates", "2", "--device", "cpu")["records"][0]
        self.assertEqual((record["shape"], record["within_bar"]), ("200", True))

    def test_rows_that_a_graph_does_not_have_are_refused_with_those_that_it_has(self):
        fixed = self.write("fixed.rj", "rows t\nrows e = 8\ninput x: f32[t, e, 64]\noutput y = x + 1.0\n")
        columns = self.write("columns.rj", "rows t\ncolumns c = 64\ninput x: f32[t, c]\noutput y = x + 1.0\n")
        for graph, word, expected in [(self.ADVANTAGES, "grops=7", ["'grops'", "give tokens or groups"]),
                                      (self.ADVANTAGES, "ends=7", ["as many rows as groups and 1 more", "or groups"]),
                                      (fixed, "e=7", ["always has 8 rows", "give t"]),
                                      (columns, "c=7", ["64 columns", "give t"])]:
            for command in ("bench", "tune", "verify", "compile", "explain"):
                with self.subTest(word, command=command):
                    device = [] if command in ("compile", "explain") else ["--device", "cpu"]
                    target = ["--target", "x86-64-v3"] if not device else []
                    self.assert_refused(USAGE, [command, "--graph", graph, "--rows", word, *device, *target],
                                        *expected)

    def test_counts_that_are_none_are_refused(self):
        for words, expected in [(["groups"], "'groups'"), (["groups="], "positive"), (["groups=0"], "positive"),
                                (["groups=-1"], "positive"), (["groups=7x"], "'groups=7x'"), (["=7"], "'=7'"),
                                (["groups=7", "--rows", "groups=8"], "twice")]:
            with self.subTest(words):
                self.assert_refused(USAGE, ["bench", "--graph", self.ADVANTAGES, "--device", "cpu", "--rows", *words],
                                    expected)


class Random(CommandTest):
    def drawn(self, *words):
        return self.rowjit("verify", "--random", *words, "--device", "cpu", "--json")

    def test_the_same_seed_verifies_the_same_jobs_each_of_which_its_command_repeats_alone(self):
        words = ["8", "--seed", "5", "--max-bytes", "200000"]
        result = self.drawn(*words)
        document = json.loads(result.stdout)
        self.assertEqual(len({record["job"] for record in document["records"]}), 8)
        self.assertEqual(json.loads(self.drawn(*words).stdout), document)
        others = json.loads(self.drawn("8", "--seed", "6", "--max-bytes", "200000").stdout)
        self.assertNotEqual([r["job"] for r in others["records"]], [r["job"] for r in document["records"]])

        measured = ("schedule", "inputs", "error", "eager_error", "most_off", "eager_most_off", "largest", "elements")
        command = document["records"][-1]["command"]
        alone = json.loads(self.rowjit(*shlex.split(command)[1:], "--json").stdout)
        self.assertEqual([[record[field] for field in measured] for record in alone["records"]],
                         [[record[field] for field in measured] for record in document["records"]
                          if record["command"] == command])
        self.assertNotIn("command", alone["records"][0])

    def test_what_is_named_restricts_what_is_drawn(self):
        result = self.drawn("4", "--op", "silu,rope", "--dtype", "f16", "--backward", "--max-bytes", "100000",
                            "--chunk-rows", "2")
        records = json.loads(result.stdout)["records"]
        for record in records:
            self.assertRegex(record["job"], r"\A(silu|rope) \d+ f16 (\w+=\w+ )*backward, seed \d+\Z")
            self.assertRegex(record["command"], r"\Arowjit verify --op (silu|rope) --columns \d+ --dtype f16 .*"
                             r"--backward --seed \d+ --chunk-rows 2 --device cpu\Z")

    def test_a_finding_has_the_command_that_repeats_it(self):
        # Every f32 is infinite after this.
        result = self.drawn("2", "--op", "scale_add", "--option", "scale=1e300", "--option", "per_column=false",
                            "--dtype", "f32", "--columns", "3")
        self.assertEqual(result.returncode, FINDINGS, result.stderr)
        for finding in json.loads(result.stdout)["not_compared"]:
            self.assertIn(f"rowjit: alone: {finding['command']}\n", result.stderr)

    def test_a_job_that_fails_has_its_command_and_ends_no_other(self):
        memory = (resource.RLIMIT_AS, 4 << 30)
        if self.limited(*memory, "--version").returncode != OK:
            self.skipTest("a sanitizer needs more address space than the limit leaves")
        result = self.limited(*memory, "verify", "--random", "6", "--op", "silu", "--columns", "64,2000000000",
                              "--max-bytes", str(1 << 40), "--device", "cpu", "--json")
        self.assertEqual(result.returncode, PARTIAL, result.stderr)
        document = json.loads(result.stdout)
        narrow = {record["command"] for record in document["records"]}
        self.assertEqual(len(narrow) + len(document["failures"]), 6)
        self.assertEqual(document["summary"]["failed"], len(document["failures"]))
        for failure in document["failures"]:
            self.assertIn("--columns 2000000000", failure["command"])
            self.assertIn("out of memory", failure["failure"])
            self.assertIn(f"rowjit: alone: {failure['command']}\n", result.stderr)

    def test_what_it_cannot_draw_from_is_refused(self):
        for words, expected in [(["0"], "positive"), (["3", "--graph", GRAPH], "leave out --graph"),
                                (["3", "--model", LLAMA], "leave out --model"),
                                (["3", "--op", "silu", "--max-bytes", "1"], "--max-bytes"),
                                (["3", "--op", "quantize", "--backward"], "no backward"),
                                (["3", "--option", "eps=1"], "one --op"), (["3", "--rows", "tokens=7"], "--rows")]:
            with self.subTest(words):
                self.assert_refused(USAGE, ["verify", "--random", *words, "--device", "cpu"], expected)


class Refusals(CommandTest):
    def refused_op(self, *words, expected):
        self.assert_refused(USAGE, ["bench", "--device", "cpu", *words], *expected)

    def test_unknown_names_list_the_known_ones(self):
        self.refused_op("--op", "bogus", expected=["'bogus'", "rms_norm"])
        self.refused_op("--op", "rms_norm", "--option", "bogus=1", expected=["'bogus'", "eps"])
        self.refused_op("--op", "rms_norm", "--dtype", "bf17", expected=["'bf17'", "bf16"])
        self.assert_refused(USAGE, ["compile", "--op", "silu", "--target", "sm_12"], "'sm_12'", "sm_90a")
        self.assert_refused(USAGE, ["bench", "--op", "silu", "--device", "tpu:0"], "'tpu:0'", "cuda:N")

    def test_values_that_no_op_takes(self):
        self.refused_op("--op", "rms_norm", "--option", "eps=nan", expected=["eps", "finite"])
        self.refused_op("--op", "rms_norm", "--option", "eps", expected=["'eps'", "name=value"])
        self.refused_op("--op", "rms_norm", "--columns", "0", expected=["columns", "positive"])
        self.refused_op("--op", "rms_norm,silu", "--option", "eps=1", expected=["--option", "one --op"])

    def test_a_text_that_does_not_parse_is_refused_at_its_place(self):
        path = self.write("bad.rj", "rows t\ninput x: bf16[t, 64]\ny = bogus(x)\noutput y\n")
        self.assert_refused(USAGE, ["compile", "--graph", path, "--target", "native", "--output", "out"],
                            "bad.rj:3:5: ", "bogus")
        self.assertFalse((self.work / "out").exists())

    def test_operands_that_do_not_fit_are_refused_at_their_place(self):
        cases = [("input w: bf16[65]\ny = rms_norm(x, w)", ":4:5: ", "bf16[65]"),
                 ("input w: f32[64]\ny = x * w", ":4:7: ", "dtypes differ"),
                 ("y = rms_norm(x, eps=nan)", ":3:5: ", "eps is nan")]
        for lines, place, expected in cases:
            path = self.write("bad.rj", f"rows t\ninput x: bf16[t, 64]\n{lines}\noutput y\n")
            self.assert_refused(USAGE, ["compile", "--graph", path, "--target", "native", "--output", "out"],
                                "bad.rj" + place, expected)
        self.assertFalse((self.work / "out").exists())

    def test_a_graph_without_an_output(self):
        path = self.write("bad.rj", "rows t\n")
        self.assert_refused(USAGE, ["explain", "--graph", path, "--target", "sm_90a"], "no outputs", "'output'")

    def test_rows_that_memory_cannot_hold(self):
        memory = (resource.RLIMIT_AS, 4 << 30)
        if self.limited(*memory, "--version").returncode != OK:
            self.skipTest("a sanitizer needs more address space than the limit leaves")
        result = self.limited(*memory, "bench", "--op", "silu", "--columns", "2147483647", "--device", "cpu")
        self.assertEqual(result.returncode, ENVIRONMENT, result.stderr)
        self.assertRegex(result.stderr, r"\Arowjit: out of memory; [^\n]*--columns[^\n]*\n\Z")

    def test_files_that_are_not_there(self):
        self.assert_refused(IO, ["compile", "--graph", "absent.rj", "--target", "native"], "'absent.rj'")
        self.assert_refused(IO, ["compile", "--model", "absent.json", "--target", "native"], "'absent.json'")
        self.assert_refused(IO, ["compile", "--model", self.work, "--target", "native"], "cannot be read")

    def test_configurations_that_are_wrong(self):
        whole = json.loads(LLAMA.read_text(encoding="utf-8"))
        cases = [({name: value for name, value in whole.items() if name != "vocab_size"}, "'vocab_size' is missing"),
                 (whole | {"model_type": "zebra"}, "'zebra'"), (whole | {"hidden_size": "many"}, "'hidden_size'")]
        for configuration, expected in cases:
            path = self.write("config.json", json.dumps(configuration))
            self.assert_refused(USAGE, ["compile", "--model", path, "--target", "native"], "config.json: ", expected)
        self.assert_refused(USAGE, ["compile", "--model", self.write("config.json", '{"a'), "--target", "native"],
                            "not JSON")

    def test_a_device_without_its_driver(self):
        self.assert_refused(ENVIRONMENT, ["bench", "--op", "silu", "--device", "cuda:0"], "cuda:0", "absent.so",
                            "ROWJIT_CUDA_DRIVER", ROWJIT_CUDA_DRIVER=str(self.work / "absent.so"))

    def test_usage(self):
        for words, expected in [([], "--help"), (["frob"], "'frob'"), (["bench", "--frob"], "'--frob'"),
                                (["bench", "--device", "cpu"], "--graph"),
                                (["bench", "--op", "silu", "--tokens", "-3"], "'-3'"),
                                (["bench", "--op", "silu", "--tokens", "abc"], "'abc'"),
                                (["compile", "--op", "silu", "--emit", "bogus"], "bogus"), (["cache", "frob"], "frob")]:
            with self.subTest(words):
                self.assert_refused(USAGE, words, expected)

    def test_an_environment_variable_that_does_not_parse(self):
        self.assert_refused(USAGE, ["bench", "--op", "silu", "--device", "cpu"], "ROWJIT_CPU_THREADS",
                            ROWJIT_CPU_THREADS="x")

    def test_output_that_cannot_be_written(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            result = subprocess.run([str(PROGRAM), "ops"], env=self.environment, stdout=full, stderr=subprocess.PIPE,
                                    text=True, check=False)
        self.assertEqual(result.returncode, IO, result.stderr)
        self.assertIn("standard output", result.stderr)


class Bundles(CommandTest):
    RELU = ["--op", "relu", "--columns", "64,128", "--device", "cpu"]

    def compiled(self, name, **environment):
        self.result("compile", *self.RELU, "--write-bundle", name, **environment)
        return self.work / name

    def test_what_was_compiled_is_found_in_a_bundle_where_there_is_no_cache(self):
        bundle = self.compiled("kernels.rjb")
        words = ["compile", *self.RELU, "--cache-dir", "off", "--write-bundle", "again.rjb"]
        self.assertEqual(self.document(*words)["summary"]["compiled"], 2)
        found = self.document(*words, "--bundle", bundle)["summary"]
        self.assertEqual((found["compiled"], found["from_cache"]), (0, 2))
        by_variable = self.result(*words, "--json", ROWJIT_BUNDLE_PATH=f"/nowhere.rjb:{bundle}")
        self.assertEqual(json.loads(by_variable.stdout)["summary"]["compiled"], 0)
        self.assertIn("/nowhere.rjb", by_variable.stderr)

    def test_the_same_kernels_compiled_again_are_the_same_bundle(self):
        first = self.compiled("first.rjb")
        again = self.compiled("again.rjb", ROWJIT_CACHE_DIR=str(self.work / "another"))
        self.assertEqual(first.read_bytes(), again.read_bytes())
        self.result("bundle", "export", "exported.rjb")
        self.assertEqual(first.read_bytes(), (self.work / "exported.rjb").read_bytes())

    def test_a_gpus_kernels_are_taken_from_a_bundle_without_its_compiler(self):
        self.require_toolchains("sm_90a")
        words = ["compile", "--op", "relu", "--columns", "64", "--target", "sm_90a", "--cache-dir", "off"]
        self.result(*words, "--write-bundle", "kernels.rjb")
        nowhere = {"ROWJIT_NVRTC": "/nowhere"}
        self.assert_refused(ENVIRONMENT, [*words, "--output", "out"], "NVRTC", **nowhere)
        self.result(*words, "--output", "out", "--bundle", "kernels.rjb", **nowhere)
        self.assertTrue(list((self.work / "out").glob("*.cubin")))

    def test_a_bundle_written_where_the_group_may_write_is_used_all_the_same(self):
        shared = os.umask(0o002)
        self.addCleanup(os.umask, shared)
        softmax = ["--op", "softmax", "--columns", "64", "--max-candidates", "2", "--target", "native"]
        self.result("tune", "plan", *softmax, "--output", "plan.rjb")
        bundle = self.compiled("kernels.rjb")
        self.result("bundle", "export", "all.rjb")
        for path in (bundle, self.work / "plan.rjb", self.work / "all.rjb"):
            self.assertEqual(path.stat().st_mode & 0o022, 0)
        words = ["compile", *self.RELU, "--cache-dir", "off", "--write-bundle", "again.rjb", "--bundle", bundle]
        self.assertEqual(self.document(*words)["summary"]["compiled"], 0)

    def test_export_import_list_and_verify(self):
        self.compiled("kernels.rjb")
        self.result("tune", *self.RELU, *SMALL, "--max-candidates", "2")
        self.assertEqual(self.document("bundle", "export", "all.rjb", "--target", "native")["tuned"], 2)
        self.assertEqual(self.document("bundle", "export", "none.rjb", "--target", "sm_80")["kernels"], 0)
        rows = self.document("bundle", "ls", "all.rjb")
        self.assertGreaterEqual(len([row for row in rows if row.get("target") == "native"]), 2)
        self.assertEqual(self.document("bundle", "verify", "all.rjb")["bad"], [])

        elsewhere = ["--cache-dir", self.work / "elsewhere"]
        imported = self.document("bundle", "import", "all.rjb", *elsewhere)
        self.assertEqual((imported["tuned"], imported["damaged"]), (2, 0))
        self.assertEqual(self.document("compile", *self.RELU, *elsewhere)["summary"]["compiled"], 0)

    def test_a_damaged_bundle_is_named_and_costs_what_was_damaged_alone(self):
        bundle = self.compiled("kernels.rjb")
        whole = bundle.read_bytes()
        bundle.write_bytes(whole[:-40] + bytes([whole[-40] ^ 1]) + whole[-39:])
        self.assertEqual(self.rowjit("bundle", "verify", bundle).returncode, FINDINGS)
        words = ["compile", *self.RELU, "--cache-dir", "off", "--write-bundle", "again.rjb", "--bundle", bundle]
        self.assertEqual(self.document(*words)["summary"]["compiled"], 1)
        bundle.write_bytes(whole[:100])
        self.assert_refused(IO, ["bundle", "verify", bundle], "kernels.rjb")
        self.assert_refused(IO, ["bundle", "import", "absent.rjb"], "absent.rjb")
        self.assert_refused(USAGE, ["bundle", "export"], "one file")

    def test_candidates_planned_for_a_target_are_not_compiled_again_when_they_are_timed(self):
        softmax = ["--op", "softmax", "--columns", "64", "--max-candidates", "3"]
        self.result("tune", "plan", *softmax, "--target", "native", "--output", "plan.rjb", "--cache-dir", "off")
        run = ["tune", "run", "plan.rjb", *softmax, *SMALL, "--device", "cpu"]
        self.assertEqual(self.document(*run)["summary"]["compiled"], 0)
        self.assert_refused(USAGE, ["tune", "plan", *softmax], "--output")

    def test_tuning_results_are_merged_and_those_that_gained_no_more_are_left_out(self):
        self.result("tune", *self.RELU, *SMALL, "--max-candidates", "1")
        self.result("bundle", "export", "mine.rjb")
        merged = ["tune", "merge", "mine.rjb", "--cache-dir", self.work / "merged"]
        self.assertEqual(self.document(*merged)["tuned"], 2)
        self.assertEqual(self.document(*merged)["tuned"], 0)
        self.assert_refused(USAGE, ["tune", "merge"], "bundle")

    def test_a_pinned_table_decides_and_one_that_cannot_be_read_is_refused(self):
        words = ["explain", "--op", "softmax", "--columns", "64", "--device", "cpu", "--json"]
        kernel = json.loads(self.result(*words).stdout)["records"][0]["kernels"][0]
        self.assertEqual(kernel["schedule_from"], "static rule")
        self.assert_refused(IO, words, "absent.json", ROWJIT_PINNED_CHOICES="absent.json")
        self.write("wrong.json", "{}")
        self.assert_refused(USAGE, words, "wrong.json", ROWJIT_PINNED_CHOICES="wrong.json")


class Completion(CommandTest):
    def completed(self, *words):
        """What bash offers for the last of the words."""
        typed = " ".join(f"'{word}'" for word in words)
        script = (self.result("completion", "bash").stdout +
                  f"COMP_WORDS=(rowjit {typed}); COMP_CWORD={len(words)}; _rowjit; echo ${{COMPREPLY[@]}}")
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, timeout=60)
        return done.stdout.split()

    def test_bash_completes_commands_their_options_and_what_an_argument_may_be(self):
        self.assertEqual(self.completed("ex"), ["explain"])
        self.assertEqual(self.completed("--json", "tune", "--max-c"), ["--max-candidates"])
        self.assertEqual(self.completed("bench", "--row"), ["--rows"])
        self.assertLessEqual({"export", "import", "ls", "verify", "--target", "--json"}, set(self.completed("bundle", "")))
        self.assertNotIn("tune-worker", self.completed(""))

    def test_each_shell_has_a_script_that_names_every_command(self):
        for shell in ("bash", "zsh", "fish"):
            script = self.result("completion", shell).stdout
            for command in ("tune", "compile", "bench", "verify", "explain", "ops", "cache", "bundle", "doctor"):
                self.assertIn(command, script)
        self.assert_refused(USAGE, ["completion", "tcsh"], "tcsh")


class LookingAround(CommandTest):
    def test_operations(self):
        self.assertIn("rms_norm", [op["name"] for op in self.document("ops")])
        self.assertIn("eps", [option["name"] for option in self.document("ops", "rms_norm")["options"]])
        self.assertIn("rsqrt", self.result("ops", "rms_norm").stdout)
        tests = {test["test"]: test for test in self.document("ops", "rms_norm")["tests"]}
        self.assertIn("casting=gemma", tests["compile_everything_test"]["options"]["bf16"])
        self.assertIn("gfx942", tests["compile_everything_test"]["targets"])
        self.assert_refused(USAGE, ["ops", "bogus"], "'bogus'")

    def test_doctor_finds_the_cpu_and_names_every_variable(self):
        document = self.document("doctor")
        self.assertTrue([row for row in document["devices"] if row["device"] == "cpu"][0]["found"])
        self.assertIn("ROWJIT_CACHE_DIR", [row["name"] for row in document["environment"]])
        self.assertIn("ROWJIT_CACHE_DIR", self.result("doctor").stdout)

    def test_the_cache_is_counted_listed_shown_verified_and_cleared(self):
        self.result("compile", "--op", "silu", "--columns", "64", "--target", "x86-64-v3")
        self.assertEqual(self.document("cache", "stats")["kernels"], 1)
        listed = self.document("cache", "ls")
        self.assertEqual(len(listed), 1)
        shown = self.document("cache", "show", listed[0]["digest"][:12])
        self.assertEqual((shown["target"], len(shown["functions"])), ("x86-64-v3", 1))
        self.assertEqual(self.document("cache", "verify"), {"good": 1, "bad": []})
        self.assertEqual(self.document("cache", "gc")["kernels"], 0)
        self.assertEqual(self.document("cache", "clear")["kernels"], 1)
        self.assertEqual(self.document("cache", "stats")["kernels"], 0)
        self.assert_refused(MISS, ["cache", "show", listed[0]["digest"]], "rowjit cache ls")

    def test_version_and_help(self):
        self.assertRegex(self.result("--version").stdout, r"\Arowjit \d+\.\d+\.\d+\n\Z")
        self.assertIn("Exit codes", self.result("--help").stdout)
        self.assertIn("--max-candidates", self.result("tune", "--help").stdout)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
