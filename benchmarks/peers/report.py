#!/usr/bin/env python3
"""Makes one page of what peers.py found: charts as inline SVG, every number in a table, nothing loaded from elsewhere.

    report.py PAGE.html FILE.json…

Several files, of one machine, are shown together: a row that several hold is taken from the last, and of a sweep the
last row of an operation and width.
"""

import html
import json
import math
import pathlib
import sys

COLOURS = {"ours": "#0b62c4", "ours, one pass": "#3fa7f0", "aten": "#6f7782", "eager": "#b3a892", "compile": "#d97a1d",
           "liger": "#4d9a45", "quack": "#8d4bb0"}
LABELS = {"ours": "rowjit", "ours, one pass": "rowjit, one pass", "aten": "torch's fused op", "eager": "torch eager",
          "compile": "torch.compile", "liger": "Liger", "quack": "quack"}
PARTS = {"forward": "forward", "backward": "backward", "both": "forward + backward"}
CEILING = 150  # percent of copy; what passes it, by reading much and writing little, is drawn there
PEERS = ("eager", "aten", "compile", "liger", "quack")

STYLE = """
:root { color-scheme: light dark; --ink: #1d2430; --soft: #667; --line: #d8dce3; --page: #fff; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ef; --soft: #9aa3b2; --line: #39404d; --page: #14181f; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); max-width: 76rem;
       margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
svg text { font: 11px system-ui, sans-serif; fill: var(--ink); } svg .soft { fill: var(--soft); }
svg .grid { stroke: var(--line); } svg .copy { stroke: var(--soft); stroke-dasharray: 4 3; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(22rem, 1fr)); gap: 1rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { padding: .15rem .6rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child, td.words { text-align: left; } td.best { font-weight: 650; } td.bad { color: #c22f2f; }
.key span { display: inline-block; margin-right: 1.1rem; } .key i { display: inline-block; width: .8rem; height: .8rem;
       margin-right: .35rem; vertical-align: -1px; }
"""


def text(value):
    return html.escape(str(value))


def ours_of(part):
    """The fastest of rowjit's ways."""
    return min((entry["ms"] for name, entry in part.items() if name.startswith("ours")), default=None)


def best_peer(part):
    return min(((entry["ms"], name) for name, entry in part.items() if name in PEERS), default=None)


def percent_of_copy(part, name):
    return 100 * part["copy"]["ms"] / part[name]["ms"] if "copy" in part and name in part else None


def key(names):
    return ('<p class="key">' + "".join(f'<span><i style="background:{COLOURS[name]}"></i>{LABELS[name]}</span>'
                                        for name in names) + "</p>")


def columns_label(columns):
    return f"{columns // 1024}K" if columns >= 1024 else str(columns)


def line_chart(title, series):
    """Percent of copy over columns; `series` is name → [(columns, percent)]."""
    width, height, left, top, bottom = 360, 230, 38, 26, 24
    points = [point for found in series.values() for point in found]
    low, high = (math.log2(function(columns for columns, _ in points)) for function in (min, max))
    ceiling = min(CEILING, max(110, 10 * math.ceil(max(percent for _, percent in points) / 10)))

    def x(columns):
        return left + (width - left - 12) * ((math.log2(columns) - low) / (high - low) if high > low else 0.5)

    def y(percent):
        return top + (height - top - bottom) * (1 - min(percent, ceiling) / ceiling)

    parts = [f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{text(title)}">',
             f'<text x="{left}" y="15" font-weight="600">{text(title)}</text>']
    for percent in range(0, ceiling + 1, 25):
        line = "copy" if percent == 100 else "grid"
        parts.append(f'<line class="{line}" x1="{left}" x2="{width - 12}" y1="{y(percent):.1f}" y2="{y(percent):.1f}"/>'
                     f'<text class="soft" x="{left - 5}" y="{y(percent) + 4:.1f}" text-anchor="end">{percent}</text>')
    for columns in sorted({columns for columns, _ in points}):
        parts.append(f'<text class="soft" x="{x(columns):.1f}" y="{height - 8}" text-anchor="middle">'
                     f'{columns_label(columns)}</text>')
    for name, found in series.items():
        line = " ".join(f"{x(columns):.1f},{y(percent):.1f}" for columns, percent in found)
        thick = 2.4 if name.startswith("ours") else 1.4
        parts.append(f'<polyline points="{line}" fill="none" stroke="{COLOURS[name]}" stroke-width="{thick}"/>')
        parts += [f'<circle cx="{x(columns):.1f}" cy="{y(percent):.1f}" r="2.6" fill="{COLOURS[name]}">'
                  f'<title>{LABELS[name]}, {columns} columns: {percent:.0f} % of copy</title></circle>'
                  for columns, percent in found]
    return "".join(parts) + "</svg>"


def bar_chart(title, values, unit, digits):
    """`values` is name → number; each chart has its own scale."""
    width, row, left = 360, 17, 112
    height = 24 + row * len(values)
    largest = max(values.values()) or 1
    parts = [f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{text(title)}">',
             f'<text x="0" y="14" font-weight="600">{text(title)}</text>']
    for place, (name, value) in enumerate(values.items()):
        y, length = 22 + row * place, max(1, (width - left - 74) * value / largest)
        parts.append(f'<text x="{left - 6}" y="{y + 11}" text-anchor="end">{LABELS[name]}</text>'
                     f'<rect x="{left}" y="{y + 1}" width="{length:.1f}" height="{row - 4}" fill="{COLOURS[name]}"/>'
                     f'<text class="soft" x="{left + length + 5:.1f}" y="{y + 11}">{value:.{digits}f} {unit}</text>')
    return "".join(parts) + "</svg>"


def sweep_charts(rows):
    charts, used = [], set()
    for op in dict.fromkeys(row["op"] for row in rows):
        for part in PARTS:
            series = {}
            for row in sorted((row for row in rows if row["op"] == op), key=lambda row: row["columns"]):
                found = row["parts"].get(part, {})
                for name in COLOURS:
                    percent = percent_of_copy(found, name)
                    if percent is not None:
                        series.setdefault(name, []).append((row["columns"], percent))
            if series:
                used |= series.keys()
                charts.append(line_chart(f"{op}, {PARTS[part]}", series))
    return section("Percent of copy against columns",
                   "A copy of the fewest bytes the operation must move, in the same process, is 100. Forward and backward "
                   "together count what both must move.", used, charts)


def bars(rows, heading, words, part, number, unit, digits):
    charts, used = [], set()
    for row in rows:
        found = row["parts"].get(part, {})
        values = {name: found[name][number] for name in COLOURS if name in found and number in found[name]}
        if values:
            used |= values.keys()
            charts.append(bar_chart(row["name"], values, unit, digits))
    return section(heading, words, used, charts)


def section(heading, words, used, charts):
    if not charts:
        return ""
    names = [name for name in COLOURS if name in used]
    return (f"<h2>{heading}</h2><p>{words}</p>{key(names)}<div class=\"charts\">"
            + "".join(f"<div>{chart}</div>" for chart in charts) + "</div>")


def table(rows):
    names = [name for name in COLOURS if any(name in part for row in rows for part in row["parts"].values())]
    head = "".join(f"<th>{LABELS[name]}</th>" for name in names)
    lines = [f"<tr><th>row</th><th>part</th><th>copy</th>{head}<th>% of copy</th><th>over best peer</th></tr>"]
    for row in rows:
        for part, found in row["parts"].items():
            fastest = min((found[name]["ms"] for name in names if name in found), default=None)
            cells = [f"<td>{text(row['name'])}</td><td class=\"words\">{PARTS[part]}</td>",
                     f"<td>{found['copy']['ms']:.3f}</td>" if "copy" in found else "<td></td>"]
            for name in names:
                entry = found.get(name)
                why = row["failures"].get(name, {}).get(part, "")
                shown = f"{entry['ms']:.3f}" if entry else ("failed" if why else "")
                hint = f"±{50 * entry['spread']:.0f} %, host {entry['host_us']:.0f} µs" if entry else why
                best = ' class="best"' if entry and entry["ms"] == fastest else ""
                cells.append(f'<td{best} title="{text(hint)}">{shown}</td>')
            ours, peer = ours_of(found), best_peer(found)
            share = f"{100 * found['copy']['ms'] / ours:.0f}" if ours and "copy" in found else ""
            over = f"{peer[0] / ours:.2f}" if ours and peer else ""
            bad = ' class="bad"' if ours and peer and peer[0] < ours else ""
            lines.append(f"<tr>{''.join(cells)}<td>{share}</td><td{bad}>{over}</td></tr>")
    return f'<h2>All times, ms</h2><div class="scroll"><table>{"".join(lines)}</table></div>'


def checks(rows):
    lines = ["<tr><th>row</th><th>result</th><th>rowjit, ulp</th><th>eager, ulp</th><th></th></tr>"]
    for row in rows:
        for name, found in row.get("checks", {}).items():
            verdict = "<td></td>" if found["within_bar"] else '<td class="bad">outside the bar</td>'
            lines.append(f"<tr><td>{text(row['name'])}</td><td class=\"words\">{text(name)}</td>"
                         f"<td>{found['error']:.2f}</td><td>{found['eager_error']:.2f}</td>{verdict}</tr>")
    return ('<h2>Largest errors against f64</h2><p>On a few rows, before the timing. The bar: no more than eager and one unit '
            f'in the last place.</p><div class="scroll"><table>{"".join(lines)}</table></div>')


def failures(rows):
    said = [f"<li>{text(row['name'])}: {text(row['failure'])}</li>" for row in rows if "failure" in row]
    said += [f"<li>{text(row['name'])}, {text(LABELS.get(name, name))}, {text(PARTS.get(part, part))}: {text(why)}</li>"
             for row in rows for name, parts in row["failures"].items() for part, why in parts.items()]
    return f"<h2>What failed</h2><ul>{''.join(said)}</ul>" if said else ""


def summary(rows):
    said = []
    for part, label in PARTS.items():
        ratios = {row["name"]: best_peer(row["parts"][part])[0] / ours_of(row["parts"][part]) for row in rows
                  if ours_of(row["parts"].get(part, {})) and best_peer(row["parts"].get(part, {}))}
        if ratios:
            mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
            slower = sorted(name for name, ratio in ratios.items() if ratio < 1)
            said.append(f"<li>{label}: {mean:.2f} times as fast as the best peer, geometric mean of {len(ratios)} rows; "
                        f"slower than it in {len(slower)}{': ' + text(', '.join(slower)) if slower else ''}</li>")
    outside = [f"{row['name']} {name}" for row in rows for name, found in row.get("checks", {}).items()
               if not found["within_bar"]]
    if outside:
        said.append(f"<li>outside the bar of accuracy: {text(', '.join(outside))}</li>")
    return f"<ul>{''.join(said)}</ul>"


def identity(row):
    sweep = row["set"] == "sweep"
    return (row["set"], row["op"], row["columns"], row["dtype"]) if sweep else (row["set"], row["name"])


def page(documents):
    rows = list({identity(row): row for document in documents for row in document["rows"]}.values())
    table_rows = [row for row in rows if row["set"] != "sweep"]
    last = documents[-1]
    about = {**last["machine"], **last["versions"], "date": last["date"], "tuned": last["tuned"]}
    commands = "".join(f"<br><code>{text(' '.join(document['command']))}</code>" for document in documents)
    return "".join([
        "<!DOCTYPE html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
        f"content=\"width=device-width\"><title>rowjit beside its peers</title><style>{STYLE}</style></head><body>",
        f"<h1>rowjit beside its peers</h1><p>{text(last['machine']['device'])}, {text(last['date'])}{commands}</p>",
        summary(rows),
        sweep_charts([row for row in rows if row["set"] == "sweep"]),
        bars(table_rows, "Forward, ms", "Shorter is better. Each chart has its own scale.", "forward", "ms", "ms", 3),
        bars(table_rows, "Forward + backward, ms", "Gradients of weights included.", "both", "ms", "ms", 3),
        bars(table_rows, "Peak memory of forward + backward, MiB", "What is allocated beyond the inputs and cotangents: "
             "outputs, saved values, gradients, workspace.", "both", "peak_mib", "MiB", 0),
        table(rows), checks(rows), failures(rows),
        "<h2>Environment</h2><table>" + "".join(f"<tr><td>{text(name)}</td><td class=\"words\">{text(value)}</td></tr>"
                                                for name, value in about.items()) + "</table>",
        "</body></html>\n"])


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    documents = [json.loads(pathlib.Path(name).read_text(encoding="utf-8")) for name in sys.argv[2:]]
    pathlib.Path(sys.argv[1]).write_text(page(documents), encoding="utf-8")


if __name__ == "__main__":
    main()
