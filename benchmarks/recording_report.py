"""The tables of `recording.py`, each followed by its targets: figure, target, met or not met."""

from __future__ import annotations

FLOOR, OURS, FOLLOWED, HANGING = (
    "orjson line + write",
    "rlvitals",
    "rlvitals, 3 trackers follow",
    "rlvitals, a tracker hangs",
)
LEAVE_OUT = ("TensorBoard, 1 event a step",)  # not in the targets on size, which compare with SummaryWriter
FLAT_MIB = 5


def show(figures, settings, kinds):
    missing = {name: f"{', '.join(lacking)} not installed" for name, lacking in figures["missing"].items()}
    if "log" in figures:
        show_latency(figures["log"], settings["log"], kinds, missing)
        show_volume(figures["log"], kinds, missing)
    if "kill" in figures:
        show_kill(figures["kill"], missing)
    if "start" in figures:
        show_start(figures["start"], figures.get("log", {}), kinds)
    if "read" in figures:
        show_reading(figures["read"], settings["read"], kinds, missing)
    if "memory" in figures:
        show_memory(figures["memory"]["samples"])


def show_latency(found, settings, kinds, missing):
    columns = ["hot p50, µs", "p99", "x floor", "x rlvitals", "paced p50, µs", "p99", "x floor", "x rlvitals", "steps"]
    rows = {}
    for name, one in measured(found).items():
        cells = []
        for way in ("hot", "paced"):
            p50 = one[way]["p50_us"]
            ratios = [ratio(p50, at(found, base, way, "p50_us")) for base in (FLOOR, OURS)]
            cells += [number(p50), number(one[way]["p99_us"]), *ratios]
        rows[name] = [*cells, f"{one['steps']:,}"]
    title = f"log() of 60 metrics: hot, and one call every 20 ms ({settings['paced_calls']} calls)"
    table(title, columns, rows | notes(found) | missing)
    for way, most, ahead in (("hot", 2.0, 5.0), ("paced", 1.6, 3.0)):
        floor, own, own99 = (
            at(found, *key) for key in ((FLOOR, way, "p50_us"), (OURS, way, "p50_us"), (OURS, way, "p99_us"))
        )
        target(f"{way}: p50 over the floor's", quotient(own, floor), most)
        target(f"{way}: p99 over the floor's p50", quotient(own99, floor), 5.0)
        peers = {name: one[way]["p50_us"] for name, one in measured(found).items() if kinds[name] == "peer"}
        fastest = min(peers, key=peers.get, default=None)
        target(f"{way}: ahead of the fastest peer ({fastest})", quotient(peers.get(fastest), own), ahead, at_least=True)
        for name, part in ((FOLLOWED, "p50_us"), (FOLLOWED, "p99_us"), (HANGING, "p50_us")):
            growth = quotient(at(found, name, way, part), at(found, OURS, way, part))
            target(f"{way}: {part[:3]} of '{name}' over rlvitals alone", growth, 4 / 3)


def show_volume(found, kinds, missing):
    rows, speeds, sizes = {}, {}, {}
    for name, one in measured(found).items():
        if name in (FOLLOWED, HANGING):
            continue
        speeds[name], sizes[name] = one["values_per_s"], one["bytes"] / one["values"]
        if name == OURS:
            sizes[name] += one["sizes"]["index"] / one["values"]
    for name, speed in speeds.items():
        remark = ""
        if name == OURS:
            parts = {part: size / found[name]["values"] for part, size in found[name]["sizes"].items()}
            remark = ", ".join(f"{part} {size:.1f}" for part, size in parts.items())
        cells = [f"{speed:,.0f}", ratio(speeds.get(OURS), speed), f"{sizes[name]:.1f}"]
        rows[name] = [*cells, ratio(sizes[name], sizes.get(OURS)), remark]
    columns = ["values a second", "rlvitals ahead, x", "bytes a value", "x rlvitals", "of which"]
    table("Hot until everything is durable (finished, every file synced), and size", columns, rows | missing)
    rivals = [name for name in speeds if kinds[name] == "peer"]
    quickest = max((speeds[name] for name in rivals), default=None)
    target("values a second, over the best peer's", quotient(speeds.get(OURS), quickest), 1.0, at_least=True)
    smallest = min((sizes[name] for name in rivals if name not in LEAVE_OUT), default=None)
    target("bytes a value, over the best of W&B, SwanLab, ...", quotient(sizes.get(OURS), smallest), 1.0)
    compact = at(found, OURS, "sizes", "compact")
    target("bytes a value after `rlvitals compact`", quotient(compact, at(found, OURS, "values")), 8.0, unit="")


def show_kill(found, missing):
    rows = {}
    for name, one in measured(found).items():
        cells = [
            f"{one[way]['rows']:,} of {one[way]['acknowledged']:,}" if way in one else "" for way in ("trainer", "tree")
        ]
        rows[name] = [*cells, one["trainer"].get("error", "")]
    columns = ["trainer killed", "and its helper process", ""]
    table(
        "Rows that can be read after kill -9, of those whose call had returned", columns, rows | notes(found) | missing
    )
    own = found.get(OURS, {}).get("trainer")
    target("share of rows kept", own and own["rows"] / own["acknowledged"], 1.0, at_least=True, unit="")


def show_start(own, found, kinds):
    rows = {"rlvitals, in a bare Python": own}
    rows |= {name: one for name, one in measured(found).items() if kinds[name] == "peer"}
    cells = {
        name: [f"{one[key]:.3f}" for key in ("import_s", "start_s", "finish_s")] + [f"{one['added_mib']:.0f}"]
        for name, one in rows.items()
    }
    table("Start and end", ["import, s", "start, s", "finish, s", "memory added, MiB"], cells)
    print("rlvitals after 100 rows; peers' finish after the hot rows, their memory with helper processes.\n")
    limits = {"import_s": 0.12, "start_s": 0.1, "finish_s": 0.05, "added_mib": 15.0}
    for key, most in limits.items():
        target(key.replace("_", ", "), own[key], most, unit="")


def show_reading(found, settings, kinds, missing):
    rows, ours = {}, found.get(OURS, {})
    for name, one in found.items():
        rows[name] = []
        for key in ("one", "many"):
            taken = one[key].get("read_s")
            shown = one[key].get("note") or f"{taken * 1000:,.1f}"
            rows[name] += [shown, ratio(taken, ours.get(key, {}).get("read_s"))]
    columns = []
    for key in ("one", "many"):
        series, steps = settings[key]
        columns += [f"{series} x {steps:,}, ms", "x rlvitals"]
    table("Reading series through each tool's own reader (imports not counted)", columns, rows | missing)
    for key in ("one", "many"):
        peers = [one[key]["read_s"] for name, one in found.items() if kinds[name] == "peer" and "read_s" in one[key]]
        best, shape = min(peers, default=None), "{} x {:,}".format(*settings[key])
        warm, cold = (found.get(name, {}).get(key, {}).get("read_s") for name in (OURS, "rlvitals, no index"))
        target(f"{shape}: ahead of the fastest peer, index there", quotient(best, warm), 10.0, at_least=True)
        target(f"{shape}: ahead of the fastest peer, no index", quotient(best, cold), 1.0, at_least=True)


def show_memory(samples):
    rows = {f"{sample['rows']:,} rows": [f"{sample[who]:.1f}" for who in ("trainer", "follower")] for sample in samples}
    table("Memory with csv, json, tensorboard and a tracker that hangs", ["trainer, MiB", "follower, MiB"], rows)
    half = len(samples) // 2
    for who in ("trainer", "follower"):
        first, second = (max(sample[who] for sample in part) for part in (samples[:half], samples[half:]))
        target(f"{who}: most in the second half less most in the first, MiB", second - first, FLAT_MIB, unit="")


# Helpers


def measured(found):
    return {name: one for name, one in found.items() if "note" not in one}


def notes(found):
    return {name: one["note"] for name, one in found.items() if "note" in one}


def at(found, *keys):
    for key in keys:
        if not isinstance(found, dict) or key not in found:
            return None
        found = found[key]
    return found


def quotient(above, below):
    return above / below if above is not None and below else None


def ratio(above, below):
    found = quotient(above, below)
    return (
        "" if found is None else f"{found:,.0f}" if found >= 100 else f"{found:.2g}" if found >= 10 else f"{found:.2f}"
    )


def number(microseconds):
    return f"{microseconds:,.0f}" if microseconds >= 100 else f"{microseconds:.1f}"


def target(what, figure, limit, *, at_least=False, unit="x"):
    if figure is None:
        print(f"- {what}: not measured")
        return
    is_met = figure >= limit if at_least else figure <= limit
    bound = f"{'at least' if at_least else 'at most'} {limit:.3g}{unit}"
    print(f"- {what}: {figure:.3g}{unit} (target {bound}): {'met' if is_met else 'NOT MET'}")


def table(title, columns, cells):
    """A Markdown table; a text instead of cells goes into the first cell."""
    rows = [["", *columns], ["---"] * (len(columns) + 1)]
    for name, found in cells.items():
        row = [name, found] if isinstance(found, str) else [name, *found]
        rows.append(row + [""] * (len(columns) + 1 - len(row)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    print(f"\n## {title}\n")
    for row in rows:
        print("| " + " | ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) + " |")
    print()
