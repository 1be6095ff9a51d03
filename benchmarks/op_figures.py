#!/usr/bin/env python3
"""Figures of every operation: documents of `rowjit bench --json` made one small one, and of the newest small one of each
device docs/ops-figures.md.

    op_figures.py keep RESULTS_DIRECTORY DOCUMENT… [--note TEXT]
    op_figures.py page [--check]

A document holds forwards or backwards, of all operations or of some; what `keep` writes is named by day and device as
keep.py names its own. `page --check` fails where the page is not what the documents make.
"""

import argparse
import datetime
import itertools
import json
import pathlib
import sys

import keep

ROOT = pathlib.Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results"
PAGE = ROOT / "docs/ops-figures.md"
SUFFIX = "-op-figures.json"
FIELDS = ("op", "shape", "dtype", "launches", "bytes", "ms", "percent_of_copy", "error", "eager_error", "within_bar", "failure")
DTYPES = ("bf16", "f32")

HEAD = f"""# Figures of every operation

The time of every operation, forward and derived backward, with default options at a width that models have, untuned, as
`rowjit bench --json --op NAME… --dtype {",".join(DTYPES)} [--backward]` measured it. There is one table for each device, of its newest
run. [performance.md](performance.md) says what limits the slow ones, and has other widths, tuning and other libraries.

- `shape`, `least MB` and `kernels` are of {DTYPES[0]}. `least MB` is every input read once and every output written once;
  [plans.md](plans.md) has the bytes that the kernels are planned to move.
- `% of copy` is the time of a copy of the fewest bytes that the operation must move over the operation's time, the two
  interleaved in one process.
- `error / eager` is the worst error of a few rows, in units in the last place, of rowjit and, behind the slash, of PyTorch eager's
  rounding points. `outside` marks an error past the bar, which for a loss, one number of a few rows, is chance in part.

Made by `benchmarks/op_figures.py page` from documents under `benchmarks/results/`; a test compares the two.
"""


def small(documents, note):
    """Of each record what the page and a comparison need; of one measured again, what the last document says."""
    devices = {document["device"] for document in documents}
    if len(devices) != 1:
        raise SystemExit(f"op_figures.py: documents of several devices, {sorted(devices)}; keep them apart")
    records = {}
    for document in documents:
        for record in document["records"]:
            of = tuple(record[field] for field in ("op", "shape", "dtype"))
            records[of] = {field: record[field] for field in FIELDS if field in record}
    return {"date": datetime.date.today().isoformat(), "device": devices.pop(), "note": note,
            "records": list(records.values())}


def one_record_a_line(document):
    head = json.dumps(document | {"records": []}, indent=1).removesuffix("[]\n}")
    return head + "[\n" + ",\n".join(json.dumps(record) for record in document["records"]) + "\n]}\n"


def newest_of_each_device():
    found = {}
    for path in sorted(RESULTS.glob("*" + SUFFIX)):
        document = json.loads(path.read_text(encoding="utf-8"))
        found[keep.device_slug(document["device"])] = (path, document)
    return found.values()


def cells(record):
    """ms, % of copy and errors of one record; blanks where there is none."""
    if record is None:
        return ["", "", ""]
    if "failure" in record:
        return ["failed", "", ""]
    errors = f"{record['error']:.2f} / {record['eager_error']:.2f}"
    return [f"{record['ms']:.3f}", f"{record['percent_of_copy']:.0f}", errors + ("" if record["within_bar"] else " outside")]


def line(op, records):
    """One operation's forward or backward in every dtype."""
    of = {record["dtype"]: record for record in records}
    first = records[0]
    name, _, direction = op.partition(" ")
    columns = [name, direction or "forward", first["shape"], str(first["launches"]), f"{first.get('bytes', 0) / 1e6:.1f}"]
    return "| " + " | ".join(columns + list(itertools.chain(*(cells(of.get(dtype)) for dtype in DTYPES)))) + " |\n"


def table(path, document):
    note = f" {document['note']}" if document["note"] else ""
    heads = ["operation", "", "shape", "kernels", "least MB"]
    heads += itertools.chain(*([f"{dtype} ms", "% of copy", "error / eager"] for dtype in DTYPES))
    text = f"\n## {document['device'].partition(' ')[2]}, {document['date']}\n\n`{path.name}`.{note}\n\n"
    text += "| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|\n"
    records = {}
    for record in document["records"]:
        records.setdefault(record["op"], []).append(record)
    order = {name: position for position, name in enumerate(dict.fromkeys(op.partition(" ")[0] for op in records))}
    for op in sorted(records, key=lambda op: (order[op.partition(" ")[0]], " " in op)):
        text += line(op, records[op])
    return text


def page():
    return HEAD + "".join(table(path, document) for path, document in newest_of_each_device())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    keeping = commands.add_parser("keep")
    keeping.add_argument("results", type=pathlib.Path)
    keeping.add_argument("documents", type=pathlib.Path, nargs="+")
    keeping.add_argument("--note", default="", help="what a reader must know of the machine, such as that it was busy")
    paging = commands.add_parser("page")
    paging.add_argument("--check", action="store_true")
    arguments = parser.parse_args()

    if arguments.command == "keep":
        document = small([json.loads(path.read_text(encoding="utf-8")) for path in arguments.documents], arguments.note)
        path = arguments.results / f"{document['date']}-{keep.device_slug(document['device'])}{SUFFIX}"
        keep.write_whole(one_record_a_line(document), path)
        print(f"{path}: {len(document['records'])} records")
        return 0
    made = page()
    if not arguments.check:
        keep.write_whole(made, PAGE)
        return 0
    if PAGE.read_text(encoding="utf-8") == made:
        return 0
    print("docs/ops-figures.md is not what benchmarks/results/ makes; run benchmarks/op_figures.py page", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
