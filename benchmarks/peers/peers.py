#!/usr/bin/env python3
"""Times rowjit beside torch eager, torch's own fused operations, torch.compile, Liger-Kernel and quack, and beside a copy
of the same bytes, all in one process and in turn, and keeps what was found as JSON.

    peers.py --library build/release/lib/librowjit_c.so --output FILE.json [--set table] [--only rms_norm] …

rowjit's forward+backward is the forward that saves what its derived backward reads, then that backward; where a loss is
its last output, "ours, one pass" is loss and gradient from one graph. Before a row is timed, its results on a few rows
are compared with torch's in f64: rowjit may err by what eager errs and a unit in the last place. On a GPU a time is that
of the device between two events; a kernel that waits before the first lets the host queue everything, so that no host's
slowness is in it, and the cache is emptied before each sample. What is absent or fails is said in its row and stops
nothing. report.py makes a page of the file.
"""

import argparse
import ctypes
import datetime
import importlib.metadata
import json
import math
import os
import pathlib
import platform
import re
import statistics
import sys
import time

# Threads of an OpenMP loop that has ended would spin on processors that the next contender wants. Read when torch is
# loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch

import cases
import kernel
import rowjit_c

CHECKED_ROWS = 37  # odd, and no multiple of any block of rows
SETS = 3
PARTS = ("forward", "backward", "both")
ULPS = {torch.bfloat16: 8, torch.float16: 11, torch.float32: 24, torch.float64: 53}
CLOCK_HZ = 2e9  # at most: the wait before a sample is in clocks


def first_line(error):
    text = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {text[0]}"[:300]


# --- What is timed ---------------------------------------------------------------------------------------------------


class Sets:
    """Inputs and cotangents, several of each, and a second copy of each for who writes into what it is given."""

    def __init__(self, case, graph, trained, device, seed=1):
        generator = torch.Generator(device=device).manual_seed(seed)
        self.op = cases.OPS[case.op]
        self.inputs, self.cotangents = [], []
        for _ in range(SETS):
            self.inputs.append(cases.random_inputs(graph, case, case.rows, device, generator))
            given = {}
            for info in trained.tensors:
                name = info.name.decode()
                if info.is_output or name.removeprefix("d_") not in self.op.outputs or not name.startswith("d_"):
                    continue
                shape = trained.shape(name, case.rows)
                given[name.removeprefix("d_")] = (
                    cases.random_tensor(name, shape, info.dtype, case, device, generator) if shape
                    else torch.ones(shape, dtype=kernel.DTYPES[info.dtype], device=device))
            self.cotangents.append(given)
        self.scratch = None

    def pristine(self, number):
        return self.inputs[number], self.cotangents[number]

    def to_write_into(self, number):
        """The set's values in tensors of their own, the same ones at every call."""
        if self.scratch is None:
            self.scratch = [({name: value.clone() for name, value in inputs.items()},
                             {name: value.clone() for name, value in given.items()})
                            for inputs, given in zip(self.inputs, self.cotangents)]
        for copies, originals in zip(self.scratch[number], self.pristine(number)):
            for name, value in originals.items():
                copies[name].copy_(value)
        return self.scratch[number]


class Torch:
    """A function of torch tensors under autograd."""

    def __init__(self, function, op, writes=False):
        self.function, self.op, self.writes = function, op, writes

    def forward(self, inputs, _):
        with torch.no_grad():
            self.function(inputs)

    def start(self, inputs, cotangents):
        """What a backward needs: the outputs and the inputs they came from."""
        leaves = {name: value.detach().requires_grad_(name in self.op.differentiated)
                  for name, value in inputs.items()}
        outputs = self.function(leaves)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        return outputs, leaves, [cotangents[name].to(output.dtype) for name, output in zip(self.op.outputs, outputs)]

    def finish(self, state):
        outputs, leaves, cotangents = state
        wanted = [leaves[name] for name in self.op.differentiated]
        return dict(zip(self.op.differentiated, torch.autograd.grad(outputs, wanted, cotangents)))

    def both(self, inputs, cotangents):
        return self.finish(self.start(inputs, cotangents))


class Ours:
    writes = False

    def __init__(self, engine, case, graphs, device):
        self.plain, self.saving, self.derived = (kernel.Kernel(engine, graph, case.rows, device) for graph in graphs)
        self.same = cases.OPS[case.op].same_gradients

    def forward(self, inputs, _):
        return self.plain(inputs)

    def start(self, inputs, cotangents):
        return inputs | self.saving(inputs) | {f"d_{name}": value for name, value in cotangents.items()}

    def finish(self, state):
        gradients = {name.removeprefix("d_"): value for name, value in self.derived(state).items()}
        return gradients | {name: gradients[other] for name, other in self.same.items()}

    def both(self, inputs, cotangents):
        return self.finish(self.start(inputs, cotangents))


class OnePass:
    """A loss and its gradient from one graph; it has no part but the whole."""

    writes = True

    def __init__(self, engine, case, graph, device):
        self.kernel = kernel.Kernel(engine, graph, case.rows, device)

    def both(self, inputs, _):
        return self.kernel(inputs)


class Copy:
    writes = False

    def __init__(self, bytes_of_part, device):
        largest = max(bytes_of_part.values())
        self.bytes_of_part = bytes_of_part
        self.source = torch.empty(largest // 2 + 1, dtype=torch.uint8, device=device).random_()
        self.destination = torch.empty_like(self.source)

    def copy(self, part):
        half = self.bytes_of_part[part] // 2
        self.destination[:half].copy_(self.source[:half])


# --- Timing ----------------------------------------------------------------------------------------------------------


def last_cache_bytes(device):
    if device == "cuda":
        return getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 64 << 20)
    sizes = pathlib.Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    kib = [int(path.read_text().strip().removesuffix("K")) for path in sizes]
    return min(max(kib, default=32 << 10), 256 << 10) << 10


def keep_freed_memory():
    """On the CPU a large tensor's memory goes back to the system when it is freed and is faulted in, page by page, when
    the next is made. That costs more than most operations, falls on every contender, and is nobody's doing."""
    no_mapping, no_trimming = (-4, 0), (-1, 2**31 - 1)  # M_MMAP_MAX, M_TRIM_THRESHOLD of malloc.h
    libc = ctypes.CDLL(None)
    for parameter, value in (no_mapping, no_trimming):
        libc.mallopt(parameter, value)


class Clock:
    """Times one call with cold caches; on a GPU the device's time alone."""

    def __init__(self, device):
        self.device = device
        if device == "cpu":
            keep_freed_memory()
        self.other = torch.ones(2 * last_cache_bytes(device) // 4, dtype=torch.float32, device=device)

    def empty_cache(self):
        # Read, not written: lines to be written back would be in the next call's time.
        self.other.max()

    def wait(self):
        if self.device == "cuda":
            torch.cuda.synchronize()

    def host_seconds(self, work):
        self.wait()
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    def sample(self, work, host_seconds):
        """A function that gives milliseconds once the device has done it."""
        self.empty_cache()
        if self.device == "cpu":
            began = time.perf_counter()
            work()
            ms = 1e3 * (time.perf_counter() - began)
            return lambda: ms
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(int((1.5 * host_seconds + 50e-6) * CLOCK_HZ))
        began.record()
        work()
        ended.record()
        return lambda: began.elapsed_time(ended)


def prepared(contender, part, sets, number):
    """What is to be timed of the part: everything it needs is there when this returns."""
    if isinstance(contender, Copy):
        return lambda: contender.copy(part)
    inputs, cotangents = sets.to_write_into(number) if contender.writes else sets.pristine(number)
    if part == "backward":
        state = contender.start(inputs, cotangents)
        return lambda: contender.finish(state)
    return lambda: getattr(contender, part)(inputs, cotangents)


def has_part(contender, part):
    return hasattr(contender, {"backward": "finish"}.get(part, part)) or isinstance(contender, Copy)


def peak_mib(device, work):
    if device == "cpu":
        return None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    kept = work()
    torch.cuda.synchronize()
    del kept
    return (torch.cuda.max_memory_allocated() - before) / 2**20


class Race:
    """One part of one case: all contenders warmed up, then a sample of each in turn, round by round."""

    def __init__(self, clock, part, sets, failures):
        self.clock, self.part, self.sets, self.failures = clock, part, sets, failures
        self.host, self.peak, self.samples = {}, {}, {}
        self.taken = 0

    def next_work(self, contender):
        self.taken += 1
        return prepared(contender, self.part, self.sets, self.taken % SETS)

    def attempt(self, name, action):
        try:
            action()
            return True
        except Exception as error:  # of any peer, of any kind: said, and the others go on
            self.failures.setdefault(name, {})[self.part] = first_line(error)
            for found in (self.host, self.peak, self.samples):
                found.pop(name, None)
            return False

    def warm_up(self, name, contender):
        self.next_work(contender)()  # compiles
        self.host[name] = statistics.median(self.clock.host_seconds(self.next_work(contender)) for _ in range(3))
        self.peak[name] = peak_mib(self.clock.device, self.next_work(contender))
        self.samples[name] = []

    def run(self, contenders, rounds, seconds):
        running = [(name, contender) for name, contender in contenders.items()
                   if self.attempt(name, lambda: self.warm_up(name, contender))]
        until = time.monotonic() + seconds
        for turn in range(rounds):
            # Who follows whom changes from round to round.
            for name, contender in running[turn % len(running):] + running[:turn % len(running)]:
                if name not in self.samples:
                    continue
                self.attempt(name, lambda: self.samples[name].append(
                    self.clock.sample(self.next_work(contender), self.host[name])))
            self.clock.wait()
            if turn >= 2 and time.monotonic() > until:
                break
        return {name: self.summary(name) for name in self.samples}

    def summary(self, name):
        ms = sorted(sample() for sample in self.samples[name])
        quarters = statistics.quantiles(ms, n=4) if len(ms) > 1 else [ms[0]] * 3
        found = {"ms": statistics.median(ms), "spread": (quarters[2] - quarters[0]) / statistics.median(ms),
                 "samples": len(ms), "host_us": 1e6 * self.host[name]}
        return found | ({"peak_mib": self.peak[name]} if self.peak[name] is not None else {})


# --- Checking --------------------------------------------------------------------------------------------------------


def units(values, exact, unit):
    return ((values.double() - exact).abs() / unit).flatten()


def compare(got, eager, exact):
    """The bar of the project's accuracy tests, without its exceptions for values that are not finite."""
    digits = ULPS[got.dtype]
    # The spacing of the dtype at the exact value; below the normal numbers it no longer shrinks.
    exponent = torch.frexp(exact.abs().clamp_min(torch.finfo(got.dtype).tiny))[1]
    ulp = torch.pow(2.0, (exponent - digits).double())
    lost = (eager.double() - exact).abs()
    cancelled = lost > 2 * ulp
    noise = lost[cancelled].max() if cancelled.any() else torch.zeros((), dtype=torch.float64, device=exact.device)
    unit = torch.maximum(ulp, noise)
    ours, theirs = units(got, exact, unit), units(eager, exact, unit)
    within = (ours.max() <= theirs.max() + 1
              and ours.mean() <= theirs.mean() + 0.5 * (1 + 1 / math.sqrt(ours.numel())))
    return {"error": ours.max().item(), "eager_error": theirs.max().item(), "within_bar": bool(within)}


def check(engine, case, graphs, one_pass, device):
    """Every output and gradient on a few rows, against the eager function in f64; `one_pass` may be None."""
    op = cases.OPS[case.op]
    small = cases.Case(case.op, min(case.rows, CHECKED_ROWS), case.columns, case.set, case.dtype, case.options)
    sets = Sets(small, graphs[0], graphs[2], device)
    inputs, cotangents = sets.pristine(0)
    ours, eager = Ours(engine, small, graphs, device), Torch(op.eager, op)

    def doubled(values):
        return {name: value.double() if value.is_floating_point() else value for name, value in values.items()}

    def all_of(contender, inputs, cotangents):
        state = contender.start(inputs, cotangents)
        outputs = ({name: state[name] for name in op.outputs} if isinstance(contender, Ours)
                   else dict(zip(op.outputs, state[0])))
        return outputs | {f"d_{name}": value for name, value in contender.finish(state).items()}

    got, rounded = all_of(ours, inputs, cotangents), all_of(eager, inputs, cotangents)
    exact = all_of(eager, doubled(inputs), doubled(cotangents))
    found = {name: compare(value, rounded[name].detach(), exact[name].detach()) for name, value in got.items()}
    if one_pass:
        for name, value in OnePass(engine, small, one_pass, device).both(*sets.to_write_into(0)).items():
            found[f"{name}, one pass"] = compare(value, rounded[name].detach(), exact[name].detach())
    return found


# --- The run ---------------------------------------------------------------------------------------------------------


class Run:
    def __init__(self, options):
        self.options = options
        self.library = rowjit_c.Library(options.library)
        device = "cuda:0" if options.device == "cuda" else "cpu"
        self.engine = rowjit_c.Engine(self.library, device, options.cache, tuned=not options.untuned)
        self.clock = Clock(options.device)
        self.versions = {"torch": torch.__version__}
        for package in ("triton", "liger_kernel", "quack_kernels"):
            try:
                self.versions[package] = importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                self.versions[package] = "absent"

    def document(self):
        info = self.engine.info()
        machine = {"device": info["device"], "target": info["target"], "system": platform.platform(),
                   "processors": os.cpu_count(), "python": platform.python_version(), "cuda": torch.version.cuda,
                   "last_cache_bytes": last_cache_bytes(self.options.device)}
        # Paths of the machine are nobody's business.
        words = [pathlib.Path(word).name if "/" in word else word for word in sys.argv]
        return {"date": datetime.date.today().isoformat(), "command": words, "tuned": not self.options.untuned,
                "machine": machine, "versions": {"rowjit": info["rowjit"]} | self.versions, "rows": []}

    def graph(self, case, **options):
        return self.library.op(case.op, case.columns, case.dtype, cases.OPS[case.op].options | case.options | options)

    def graphs(self, case):
        op, plain = cases.OPS[case.op], self.graph(case)
        return [plain, *plain.differentiate(op.written)]

    def fitted(self, case):
        """The case with as many rows as the bound on its traffic lets it have."""
        graph = self.graphs(case)[0]
        rows = case.rows
        while self.options.max_mib and rows > 1 and graph.least_bytes(rows) > self.options.max_mib << 20:
            rows //= 2
        return cases.Case(case.op, rows, case.columns, case.set, case.dtype, case.options)

    def one_pass(self, case, row):
        """A loss and its gradient in one graph, over the logits where the device's kernels can do that."""
        op = cases.OPS[case.op]
        for in_place in (op.one_pass, []):
            try:
                graph = self.graph(case, **op.one_pass_options).one_pass(op.differentiated, in_place)
                self.engine.compile(graph).destroy()
                row["one_pass_in_place"] = bool(in_place)
                return graph
            except rowjit_c.RowjitError as error:
                row["one_pass_refused"] = first_line(error)
        return None

    def tune(self, name, graph, case, row):
        """The static rules' choice stays where no candidate is found good."""
        try:
            self.engine.tune(graph, case.rows, self.options.candidates)
        except rowjit_c.RowjitError as error:
            row["failures"].setdefault("tuning", {})[name] = first_line(error)

    def ours(self, case, graphs, row):
        began = time.monotonic()
        ready = dict(zip(("plain", "saving", "derived"), graphs))
        if cases.OPS[case.op].one_pass and (graph := self.one_pass(case, row)):
            ready["one pass"] = graph
        if not self.options.untuned:
            for name, graph in ready.items():
                self.tune(name, graph, case, row)
        contenders = {"ours": Ours(self.engine, case, graphs, self.options.device)}
        ours = contenders["ours"]
        row["schedules"] = {"forward": ours.plain.schedules, "saving": ours.saving.schedules,
                            "backward": ours.derived.schedules}
        if "one pass" in ready:
            contenders["ours, one pass"] = OnePass(self.engine, case, ready["one pass"], self.options.device)
        row["ours_ready_s"] = round(time.monotonic() - began, 2)
        return contenders

    def peers(self, case):
        op = cases.OPS[case.op]
        found = {"eager": Torch(op.eager, op)}
        if op.aten:
            found["aten"] = Torch(op.aten, op)
        if hasattr(torch, "compile"):
            torch._dynamo.reset()
            found["compile"] = Torch(torch.compile(op.eager, dynamic=False), op)
        if op.liger and self.versions["liger_kernel"] != "absent":
            found["liger"] = Torch(op.liger, op, writes=True)
        if op.quack and self.versions["quack_kernels"] != "absent":
            found["quack"] = Torch(op.quack, op, writes=True)
        return {name: peer for name, peer in found.items() if name in self.options.peers}

    def measure(self, case, row):
        device = self.options.device
        graphs = self.graphs(case)
        row["bytes"] = {"forward": graphs[0].least_bytes(case.rows), "backward": graphs[2].least_bytes(case.rows)}
        row["bytes"]["both"] = graphs[1].least_bytes(case.rows) + row["bytes"]["backward"]
        contenders = self.ours(case, graphs, row)
        one_pass = contenders["ours, one pass"].kernel.graph if "ours, one pass" in contenders else None
        row["checks"] = check(self.engine, case, graphs, one_pass, device)
        contenders |= {"copy": Copy(row["bytes"], device)} | self.peers(case)
        sets = Sets(case, graphs[0], graphs[2], device)
        for part in self.options.parts:
            taking_part = {name: contender for name, contender in contenders.items() if has_part(contender, part)}
            race = Race(self.clock, part, sets, row["failures"])
            row["parts"][part] = race.run(taking_part, self.options.rounds, self.options.part_seconds)

    def row(self, case):
        row = {"name": case.name, "op": case.op, "set": case.set, "rows": case.rows, "columns": case.columns,
               "dtype": case.dtype, "options": case.options, "parts": {}, "failures": {}}
        began = time.monotonic()
        try:
            case = self.fitted(case)
            row |= {"name": case.name, "rows": case.rows}
            self.measure(case, row)
        except Exception as error:  # the row is lost, the run is not
            row["failure"] = first_line(error)
        row["seconds"] = round(time.monotonic() - began, 2)
        return row


def outcome(row):
    if "failure" in row:
        return f"failed: {row['failure']}"
    words = [] if all(found["within_bar"] for found in row["checks"].values()) else ["OUTSIDE THE BAR"]
    for part, found in row["parts"].items():
        if "ours" not in found:
            continue
        ours, copy = found["ours"]["ms"], found.get("copy", {}).get("ms", math.nan)
        best = min(((entry["ms"], name) for name, entry in found.items() if name not in ("copy",) and "ours" not in name),
                   default=(math.nan, "no peer"))
        words.append(f"{part} {ours:.3f} ms, {100 * copy / ours:.0f} % of copy, {best[1]} {best[0] / ours:.2f}x")
    return "; ".join(words) + (f"; failed: {', '.join(row['failures'])}" if row["failures"] else "")


def keep(document, path):
    part = path.with_suffix(".part")
    part.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    part.replace(path)


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--library", type=pathlib.Path, required=True, help="librowjit_c.so")
    parser.add_argument("--output", type=pathlib.Path, required=True, help="the JSON, written after every row")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--set", default="table", help="of table, sweep, small; several with commas, or all")
    parser.add_argument("--only", default="", help="a regular expression that the row's name must hold")
    parser.add_argument("--peers", default="eager,aten,compile,liger,quack", help="which peers, with commas")
    parser.add_argument("--parts", default=",".join(PARTS), help="of forward, backward, both")
    parser.add_argument("--rounds", type=int, default=0, help="samples of each (default 30, on the CPU 9)")
    parser.add_argument("--part-seconds", type=float, default=10, help="after which a part takes no further round")
    parser.add_argument("--max-mib", type=int, default=0, help="bound on a forward's traffic (default none, CPU 64)")
    parser.add_argument("--untuned", action="store_true", help="the static rules' schedules")
    parser.add_argument("--candidates", type=int, default=16, help="schedules that the tuner tries for a kernel")
    parser.add_argument("--cache", default="", help="rowjit's cache directory: what `rowjit tune` filled is used")
    parser.add_argument("--budget-seconds", type=float, default=0, help="after which no row is begun")
    options = parser.parse_args()
    options.peers, options.parts = options.peers.split(","), options.parts.split(",")
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"unknown parts: {', '.join(unknown)}")
    options.rounds = options.rounds or (30 if options.device == "cuda" else 9)
    options.max_mib = options.max_mib or (0 if options.device == "cuda" else 64)
    return options


def main():
    options = parse()
    wanted = [case for case in cases.CASES
              if (options.set == "all" or case.set in options.set.split(",")) and re.search(options.only, case.name)]
    if not wanted:
        sys.exit(f"peers.py: no case of set '{options.set}' holds '{options.only}'")
    run = Run(options)
    document = run.document()
    began = time.monotonic()
    for case in wanted:
        spent = time.monotonic() - began
        if options.budget_seconds and spent > options.budget_seconds:
            row = {"name": case.name, "op": case.op, "set": case.set, "rows": case.rows, "columns": case.columns,
                   "dtype": case.dtype, "options": case.options, "parts": {}, "failures": {},
                   "failure": "not run: the budget was spent"}
        else:
            row = run.row(case)
        document["rows"].append(row)
        document["seconds"] = round(time.monotonic() - began, 1)
        keep(document, options.output)
        print(f"{spent:6.1f} s  {row['name']}: {outcome(row)}", flush=True)
        if options.device == "cuda":
            try:
                torch.cuda.empty_cache()
                torch.cuda.synchronize()
            except RuntimeError as error:
                sys.exit(f"peers.py: the device is lost ({first_line(error)}); what was measured is in {options.output}")
    lost = [row for row in document["rows"] if "failure" in row]
    print(f"{options.output}: {len(document['rows'])} rows, {len(lost)} failed or not run")
    return 1 if len(lost) == len(document["rows"]) else 0


if __name__ == "__main__":
    sys.exit(main())
