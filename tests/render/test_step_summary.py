"""The output of a GRPO step: the facts of the document's example, and real counts where its program had none."""

from __future__ import annotations

from rlvitals.records import Group, Rollout, ToolCall, Turn
from rlvitals.render.step_summary import StepFacts, banner, concise, group_details, step_facts, verbose
from rlvitals.render.transcript import transcript

EXAMPLE = StepFacts(
    step=10, total_steps=200, groups=8, kept=6, filtered=2, rollouts=48, early=18,
    grad_norm=1.9312, grad_norm_clipped=0.8234, tokens_trained=12345, loss=0.3456,
    rollout_seconds=45.3, training_seconds=2.1, tokens=45678, trainable_tokens=12345,
)  # fmt: skip


def test_the_full_form_has_the_documents_facts_in_its_words():
    rule = "─" * 80
    assert verbose(EXAMPLE).split("\n") == [
        rule,
        "STEP PHASE 4: BACKPROPAGATION & OPTIMIZATION",
        rule,
        "✓ Grad norm (before clipping): 1.9312",
        "✓ Grad norm (after clipping): 0.8234",
        "✓ Tokens trained: 12,345",
        "✓ Total loss: 0.3456",
        "",
        "Group Summary:",
        "  - Total groups: 8",
        "  - Groups kept for training: 6",
        "  - Groups filtered (low variance): 2",
        "  - Rollouts that finished early (didn't exhaust turns): 18/48",
        "  - Total rollout time: 45.3s",
        "  - Total training time: 2.1s",
        "  - Total tokens: 45,678",
        "  - Trainable tokens: 12,345 (27.0%)",
        rule,
    ]


def test_every_line_of_the_summary_is_in_the_document_but_for_the_grad_norms_name(shared):
    text = (shared / "reference" / "grpo-agent-logs.zh.md").read_text(errors="replace")
    for line in verbose(EXAMPLE).split("\n"):
        assert line in text or "clipping" in line


def test_the_short_form_is_the_documents():
    assert concise(EXAMPLE).split("\n") == [
        "Step 10/200",
        "Collecting 6 rollouts for 8 queries...",
        "  Groups: 6/8 kept (2 filtered), 18/48 finished early",
    ]


def test_facts_are_counted_from_the_groups_also_when_all_are_filtered():
    rollouts = (
        Rollout(turns=(Turn(tokens=10, trainable_tokens=4),), stop="answered"),
        Rollout(turns=(Turn(), Turn()), stop="turn_limit", tokens=30, trainable_tokens=6),
        Rollout(turns=(Turn(),), stop="bad_arguments"),
        Rollout(turns=(Turn(),), stop="answered"),
    )
    groups = [Group(rollouts=rollouts, max_turns=2, kept=False), Group(rollouts=rollouts[:2], max_turns=2, kept=False)]
    facts = step_facts(groups, 3, grad_norm=0.4, max_grad_norm=1.0)
    assert (facts.groups, facts.kept, facts.filtered, facts.rollouts, facts.early) == (2, 0, 2, 6, 4)
    assert facts.early_reasons == {"answered": 3, "bad_arguments": 1}
    assert (facts.tokens, facts.trainable_tokens) == (80, 20)
    assert (facts.grad_norm, facts.grad_norm_clipped) == (0.4, 0.4)
    assert "4/6 (answered 3, bad_arguments 1)" in verbose(facts)


def test_what_is_not_known_is_left_out():
    text = verbose(step_facts([], 1))
    assert "Grad norm" not in text
    assert "tokens" not in text.lower()
    assert "Total groups: 0" in text


def test_phases_have_banners():
    assert [banner(phase).split("\n")[1][:13] for phase in (1, 2, 3, 4)] == [
        f"STEP PHASE {phase}:" for phase in (1, 2, 3, 4)
    ]


def test_details_show_every_group_filtered_ones_too():
    rollout = Rollout(turns=(Turn(advantage=0.5),), reward=1.0, advantage=0.5, outcome="correct", stop="answered")
    kept = Group(id="q1", rollouts=(rollout,), mean=0.5, std=0.5, kept=True)
    filtered = Group(id="q2", rollouts=(rollout,), mean=1.0, std=0.0, kept=False, reason="reward std 0.000 < 0.05")
    text = group_details([kept, filtered])
    assert "Group 1 q1: reward 0.500 ± 0.500, 1 rollout, kept" in text
    assert "Group 2 q2: reward 1.000 ± 0.000, 1 rollout, filtered (reward std 0.000 < 0.05)" in text
    assert text.count("    1  | +0.500 |") == 2
    assert "reward +1.000, advantage +0.500, correct, ended: answered, 1 turn" in text


def test_transcripts_fold_calls_and_results_unless_all_is_asked_for():
    call = ToolCall("read_email", {"message_id": "m7"}, "line\n" * 100)
    rollout = Rollout(turns=(Turn(text="think", calls=(call,), observation="next"),), rubric={"found": True})
    short, whole = transcript(rollout), transcript(rollout, full=True)
    assert '> read_email({"message_id": "m7"})' in short
    assert "characters]" in short
    assert len(short.split("\n")) == 6
    assert whole.count("line") == 100
    assert "rubric: found True" in short


def test_control_characters_of_a_model_do_not_reach_the_terminal():
    rollout = Rollout(
        turns=(Turn(text="\x1b[2Jgone", calls=(ToolCall("\x07", {}, "\x1b]0;x\x07", "\x1b"),)),), error="\x1b"
    )
    for full in (False, True):
        assert not {"\x1b", "\x07"} & set(transcript(rollout, full=full))
