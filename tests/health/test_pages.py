"""The docs pages of the rules: generated, complete, and with an anchor for every finding."""

from __future__ import annotations

import re

from conftest import REPO
from rlvitals.health import pages, rulebook
from rlvitals.records import KINDS

FOLDER = REPO / "docs" / "rules"


def anchors(text: str) -> set[str]:
    return set(re.findall(r"^## (\S+)$", text, re.MULTILINE))


def test_the_docs_pages_are_what_the_yaml_files_say():
    present = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md") if path.name != "index.md"}
    assert present == pages.pages(), "run: make catalog"


def test_every_rule_has_one_heading_of_its_name():
    found = pages.pages()
    all_rules = set(rulebook.load(*rulebook.presets()).rules)
    headings = [heading for text in found.values() for heading in re.findall(r"^## (\S+)$", text, re.MULTILINE)]
    assert sorted(headings) == sorted(all_rules)


def test_a_section_lists_kind_numbers_words_and_sources():
    text = pages.pages()["kto_guide.md"]
    section = text.split("## kto_gradient_high\n")[1].split("\n## ")[0]
    for part in (
        "kind `grad_explosion`", "up to critical", "2 of 3, for a critical 8 of 10", "`grad_norm > 100`",
        "(optim.grad_norm)", "above 100: training is unstable", "halve learning_rate", "of a warning: `reduce_lr`",
        "of a critical finding: `revert`", "Sources: KTO metrics guide: Grad Norm",
    ):  # fmt: skip
        assert part in section, part
    section = text.split("## kto_margin_negative\n")[1].split("\n## ")[0]
    assert "| `very` | 0.25 |" in section
    assert "Variant `very`" in section


def test_a_preset_says_which_rules_it_switches_off():
    text = pages.pages()["kto_guide.md"]
    off = [name for name, rule in rulebook.load("kto_guide").rules.items() if not rule.enabled]
    assert off
    assert all(f".md#{name})" in text for name in off)


def test_every_link_leads_to_a_heading():
    found = pages.pages()
    for text in (*found.values(), (FOLDER / "index.md").read_text(encoding="utf-8")):
        for page, anchor in re.findall(r"\]\((\w+\.md)#([\w-]+)\)", text):
            assert anchor in anchors(found[page]), (page, anchor)
        for page in re.findall(r"\]\((\w+\.md)\)", text):
            assert page in found or (FOLDER / page).exists(), page


def test_every_kind_is_led_to_its_rules():
    text = pages.pages()["kinds.md"]
    assert re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE) == list(KINDS)


def test_the_page_written_by_hand_names_every_page_preset_and_statistic():
    text = (FOLDER / "index.md").read_text(encoding="utf-8")
    assert [name for name in pages.pages() if f"]({name})" not in text] == []
    assert [name for name in rulebook.presets() if f"`{name}`" not in text] == []
    from rlvitals.health.conditions import STATISTICS

    assert [name for name in STATISTICS if f"`{name}`" not in text] == []


def test_the_examples_of_the_page_written_by_hand_are_rules():
    text = (FOLDER / "index.md").read_text(encoding="utf-8")
    lines = re.findall(r"^(\S.*: (?:info|warning|critical))$", text, re.MULTILINE)
    assert len(lines) >= 5
    rulebook.load(*lines)


def test_the_rule_file_of_the_page_written_by_hand_loads(tmp_path):
    text = (FOLDER / "index.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert blocks
    for number, block in enumerate(blocks):
        path = tmp_path / f"{number}.yaml"
        path.write_text(block)
        assert rulebook.load(path).rules != rulebook.load().rules


def test_check_fails_when_a_page_is_changed_missing_or_too_many(tmp_path, capsys):
    assert pages.main([str(tmp_path)]) == 0
    (tmp_path / "index.md").write_text("by hand")
    assert pages.main([str(tmp_path), "--check"]) == 0
    (tmp_path / "old.md").write_text("of a family that is gone")
    assert pages.main([str(tmp_path), "--check"]) == 1
    assert "make catalog" in capsys.readouterr().err
    assert pages.main([str(tmp_path)]) == 0
    assert not (tmp_path / "old.md").exists()
    assert (tmp_path / "index.md").read_text() == "by hand"
    (tmp_path / "reward.md").unlink()
    assert pages.main([str(tmp_path), "--check"]) == 1
