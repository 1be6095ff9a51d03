#!/usr/bin/env python3
"""The project's rules that no compiler checks: who may include whom, what is listed where, what may not be written.

Each rule is a function from a Tree to findings, "file:line: what is wrong and what to do"; RULES at the end is the list.
rules_test.py plants a violation of each. Formatting and naming are clang-format's and clang-tidy's.
"""

import collections
import pathlib
import posixpath
import re
import subprocess
import sys

# A folder may include itself and what stands to its left; folders in one set do not see each other.
ORDER = [{"include"}, {"base"}, {"dsl"}, {"compiler"}, {"cache"}, {"runtime"}, {"tools", "python"}]
LAYER = {folder: layer for layer, folders in enumerate(ORDER) for folder in folders}
CPP = (".h", ".cpp", ".def")


class Tree:
    """The files of a checkout that git tracks or would track, by path relative to its root."""

    def __init__(self, root, paths=None):
        self.root = pathlib.Path(root).resolve()
        if paths is None:
            listing = subprocess.run(
                ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                cwd=self.root, check=True, capture_output=True, text=True).stdout
            paths = [path for path in listing.split("\0") if path and (self.root / path).is_file()]
        self.paths = sorted(set(paths))

    def ending(self, *suffixes):
        return [path for path in self.paths if path.endswith(suffixes)]

    def text(self, path):
        return (self.root / path).read_text(encoding="utf-8", errors="replace")

    def lines(self, path):
        return enumerate(self.text(path).splitlines(), start=1)


def folder_of(path):
    return path.split("/", 1)[0] if "/" in path else ""


def is_product(path):
    return folder_of(path) in LAYER


# --- The rules -------------------------------------------------------------------------------------------------------

INCLUDE = re.compile(r'\s*#\s*include\s*([<"])([^>"]+)[>"]')


def include_direction(tree):
    for path in tree.ending(*CPP):
        folder = folder_of(path)
        for number, line in tree.lines(path):
            match = INCLUDE.match(line)
            if match and (complaint := include_complaint(folder, *match.groups())):
                yield f"{path}:{number}: {complaint}"


# What is embedded and no template, and the folder that reads it: docs/coverage.json, runtime/choices_….json.
EMBEDDED_DATA = {
    "embedded/coverage.h": "tools",
    "embedded/choices_h100.h": "runtime",
    "embedded/choices_h200.h": "runtime",
    "embedded/choices_sm_90a.h": "runtime",
}


def include_complaint(folder, bracket, included):
    """What is wrong with `included` in a file of `folder`, or None."""
    if bracket == "<":
        third_party = "/" in included and not included.startswith("sys/")
        return f"a public header cannot require {included} of its users" if folder == "include" and third_party else None
    target = {"rowjit": "include", "embedded": "templates"}.get(folder_of(included), folder_of(included))
    if folder == "examples":
        return None if target == "include" else f"an example shows the public headers only, not {included}"
    if folder not in LAYER:
        return None
    if target == "templates":
        if EMBEDDED_DATA.get(included) == folder:
            return None
        embedded = included.startswith("embedded/") and folder == "compiler"
        return None if embedded else f"{included}: templates are embedded into compiler/ and included nowhere"
    if target not in LAYER:
        return f"write {included} from the project's root"
    if target == folder or LAYER[target] < LAYER[folder]:
        return None
    return f"{folder}/ may not include {included}; move the type to the left of both"


def sources_listed_once(tree):
    """Build files list sources by name, so that a forgotten or twice-compiled file shows."""
    listed = collections.Counter()
    places = {}
    for build_file in tree.ending("CMakeLists.txt"):
        directory = pathlib.PurePosixPath(build_file).parent
        for number, line in tree.lines(build_file):
            for token in re.findall(r'[^\s()"]+\.cpp\b', line.split("#", 1)[0]):
                if token.startswith("${CMAKE_SOURCE_DIR}/"):
                    source = token.removeprefix("${CMAKE_SOURCE_DIR}/")
                elif "$" in token:
                    continue
                else:
                    source = posixpath.normpath(directory / token)
                listed[source] += 1
                places.setdefault(source, f"{build_file}:{number}")
    present = set(tree.ending(".cpp"))
    for source in sorted(present - listed.keys()):
        yield f"{source}:1: no CMakeLists.txt lists this file"
    for source in sorted(listed.keys() - present):
        yield f"{places[source]}: lists {source}, which does not exist"
    for source, times in sorted(listed.items()):
        # A fixture may be part of several test programs.
        if times > 1 and not source.startswith("tests/"):
            yield f"{places[source]}: {source} is listed {times} times"


# A user of one letter is an example's.
MACHINE_PATH = re.compile(r"(?<![\w.)}$*-])/(?:home/\w\w|(?:root|work|Users|mnt|scratch)/[\w.])")


def no_machine_paths(tree):
    own = {str(tree.root), str(pathlib.Path.home())} - {"/"}
    for path in tree.paths:
        for number, line in tree.lines(path):
            if MACHINE_PATH.search(line) or any(place + "/" in line for place in own):
                yield f"{path}:{number}: an absolute path of one machine"


ENVIRONMENT_LITERAL = re.compile(r'["\'](ROWJIT_[A-Z0-9_]+)["\']')


def environment_documented(tree):
    """Every variable the programs read stands in the documentation, and the documentation names no other."""
    documents = [path for path in tree.ending(".md") if path == "README.md" or path.startswith("docs/")]
    documented = set(re.findall(r"\bROWJIT_[A-Z0-9_]+", "\n".join(map(tree.text, documents))))
    for path in tree.ending(".h", ".cpp", ".py"):
        if path.startswith("tests/project/"):
            continue  # the planted violations of these rules
        for number, line in tree.lines(path):
            # A test also names variables to set them, misspelt ones among them.
            reads = is_product(path) or "getenv" in line
            for name in ENVIRONMENT_LITERAL.findall(line) if reads else []:
                if name not in documented:
                    yield f"{path}:{number}: {name} is read here and stands in no documentation"
    sources = "\n".join(tree.text(path) for path in tree.paths if not path.endswith(".md"))
    known = set(re.findall(r"\bROWJIT_[A-Z0-9_]+", sources))
    for path in documents:
        for number, line in tree.lines(path):
            for name in re.findall(r"\bROWJIT_[A-Z0-9_]+", line):
                if name not in known:
                    yield f"{path}:{number}: {name} is documented and nothing reads it"


COPY_LINES = 8


def no_copies(tree):
    """The same run of statements in two places is one fact too many."""
    seen = {}
    reported = set()
    for path in filter(is_product, tree.ending(".h", ".cpp")):
        code = [(number, line.strip()) for number, line in tree.lines(path)]
        code = [(number, line) for number, line in code
                if re.search(r"\w", line) and not line.startswith(("//", "#include", "}", "namespace"))]
        for start in range(len(code) - COPY_LINES + 1):
            window = tuple(line for _, line in code[start:start + COPY_LINES])
            first = seen.setdefault(window, (path, code[start][0]))
            if first != (path, code[start][0]) and (path, first[0]) not in reported:
                reported.add((path, first[0]))
                yield f"{path}:{code[start][0]}: {COPY_LINES} lines or more repeat {first[0]}:{first[1]}"


def one_reader_of_the_environment(tree):
    """The table in base/environment.cpp decides what a variable of ours accepts and means; nobody reads one past it."""
    for path in filter(is_product, tree.ending(".h", ".cpp")):
        for number, line in tree.lines(path):
            if "getenv" in line and "ROWJIT_" in line:
                yield f"{path}:{number}: read this through base/environment.h"


VAGUE_NAME = re.compile(r"(?:^|[/_])(?:helpers?|utils?|misc|common|managers?)(?=[/_.]|$)")
UNFINISHED = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X)\b")


def named_and_finished(tree):
    for path in tree.paths:
        if VAGUE_NAME.search(path):
            yield f"{path}:1: the name says nothing; name the file after what it holds"
    for path in tree.ending(".h", ".cpp", ".def", ".py", ".cmake", "CMakeLists.txt"):
        for number, line in tree.lines(path):
            if UNFINISHED.search(line):
                yield f"{path}:{number}: unfinished work is an issue, not a comment"


def headers_open_with_why(tree):
    for path in filter(is_product, tree.ending(".h")):
        text = tree.text(path)
        if not text.startswith(("//", "/*")):
            yield f"{path}:1: a header opens with a comment that says why it exists"
        # The C header is read by C compilers older than the pragma and by tools that know guards only.
        if "#pragma once" not in text and not path.endswith("_c.h"):
            yield f"{path}:1: #pragma once is missing"


RULES = [include_direction, sources_listed_once, no_machine_paths, environment_documented, one_reader_of_the_environment,
         no_copies, named_and_finished, headers_open_with_why]


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[2]
    tree = Tree(root)
    findings = [f"{finding} [{rule.__name__}]" for rule in RULES for finding in rule(tree)]
    print("\n".join(findings + [f"{len(RULES)} rules, {len(tree.paths)} files, {len(findings)} findings"]))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
