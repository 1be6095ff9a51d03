#!/usr/bin/env python3
"""Fits the constants of compiler/cost.cpp to measured candidates, and says how far the model is off.

    fit_cost.py ROWJIT DOCUMENT... [--target sm_90a] [--check]

DOCUMENT is what `rowjit tune --json` printed, of operations (`--op`) or of a model, whose configuration's name is then part
of the document's. The terms of each candidate come from `rowjit explain --json`; the formula stands here once more, and is
held against the program's own predictions first. --check fits nothing. Needs scipy.
"""

import argparse
import json
import math
import pathlib
import re
import subprocess
import sys

import numpy
import scipy.optimize

SOURCE = pathlib.Path(__file__).resolve().parent.parent
MODELS = SOURCE / "examples/models"
# As in compiler/cost.cpp, with the bounds within which a fit may move them.
CONSTANTS = {
    "launch_us": (2.4999, 2.5001),  # measured by itself: no kernel here is short enough to tell
    "memory": (0.9, 1.3),
    "again": (0.05, 1.5),
    "issue": (0.05, 3),
    "special": (0.05, 3),
    "load_us": (0.1, 4),
    "fetched_us": (0.05, 4),
    "bare_us": (0.05, 8),
    "block_us": (0.01, 4),
    "cluster_us": (0.01, 6),
    "serial": (0.05, 2),
    "overlap": (1, 8),
}


def predicted_us(terms, c):
    """predicted_us() of compiler/cost.cpp, for arrays of terms."""
    memory = c["memory"] * terms["memory_us"] + c["again"] * terms["again_us"]
    issue = c["issue"] * terms["issue_us"] + c["special"] * terms["special_us"]
    turn = (c["load_us"] * terms["loads"] + c["fetched_us"] * terms["fetched"] + c["bare_us"] * terms["bare_turns"] +
            c["block_us"] * terms["block_meetings"] + c["cluster_us"] * terms["cluster_meetings"])
    own = (memory * (1 - terms["fetched"]) + issue) / terms["blocks_at_once"]
    serial = terms["turns"] * turn + c["serial"] * own
    p = c["overlap"]
    return c["launch_us"] + (memory**p + issue**p + serial**p)**(1 / p)


def words_of(record, document):
    """Of `rowjit explain`, for the job of a record."""
    words = [option for option in ("backward", "joint") if record["kernel"].endswith(" " + option)]
    words = ["--" + word for word in words] + ["--tokens", record["shape"].split("x")[0]]
    named = re.match(r"(\w+) (\d+) (\w+)", record["kernel"])
    if named:
        return ["--op", named[1], "--columns", named[2], "--dtype", named[3], *words]
    plain = re.sub(r"\W", "", document)
    model = next(path for path in sorted(MODELS.glob("*.json")) if re.sub(r"\W", "", path.stem) in plain)
    return ["--model", str(model), *words]


def candidates(program, path, target):
    """Every candidate that was timed: its kernel, schedule, terms, and microseconds. The terms say whether this program's
    static rule chooses it."""
    explained = {}
    for record in json.loads(path.read_text(encoding="utf-8"))["records"]:
        for kernel in record.get("tuned", []):
            words = words_of(record, path.stem)
            if tuple(words) not in explained:
                done = subprocess.run([program, "explain", "--json", "--cache-dir", "off", "--target", target, *words],
                                      capture_output=True, text=True, check=True)
                explained[tuple(words)] = {row["job"]: row for row in json.loads(done.stdout)["records"]}
            jobs = explained[tuple(words)]
            job = jobs.get(record["kernel"])
            if job is None:
                continue
            offers = {offer["schedule"]: offer["cost"] for row in job["kernels"] if row["kernel"] == kernel["kernel"]
                      for offer in row["offers"] if "cost" in offer}
            for timed in kernel["timed"]:
                if terms := offers.get(timed["schedule"]):
                    terms["static"] = timed["schedule"] == next(iter(offers))
                    yield f"{path.stem} {record['kernel']} {kernel['kernel']}", timed["schedule"], terms, 1e3 * timed["ms"]


def columns_of(rows):
    names = rows[0][2].keys()
    return {name: numpy.array([terms[name] for _, _, terms, _ in rows], dtype=float) for name in names}


def check_formula(rows):
    """Ends the program where this file's formula, with the constants of compiler/cost.cpp, predicts something else."""
    text = (SOURCE / "compiler/cost.cpp").read_text(encoding="utf-8")
    constants = {name: float(re.search(rf"double {name} = ([\d.]+);", text)[1]) for name in CONSTANTS}
    for us, (_, schedule, terms, _) in zip(predicted_us(columns_of(rows), constants), rows):
        if abs(us / terms["predicted_us"] - 1) > 1e-6:
            sys.exit(f"fit_cost.py: {schedule}: {us} us here, {terms['predicted_us']} us by {SOURCE / 'compiler/cost.cpp'}")


def fit(rows):
    terms, measured = columns_of(rows), numpy.array([us for *_, us in rows])
    low, high = (numpy.log([bounds[i] for bounds in CONSTANTS.values()]) for i in (0, 1))

    def residuals(logs):
        return numpy.log(predicted_us(terms, dict(zip(CONSTANTS, numpy.exp(logs)))) / measured)

    found = scipy.optimize.least_squares(residuals, (low + high) / 2, bounds=(low, high), loss="soft_l1", f_scale=0.1)
    return dict(zip(CONSTANTS, numpy.exp(found.x)))


def report(rows, predictions, title):
    logs = [math.log(us / measured) for us, (*_, measured) in zip(predictions, rows)]
    size = sorted(abs(log) for log in logs)
    worst = max(range(len(logs)), key=lambda i: abs(logs[i]))
    print(f"{title}: {len(rows)} candidates, off by a factor of {math.exp(sum(size) / len(size)):.3f} in the geometric mean, "
          f"{math.exp(size[len(size) * 9 // 10]):.3f} for one in ten, {math.exp(size[-1]):.3f} at worst "
          f"({rows[worst][0]}: {rows[worst][1]}, measured {rows[worst][3]:.1f} us, predicted {predictions[worst]:.1f})")


def report_choices(rows, predictions):
    """What taking the candidate that is predicted to be fastest costs, beside the static rule's choice, of kernels where
    that was timed."""
    kernels = {}
    for (kernel, _, terms, measured), us in zip(rows, predictions):
        kernels.setdefault(kernel, []).append((us, measured, terms["static"]))
    ratios = {"static rule": [], "model": []}
    for tried in kernels.values():
        rule = [measured for _, measured, is_static in tried if is_static]
        if not rule:
            continue
        best = min(measured for _, measured, _ in tried)
        ratios["static rule"].append(rule[0] / best)
        ratios["model"].append(min(tried)[1] / best)
    for chooser, values in ratios.items():
        mean = math.exp(sum(map(math.log, values)) / len(values))
        print(f"  chosen by the {chooser}: {mean:.4f} of the best candidate's time in the geometric mean, "
              f"{max(values):.3f} at worst, {len(values)} kernels")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("documents", nargs="+", type=pathlib.Path)
    parser.add_argument("--target", default="sm_90a")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    rows = [row for path in options.documents for row in candidates(options.program, path, options.target)]
    if not rows:
        sys.exit("fit_cost.py: no candidate of the documents is offered by this program")
    check_formula(rows)
    own = [terms["predicted_us"] for _, _, terms, _ in rows]
    report(rows, own, "the program's constants")
    report_choices(rows, own)
    if options.check:
        return
    constants = fit(rows)
    print("fitted:", ", ".join(f"{name} {value:.4g}" for name, value in constants.items()))
    predictions = list(predicted_us(columns_of(rows), constants))
    report(rows, predictions, "fitted constants")
    report_choices(rows, predictions)


if __name__ == "__main__":
    main()
