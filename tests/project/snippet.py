#!/usr/bin/env python3
"""Takes the one ```cpp block of a document apart, so that a program can be compiled around it: OUTPUT_head.h gets the lines
that stand outside functions (#include, using), OUTPUT_body.h the statements. A second block is an error: it would not be
compiled.

    snippet.py DOCUMENT OUTPUT
"""

import pathlib
import re
import sys


def main():
    document, output = sys.argv[1:]
    blocks = re.findall(r"^```cpp\n(.*?)^```$", pathlib.Path(document).read_text(encoding="utf-8"), re.M | re.S)
    if len(blocks) != 1:
        sys.exit(f"{document}: {len(blocks)} blocks of C++; tests/project compiles exactly one")
    parts = {"head": [], "body": []}
    for line in blocks[0].splitlines():
        parts["head" if re.match(r"#include|using ", line) else "body"].append(line)
    for part, lines in parts.items():
        pathlib.Path(f"{output}_{part}.h").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
