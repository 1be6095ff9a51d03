#!/usr/bin/env python3
"""Runs the commands that the documentation prints, so that none of them lies.

In a ```console block every line "$ command" is run by bash, in order, in one clean directory per document that holds
`examples` and nothing else, with the built programs first on the PATH, an empty home and an empty kernel cache. Lines
without "$ " are output and not compared: they hold times. A comment on the line before the block changes that:

    <!-- not run: REASON -->    the block is skipped and the reason printed
    <!-- exits: N -->           each command of the block must exit with N
"""

import dataclasses
import os
import pathlib
import re
import subprocess
import sys
import tempfile

TIMEOUT_S = 300


@dataclasses.dataclass
class Block:
    line: int
    commands: list
    exit_code: int = 0
    not_run: str = ""


def blocks(text):
    """The console blocks of a document."""
    found, current, comment = [], None, ""
    for number, line in enumerate(text.splitlines(), start=1):
        if current is not None:
            if line.strip() == "```":
                found.append(current)
                current = None
            elif line.startswith("$ "):
                current.commands.append(line[2:])
            elif current.commands and current.commands[-1].endswith("\\"):
                current.commands[-1] += "\n" + line
        elif line.strip() == "```console":
            current = Block(number, [])
            if match := re.fullmatch(r"<!-- not run: (.+) -->", comment):
                current.not_run = match[1]
            elif match := re.fullmatch(r"<!-- exits: (\d+) -->", comment):
                current.exit_code = int(match[1])
        comment = line.strip() if line.strip() or current is not None else comment
    if current is not None:
        found.append(current)
    return found


def run(document, programs, examples):
    """Runs one document's blocks; returns how many commands ran and what went wrong."""
    ran, failures = 0, []
    with tempfile.TemporaryDirectory() as scratch:
        work, home = pathlib.Path(scratch, "work"), pathlib.Path(scratch, "home")
        work.mkdir()
        home.mkdir()
        if examples.exists():
            (work / "examples").symlink_to(examples)
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("ROWJIT_", "XDG_"))}
        environment |= {"HOME": str(home), "ROWJIT_CACHE_DIR": str(home / "cache"),
                        "PATH": f"{programs}{os.pathsep}{environment['PATH']}"}
        for block in blocks(document.read_text(encoding="utf-8")):
            if block.not_run:
                print(f"{document.name}:{block.line}: not run: {block.not_run}")
                continue
            for command in block.commands:
                ran += 1
                try:
                    result = subprocess.run(["bash", "-c", command], cwd=work, env=environment, timeout=TIMEOUT_S,
                                            stdin=subprocess.DEVNULL, capture_output=True, text=True)
                    code, output = result.returncode, result.stdout + result.stderr
                except subprocess.TimeoutExpired:
                    code, output = "none", f"still running after {TIMEOUT_S} s"
                if code != block.exit_code:
                    failures.append(f"{document.name}:{block.line}: $ {command}\n"
                                    f"exit code {code}, not {block.exit_code}\n{output[-2000:]}")
    return ran, failures


def main():
    root, programs = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    total, failures = 0, []
    for document in [root / "README.md", *sorted((root / "docs").rglob("*.md"))]:
        ran, failed = run(document, programs, root / "examples")
        total += ran
        failures += failed
    print("\n".join(failures + [f"{total} commands, {len(failures)} failed"]))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
