"""Findings and explanations link to the pages of the documentation, wherever they are shown."""

from __future__ import annotations

import pytest

import rlvitals
from rlvitals import documentation
from rlvitals.cli.main import main
from rlvitals.notify.messages import Standing, about_finding
from rlvitals.render.check_html import page
from rlvitals.views.diagnosis import diagnose, findings_answer
from rlvitals.web import api
from rlvitals.web.folder import Folder

BASE = "https://docs.example/rlvitals/latest"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with a finding of a shipped rule and one of a user's rule."""
    folder = tmp_path_factory.mktemp("runs") / "sick"
    with rlvitals.start(
        folder, algorithm="grpo", display="none", hardware=False, rules=["reward > 5 for 3: critical"]
    ) as opened:
        for step in range(20):
            opened.log({"grad_norm": float("nan"), "reward": 10.0 + 0.1 * step}, step=step)
    return folder


def by_rule(findings):
    return {found["rule"]: found for found in findings}


def test_check_names_the_page_or_else_the_command(run, monkeypatch, capsys):
    assert main(["check", str(run)]) == 2
    assert "more      rlvitals explain nonfinite_core" in capsys.readouterr().out
    monkeypatch.setenv(documentation.VARIABLE, f"{BASE}/")
    assert main(["check", str(run)]) == 2
    assert f"more      {BASE}/rule/nonfinite_core.html" in capsys.readouterr().out
    told = by_rule(rlvitals.check(run).to_dict()["findings"])
    assert told["nonfinite_core"]["more"] == f"{BASE}/rule/nonfinite_core.html"
    assert [found["more"] for rule, found in told.items() if rule.startswith("reward > 5")] == [""]


def test_the_command_that_a_finding_names_works(run, capsys):
    more = by_rule(rlvitals.check(run).to_dict()["findings"])["nonfinite_core"]["more"]
    assert main(more.split()[1:]) == 0
    assert "nonfinite_core" in capsys.readouterr().out


def test_report_dashboard_and_message_link_the_page(run, monkeypatch):
    assert "<a href" not in page(rlvitals.check(run).to_dict())
    monkeypatch.setenv(documentation.VARIABLE, BASE)
    wanted = f"{BASE}/rule/nonfinite_core.html"
    assert f'<a href="{wanted}">nonfinite_core</a>' in page(rlvitals.check(run).to_dict())
    view = rlvitals.open_run(run)
    told = findings_answer(view, diagnose(view))
    assert by_rule(told["findings"])["nonfinite_core"]["page"] == wanted
    finding = next(found for found in view.findings if found.rule == "nonfinite_core")
    message = about_finding("sick", "key", finding, Standing("act", "bad"), is_escalated=False, timestamp=0.0)
    assert f"More: {wanted}" in message.lines


def test_the_explain_drawer_links_the_metric(run, monkeypatch):
    def explained(name):
        return api.explain(Folder(run.parent), api.Query([("name", name)]))

    assert explained("kl_ref.k3")["page"] == ""
    monkeypatch.setenv(documentation.VARIABLE, BASE)
    assert explained("kl_ref.k3")["page"] == f"{BASE}/metric/kl_ref.k3.html"


@pytest.mark.parametrize("base", ["javascript:alert(1)", "file:///home/ann/site", "/home/ann/site", ""])
def test_only_the_address_of_a_web_server_is_linked(base, monkeypatch):
    monkeypatch.setenv(documentation.VARIABLE, base)
    assert documentation.rule_address("kl_explosion") == documentation.metric_address("kl_ref.k3") == ""
    assert documentation.more_about("kl_explosion") == "rlvitals explain kl_explosion"


@pytest.mark.usefixtures("shipped_catalogue")
def test_a_metric_of_a_user_has_no_page(monkeypatch):
    monkeypatch.setenv(documentation.VARIABLE, BASE)
    rlvitals.catalog.register({"family": "mail", "title": "Mail", "metrics": [
        {"id": "mail.opened", "title": "Mails", "what": "Mails.", "unit": "mails", "direction": "up", "reduce": "mean"},
    ]})  # fmt: skip
    assert documentation.metric_address("mail.opened") == ""
