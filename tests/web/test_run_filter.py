"""The page's filter for the list of runs: what matches, what is refused, and the messages."""

from __future__ import annotations

import json
import subprocess

import pytest
from browsing import STATIC

from rlvitals.health.history import VERDICTS

RUN = {
    "lr": 5e-6, "reward.last": 0.6, "kl@100": None, "tags": ["good", "seed 1"], "status": "finished", "fp16": True,
    "model": "Tiny-7B", "loss.last": "nan", "odd name": 3, "zero": 0, "text_number": "12",
}  # fmt: skip
LINE = "sweep/one finished grpo healthy"
CASES = {
    "lr < 1e-5": True,
    "lr < 1e-5 and reward.last > 0.5 and tags = good": True,
    'lr < 1e-5 and reward.last > 0.5 and tags = "seed 1"': True,
    "lr<1e-5 and reward.last>0.5": True,
    "lr < 1e-5 and reward.last > 0.7": False,
    "reward.last > 0.7 or status = FINISHED": True,
    "not (reward.last > 0.7 or status = finished)": False,
    "not reward.last > 0.7 and status = finished": True,
    "reward.last > 0.7 or lr = 5e-06 and status = failed": False,
    "(reward.last > 0.5 or lr = 1) and status != failed": True,
    "tags = bad": False,
    "tags != good": False,
    "tags != bad": True,
    "tags ~ SEED": True,
    "kl@100 < 5": False,
    "kl@100 >= 5": False,
    "kl@100 != 5": False,
    "kl@100 = none": True,
    "lr = none": False,
    "lr != none": True,
    "fp16 = true": True,
    "fp16 = false": False,
    "fp16 > 0": False,
    "model ~ tiny": True,
    "model !~ tiny": False,
    "model = 'tiny-7b'": True,
    "loss.last < 1": False,
    "loss.last = nan": True,
    "`odd name` = 3": True,
    "zero = 0": True,
    "zero = none": False,
    "text_number > 3": True,
    "nowhere = 1": False,
    "nowhere = none": True,
    "sweep finished": True,
    "sweep failed": False,
    "": True,
    "lr <": "a value after",
    "< 5": "expected a name",
    "lr < 5 and": "missing at the end",
    "lr < 5 reward.last > 1": 'expected "and" or "or"',
    "(lr < 5": "not closed",
    "lr < 5)": 'before ")"',
    "lr = 'open": "a quote may be missing",
    "lr 5 < 3": "expected a comparison",
    "lr = = 3": "a value after",
    "(" * 60 + "lr = 1" + ")" * 60: "too many parentheses",
    "constructor = 1": False,
    "__proto__ = none": True,
    "alert(1) = 1": "expected a comparison",
}


@pytest.mark.slow
def test_every_case_of_the_filter(tmp_path):
    (tmp_path / "filter.mjs").write_text((STATIC / "runfilter.js").read_text())
    (tmp_path / "cases.json").write_text(json.dumps([list(CASES), RUN, LINE]))
    script = """
        import {readFileSync} from "node:fs";
        import {filterOf} from "./filter.mjs";
        const [texts, run, content] = JSON.parse(readFileSync("cases.json", "utf8"));
        const look = (name) => (Object.hasOwn(run, name) ? run[name] : undefined);
        const results = texts.map((text) => {
          try {
            return filterOf(text).fits(look, content);
          } catch (error) {
            return error.message;
          }
        });
        console.log(JSON.stringify([results, filterOf("lr < 1 and (kl@100 > 2 or `odd name` = 3)").names]));
    """
    command = ["node", "--input-type=module", "-e", script]
    output = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path, timeout=60).stdout
    results, names = json.loads(output)
    assert names == ["lr", "kl@100", "odd name"]
    for (text, expected), found in zip(CASES.items(), results, strict=True):
        if isinstance(expected, str):
            assert isinstance(found, str), (text, found)
            assert expected in found, (text, found)
        else:
            assert found is expected, (text, found)


@pytest.mark.slow
def test_runs_are_sorted_by_verdict_and_a_group_has_its_worst_as_on_a_terminal():
    script = """
        const element = () => ({setAttribute(name, value) { this[name] = value; }, append() {}});
        globalThis.document = {querySelector: () => null, createElement: element};
        Object.assign(globalThis, {location: {hash: ""}, addEventListener: () => {}});
        const {sorted} = await import(process.argv[1] + "/runcolumns.js");
        const {groupCell} = await import(process.argv[1] + "/rungroups.js");
        const line = (verdict) => ({run: {run: verdict, verdict, status: "finished"}, cells: {}});
        const lines = JSON.parse(process.argv[2]).map(line);
        const cell = groupCell({name: "", lines: ["healthy", "cannot judge"].map(line)}, "verdict");
        console.log(JSON.stringify([sorted(lines, "verdict", false).map(({run}) => run.verdict), cell.title]));
    """
    command = ["node", "--input-type=module", "-e", script, str(STATIC), json.dumps(sorted(VERDICTS))]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    assert json.loads(output) == [list(reversed(VERDICTS)), "Cannot judge"]
