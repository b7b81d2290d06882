"""How readers handle damaged runs: every verb and every address of the dashboard, on runs damaged by seed.

    python benchmarks/damaged_runs.py [--calls 10000] [--first SEED] [--show N]

Each seed damages one or a few files of a run that has everything in it, puts it beside a good one, and calls all verbs
and addresses on the two; a quarter of the seeds as a user who owns none of the files (needs root). Then the damaged run
is resumed. The script counts what must not happen: an exception that is not one of ours (an error 500 of the server), a
request that hangs, an undocumented exit code, a good run hidden by its neighbour, a damaged run that is not reported, a
row lost by a resume. The generator is in `tests/damage.py`; the test suite runs a sample of it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))  # the generator is in tests/

from damage import Bench, Trouble, as_stranger


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=10_000, help="of verbs and of addresses each")
    parser.add_argument("--first", type=int, default=0, metavar="SEED")
    parser.add_argument("--show", type=int, default=20, metavar="N", help="examples of trouble")
    arguments = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        bench = Bench(Path(folder) / "bench")
        troubles = [("a whole run", trouble) for trouble in bench.ask_whole()]
        bench.calls = dict.fromkeys(bench.calls, 0)
        seed, runs = arguments.first, 0
        while min(bench.calls["verbs"], bench.calls["questions"]) < arguments.calls:
            for damage, trouble in trouble_with(bench, seed, arguments.calls):
                troubles.append((damage, trouble))
                if len(troubles) <= arguments.show:
                    print(f"{damage}\n  {trouble.asked}\n  {trouble.what}\n", flush=True)
            seed, runs = seed + 1, runs + 1
        bench.clear()
    report(bench, runs, troubles, time.monotonic() - began)
    sys.exit(1 if troubles else 0)


def trouble_with(bench: Bench, seed: int, calls: int) -> list[tuple[str, Trouble]]:
    """Everything that goes wrong with the run of one seed."""
    damage = bench.put(seed)
    is_stranger = seed % 4 == 0 and hasattr(os, "geteuid") and os.geteuid() == 0
    found: list[Trouble] = []
    with as_stranger() if is_stranger else contextlib.nullcontext():
        if bench.calls["questions"] < calls:
            found += bench.ask_questions()
        if bench.calls["verbs"] < calls:
            found += bench.ask_verbs()
    if not is_stranger:
        bench.put(seed)
        found += bench.resume()
    return [(f"{damage} (read by a stranger)" if is_stranger else damage, trouble) for trouble in found]


def report(bench: Bench, runs: int, troubles: list[tuple[str, Trouble]], seconds: float) -> None:
    counts = Counter(trouble.kind for _, trouble in troubles)
    print(
        f"{runs:,} damaged runs: {bench.calls['verbs']:,} verbs, {bench.calls['questions']:,} questions to the server,"
    )
    print(f"{bench.calls['resumes']:,} resumes in {seconds:,.0f} s")
    for kind in ("traceback", "error 500", "hang", "other"):
        print(f"  {kind + ':':12} {counts[kind]:,}")


if __name__ == "__main__":
    main()
