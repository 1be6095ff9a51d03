#!/usr/bin/env python3
"""Runs `rowjit bench --json` and keeps its document in a file named by the day, the device and what was measured:
2026-11-21-nvidia-h200-bench-all.json. A second run of the day replaces the first. What was asked for stands in the
document, so that it can be repeated; paths of this machine do not.

    keep.py ROWJIT RESULTS_DIRECTORY [ARGUMENT OF rowjit bench…]
"""

import argparse
import datetime
import json
import pathlib
import re
import subprocess
import sys

def slug(text):
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")


def device_slug(description):
    """'nvidia-h200' of 'cuda:0 NVIDIA H200, driver 13.0'; 'amd-epyc-2-threads' of 'cpu AMD EPYC, 2 threads'."""
    return slug(re.sub(r", driver .*", "", description.partition(" ")[2]))


def without_directories(words):
    """Files by their names alone."""
    return [pathlib.Path(word).name if "/" in word else word for word in words]


def measured(arguments):
    """'llama-3-8b', 'rms-norm-softmax', 'all': what the arguments name to work on; '' when they name nothing."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for option in ("--model", "--graph", "--op"):
        parser.add_argument(option, default="")
    known = vars(parser.parse_known_args(arguments)[0])
    return slug("-".join(pathlib.Path(value).name.removesuffix(".json").removesuffix(".rj") for value in known.values()))


def write_whole(text, path):
    """The whole file or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def main():
    program, results, arguments = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3:]
    if not measured(arguments):
        arguments = ["--op", "all", *arguments]
    run = subprocess.run([program, "bench", "--json", *arguments], stdout=subprocess.PIPE, text=True, check=False)
    try:
        document = json.loads(run.stdout)
    except ValueError:
        sys.stdout.write(run.stdout)  # --help, or nothing where the command was refused
        return run.returncode
    document = {"date": datetime.date.today().isoformat(), "arguments": without_directories(arguments)} | document
    for record in document["records"]:
        record["kernel"] = pathlib.Path(record["kernel"]).name
    path = results / f"{document['date']}-{device_slug(document['device'])}-bench-{measured(arguments)}.json"
    try:
        write_whole(json.dumps(document, indent=2) + "\n", path)
    except OSError as error:
        print(f"keep.py: '{path}' cannot be written: {error.strerror}; free space or check its permissions",
              file=sys.stderr)
        return 7
    print(f"{path}: {len(document['records'])} records")
    return run.returncode


if __name__ == "__main__":
    sys.exit(main())
