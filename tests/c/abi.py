#!/usr/bin/env python3
"""Compares the C ABI with the one that is kept in abi.txt: every function of the header with its prototype, the layout
of every struct and the value of every constant, and that the library exports those functions and nothing else.

    abi.py HEADER LIBRARY KEPT C_COMPILER [--write]

--write keeps what is found. What only adds lines is compatible. A line that changes or goes breaks programs built
before: raise ROWJIT_ABI_VERSION, the SOVERSION and the symbol version of rowjit_c.map.
"""

import difflib
import pathlib
import re
import subprocess
import sys
import tempfile


def without_comments(text):
    return re.sub(r"/\*.*?\*/", " ", text, flags=re.S)


def one_line(text):
    return " ".join(text.split())


def functions(header):
    """Prototypes by name."""
    found = re.findall(r"^ROWJIT_API\s+([^;]*?(\w+)\s*\([^;]*\));", header, flags=re.M)
    return {name: one_line(prototype) for prototype, name in found}


def structs(header):
    """Names of the members of each struct."""
    found = re.findall(r"typedef struct (\w+) \{(.*?)\} \w+;", header, flags=re.S)
    return {name: re.findall(r"(\w+)(?:\[\w+\])?\s*;", members) for name, members in found}


def constants(header):
    enumerators = [name for body in re.findall(r"enum \{(.*?)\}", header, flags=re.S)
                   for name in re.findall(r"\b(ROWJIT_\w+)\s*=", body)]
    return re.findall(r"#define (ROWJIT_\w+) +[(\d]", header) + enumerators


def layout(header_path, header, compiler):
    """Lines that only a C compiler can tell."""
    program = ["#include <stddef.h>", "#include <stdio.h>", f'#include "{header_path}"', "int main(void) {"]
    for name, members in structs(header).items():
        program.append(f'printf("struct {name} %zu bytes\\n", sizeof({name}));')
        program += [f'printf("  {member} at %zu, %zu\\n", offsetof({name}, {member}), sizeof((({name}*)0)->{member}));'
                    for member in members]
    program += [f'printf("{name} = %d\\n", (int){name});' for name in constants(header)]
    with tempfile.TemporaryDirectory() as scratch:
        source, binary = pathlib.Path(scratch, "layout.c"), pathlib.Path(scratch, "layout")
        source.write_text("\n".join([*program, "return 0;", "}"]), encoding="utf-8")
        subprocess.run([compiler, "-std=c11", source, "-o", binary], check=True)
        return subprocess.run([binary], check=True, capture_output=True, text=True).stdout.splitlines()


def exported(library):
    """Symbols that the library defines for others, and the versions they bear. Some linkers list a version by itself."""
    lines = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True,
                           text=True).stdout.splitlines()
    symbols = [words[-1].partition("@@") for words in map(str.split, lines) if words[-2] != "A"]
    return {name for name, _, _ in symbols}, {version for _, _, version in symbols}


def main():
    header_path, library, kept, compiler = map(pathlib.Path, sys.argv[1:5])
    header = without_comments(header_path.read_text(encoding="utf-8"))
    prototypes = functions(header)
    names, versions = exported(library)
    problems = [f"{name} is exported and not in the header" for name in sorted(names - prototypes.keys())]
    problems += [f"{name} is in the header and not exported" for name in sorted(prototypes.keys() - names)]
    version = re.search(r"#define ROWJIT_ABI_VERSION (\d+)", header)[1]
    if f"ROWJIT_{version}" not in versions:
        problems.append(f"rowjit_c.map names {', '.join(sorted(versions))} and the header version {version}")
    found = [f"{prototype};" for prototype in prototypes.values()] + layout(header_path.resolve(), header, compiler)
    if "--write" in sys.argv:
        kept.write_text("\n".join(found) + "\n", encoding="utf-8")
    before = kept.read_text(encoding="utf-8").splitlines() if kept.exists() else []
    problems += difflib.unified_diff(before, found, str(kept.name), "the header", lineterm="", n=0)
    print("\n".join(problems) if problems else f"{len(prototypes)} functions, {len(structs(header))} structs: as kept")
    if problems:
        print("Where that is meant, run this again with --write; see its first lines for what else a break asks for.")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
