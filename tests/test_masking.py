"""What is masked and what is not, by name, by form and on a command line; no file, page or message holds a secret."""

from __future__ import annotations

import json
import logging

import pytest

import rlvitals
from conftest import REPO
from rlvitals.cli.main import main
from rlvitals.config import resolve, resolved
from rlvitals.errors import ConfigError
from rlvitals.masking import MASK, Masking, mask_text, masked

PLAIN = "Zq8kLm2Xw9Rt4"
"""A secret without a recognisable form: only its name identifies it."""

SECRET_NAMES = [
    "api_key",
    "apikey",
    "apiKey",
    "API-KEY",
    "openai_key",
    "openai_api_key",
    "OPENAI_API_KEY_2",
    "WANDB_KEY",
    "wandb_key",
    "wandbKey",
    "wandbkey",
    "wandb_api_key",
    "huggingface_token",
    "hf_token",
    "hftoken",
    "HF_HUB_TOKEN",
    "hub_token",
    "use_auth_token",
    "slack_token",
    "slack_bot_token",
    "telegram_bot_token",
    "discord_token",
    "github_token",
    "gh_pat",
    "gitlab_private_token",
    "pwd",
    "db_pwd",
    "password",
    "db_password",
    "PASSWD",
    "sshPassphrase",
    "smtp_pass",
    "db_pass",
    "secret",
    "client_secret",
    "clientSecret",
    "aws_secret_access_key",
    "aws_access_key_id",
    "AWS_SESSION_TOKEN",
    "azure_storage_key",
    "azure_client_secret",
    "azure_openai_key",
    "gcp_credentials",
    "google_credentials",
    "service_account_key",
    "credentials",
    "creds",
    "azure_connection_string",
    "private_key",
    "ssh_private_key",
    "encryption_key",
    "signing_key",
    "master_key",
    "license_key",
    "session_key",
    "session_token",
    "refresh_token",
    "access_token",
    "bearer_token",
    "auth_token",
    "csrf_token",
    "token",
    "authorization",
    "x_api_key",
    "cookie",
    "session_cookie",
    "jwt",
    "webhook",
    "slack_webhook_url",
    "anthropic_key",
    "mistral_key",
    "deepseek_key",
    "dashscope_api_key",
    "kaggle_key",
    "comet_api_key",
    "neptune_api_token",
    "trackio_write_token",
    "judge_key",
    "teacher_token",
    "my_key",
    "registry_password",
    "root_password",
    "admin_token",
    "bot_token",
    "mnemonic",
    "e2b_key",
    "serper_key",
    "api_keys",
    "hf_tokens",
]

HARMLESS = {
    "max_tokens": 512, "max_new_tokens": "512", "tokenizer": "Qwen/Qwen2.5-0.5B", "pad_token": "<pad>",
    "eos_token": "</s>",
    "bos_token": "<|begin_of_text|>", "unk_token": "[UNK]", "pad_token_id": 151643, "eos_token_id": [1, 2],
    "image_token": "<image>",
    "bot_token_id": 7, "stop_tokens": ["</s>", "User:"], "num_key_value_heads": 8, "key_dim": 64,
    "token_count": 12345,
    "tokens_per_second": 1234.5, "primary_key": "sample_id", "prompt_key": "extra_info.problem",
    "input_key": "question",
    "label_key": "answer", "chosen_key": "chosen", "rejected_key": "rejected", "reward_fn_key": "data_source",
    "image_key": "images", "messages_key": "messages", "sort_key": "length", "cache_key": "train-v2", "key": "value",
    "keys": ["a", "b"], "password_file": "/run/secrets/pw", "api_key_env": "OPENAI_API_KEY", "secret_name": "prod-db",
    "token_type": "bearer", "use_token": True, "token": None, "secretary": "Ms. Smith", "secret_bonus": 0.5,
    "forward_pass": "full", "pass_rate": 0.75, "pass@1": 0.5, "tokenizer_path": "/models/x",
    "commit": "9f8a7b6c5d4e3f2a1b0c9f8a7b6c5d4e3f2a1b0c",
    "sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", "checkpoint": "checkpoint-000100",
    "model": "meta-llama/Llama-3.1-8B-Instruct", "url": "https://example.org/a?page=2&sort=key",
    "PWD": "/home/me/project",
    "monkey": "banana", "turkey": "istanbul", "keyboard": "qwerty", "hockey": "puck", "author": "me", "authors": "us",
    "session_id": "abc", "signature_columns": ["a"], "path": "s3://bucket/key=1/part",
    "note": "the key idea: keep tokens",
    "loss_token_level": "token", "per_token": "mean", "special_token": "<|x|>", "think_token": "<think>",
    "lr": 5e-7, "seed": 42,
    "temperature": 1.0, "run_name": "sk-learn-baseline", "uuid": "123e4567-e89b-12d3-a456-426614174000",
    "time": "12:30:45",
}  # fmt: skip

FORMS = {
    "hugging face": "hf_" + "a1B2" * 8, "openai": "sk-" + "a1B2" * 8, "openai project": "sk-proj-" + "a1_2" * 8,
    "anthropic": "sk-ant-api03-" + "aB1-" * 10, "openrouter": "sk-or-v1-" + "0a1b" * 16,
    "stripe": "sk_live_" + "a1B2" * 6,
    "github": "ghp_" + "a1B2" * 9, "github fine": "github_pat_" + "a1B2_" * 8, "gitlab": "glpat-" + "a1B2" * 5,
    "slack bot": "xoxb-123456789012-" + "aB1" * 8, "slack app": "xapp-1-A1-" + "a1" * 12, "aws": "AKIA" + "A1B2" * 4,
    "aws session": "ASIA" + "Z9Y8" * 4, "google": "AIza" + "a1B2_" * 7, "google oauth": "ya29." + "a1B2-" * 8,
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.dBjftJeZ4CVPmB92K27uhbUJU1p1r",
    "unsigned jwt": "eyJhbGciOiJub25lIn0.eyJzdWIiOiIxIn0.", "telegram": "123456789:AA" + "a1B2-" * 7,
    "databricks": "dapi" + "0a1b" * 8, "sendgrid": "SG." + "a1B2" * 5 + "." + "a1B2" * 10,
    "groq": "gsk_" + "a1B2" * 13,
    "replicate": "r8_" + "a1B2" * 9, "nvidia": "nvapi-" + "a1B2-" * 12, "xai": "xai-" + "a1B2" * 20,
    "npm": "npm_" + "a1B2" * 9,
    "pypi": "pypi-" + "AgEI" * 20, "vault": "hvs." + "a1B2" * 8, "wandb": "wandb_v1_" + "a1B2" * 10,
    "pem": "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nabc=\n-----END RSA PRIVATE KEY-----",
    "torn pem": "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaA",
    "slack hook": "https://hooks.slack.com/services/T00/B00/abcdefgh",
}  # fmt: skip

TEXTS = [
    "https://me:{}@host/x", "postgresql://user:{}@db:5432/runs", "s3://{}@bucket/x", "https://host/x?token={}&page=1",
    "https://s3.amazonaws.com/b/k?X-Amz-Algorithm=A&X-Amz-Signature={}",
    "https://storage.googleapis.com/b?X-Goog-Signature={}",
    "https://acc.blob.core.windows.net/c?sv=2020&sig={}", "https://host/x?api_key={}",
    "https://host/x#access_token={}",
    "DefaultEndpointsProtocol=https;AccountName=a;AccountKey={};EndpointSuffix=x",
    "Server=db;User Id=me;Password={};",
    "Authorization: Bearer {}", "Authorization: Basic {}", "X-Api-Key: {}", "Cookie: session={}; path=/",
    '{{"api_key": "{}", "lr": 1}}', "{{'hf_token': '{}'}}", "OPENAI_API_KEY={} python train.py",
    "export HF_TOKEN='{}'",
    "login failed for password={}",
    "ValueError: password={}",
    "step 3: retry: api_key='{}'", "Config(api_key='{}', lr=1)",
]  # fmt: skip

COMMANDS = [
    ["--api-key", "{}"], ["--api-key={}"], ["--api_key", "{}"], ["-api_key={}"], ["api_key={}"],
    ["+wandb.api_key={}"],
    ["++trainer.hf_token={}"], ["--openai-key", "{}"], ["--logger.wandb.key", "{}"], ["--wandb-key={}"], ["-k", "{}"],
    ["--password", "{}"], ["--hub_token", "{}", "--lr", "1"], ["--header", "Authorization: Bearer {}"], ["-H",
    "X-Api-Key: {}"],
    ["env", "OPENAI_API_KEY={}", "python"], ["--env", "HF_TOKEN={}"], ["-e", "WANDB_KEY={}"], ["--repo",
    "https://me:{}@host/x"],
    ["--data", "https://host/x?X-Amz-Signature={}"], ["-u", "me:{}"], ["--user", "me:{}"], ["--config",
    '{{"api_key": "{}"}}'],
    ["--set", "tracker.token={}"], ["--slack-webhook-url", "{}"], ["--token", "{}"], ["--pwd", "{}"],
]  # fmt: skip


def test_the_lists_are_as_long_as_promised():
    assert len(set(SECRET_NAMES)) >= 60
    assert len(HARMLESS) >= 40
    assert len(COMMANDS) >= 20


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_a_setting_with_a_secret_name_is_masked_wherever_it_stands(name):
    tree = {name: PLAIN, "a": {"b": [{name: PLAIN}]}, f"trainer.{name}": PLAIN, "list": {name: [PLAIN, PLAIN]}}
    assert PLAIN not in json.dumps(masked(tree))
    assert masked({name: PLAIN}) == {name: MASK}


@pytest.mark.parametrize("name", HARMLESS)
def test_a_harmless_setting_is_kept(name):
    assert masked({"a": {name: HARMLESS[name]}}) == {"a": {name: HARMLESS[name]}}


@pytest.mark.parametrize("form", FORMS)
def test_a_secret_of_a_known_form_is_masked_in_any_text(form):
    secret = FORMS[form]
    for text in (around.format(secret) for around in ("{}", "note: {} is it", "x={}", "[{}]", '"{}"')):
        assert secret not in mask_text(text)
        assert secret[-12:].strip() not in mask_text(text)
        assert secret not in json.dumps(masked({"note": text, "list": [text], text: 1}))


@pytest.mark.parametrize("text", TEXTS)
def test_a_secret_inside_a_text_is_masked(text):
    shown = mask_text(text.format(PLAIN))
    assert PLAIN not in shown
    assert MASK in shown


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_secret_on_a_command_line_is_masked(words):
    secret = "a9b8c7d6e5f4a3b2c1d0"
    said = Masking.of({}).command(["train.py", *(word.format(secret) for word in words), "--epochs", "3"])
    assert secret not in said
    assert MASK in said
    assert said.startswith("train.py ")
    assert said.endswith(" --epochs 3")


def test_a_harmless_command_line_is_kept():
    line = (
        "train.py --max-tokens 512 --pad-token <pad> --prompt-key problem --lr 1e-6 data.key=x +seed=1 --use-liger -k 5"
    )
    assert Masking.of({}).command(line.split()) == line


def test_variables_in_lists_are_known_by_their_names():
    told = masked(
        {
            "env": [{"name": "OPENAI_API_KEY", "value": PLAIN}, {"name": "LANG", "value": "C"}],
            "args": [f"HF_TOKEN={PLAIN}"],
        }
    )
    assert told == {
        "env": [{"name": "OPENAI_API_KEY", "value": MASK}, {"name": "LANG", "value": "C"}],
        "args": [f"HF_TOKEN={MASK}"],
    }


def test_a_secret_is_masked_where_it_is_repeated():
    assert masked({"api_key": PLAIN, "note": f"login with {PLAIN}"})["note"] == f"login with {MASK}"


def test_a_secret_of_the_environment_is_masked_wherever_it_turns_up(monkeypatch):
    monkeypatch.setenv("MY_SERVICE_TOKEN", PLAIN)
    assert mask_text(f"refused: {PLAIN}") == f"refused: {MASK}"
    assert resolved(resolve({"endpoint": "${oc.env:MY_SERVICE_TOKEN}"}, {}))["endpoint"] == MASK


def test_an_object_is_masked_as_it_would_be_written():
    class Login:
        def __str__(self):
            return f"Login(password='{PLAIN}')"

    assert PLAIN not in str(masked({"login": Login()}))


def test_the_user_says_what_else_is_secret_and_what_is_not():
    given = {"license_code": PLAIN, "internal": {"host": PLAIN}, "session_key": "column_7", "api_key": PLAIN}
    kept = resolved(resolve(given, {"mask": ["license_code", "internal.*"], "unmask": "session_key"}))
    assert kept["license_code"] == kept["internal"]["host"] == kept["api_key"] == MASK
    assert kept["session_key"] == "column_7"
    assert kept["rlvitals"]["mask"] == ["license_code", "internal.*"]
    # A report or a tracker that masks them again reads the names to mask from the settings themselves.
    assert masked({**given, "rlvitals": kept["rlvitals"]}) == kept
    in_file = {**given, "rlvitals": {"mask": "license_code"}}
    assert resolved(resolve(in_file, {}))["license_code"] == MASK
    with pytest.raises(ConfigError, match="mask must be a setting's name"):
        resolve({}, {"mask": 5})


@pytest.mark.parametrize("unit", ["x=", "a:", "?a=b&", "sk-", "x-", "eyJaaaaaaaaa.", "://a", "a-b.", "Bearer a "])
def test_a_long_text_of_beginnings_is_read_to_its_end(unit):
    text = unit * (20_000 // len(unit))
    assert mask_text(f"{text} api_key={PLAIN}").endswith(f"api_key={MASK}")


SECRETS = {name: f"{PLAIN}{place}x" for place, name in enumerate(SECRET_NAMES)}


@pytest.fixture
def recorded(tmp_path, monkeypatch, caplog):
    """A run with each secret in its settings, its command line, its trackers' settings and its error."""
    caplog.set_level(logging.DEBUG)
    flags = [word.format(f"{PLAIN}flag7a7b7c7d7e") for words in COMMANDS for word in words]
    monkeypatch.setattr("sys.argv", ["train.py", *flags])
    config = {
        **SECRETS, "nested": {"deep": [SECRETS]}, "forms": list(FORMS.values()), "license_code": f"{PLAIN}license",
        **{f"text{place}": text.format(PLAIN) for place, text in enumerate(TEXTS)},
    }  # fmt: skip
    run = rlvitals.start(
        tmp_path / "run",
        name="run",
        config=config,
        mask="license_code",
        track_with=["csv", "json"],
        tracker_kwargs={"csv": {}, "json": {}},
        tracker_wait=30,
        hardware=False,
    )
    run.log({"loss": 1.0, "reward": 0.5}, step=1)
    run.log_eval({"accuracy": 0.5}, step=1)
    said = f"no login with {SECRETS['my_key']} and {FORMS['jwt']} at {config['text0']}; license {PLAIN}license"
    run.finish(status="failed", error=RuntimeError(said))
    return tmp_path / "run"


def has_secret(text: str) -> bool:
    return PLAIN in text or any(secret[:60] in text or secret[-12:] in text for secret in FORMS.values())


def test_no_file_of_a_run_holds_a_secret(recorded, caplog):
    files = [path for path in recorded.rglob("*") if path.is_file()]
    assert len(files) >= 6
    assert [path.name for path in files if has_secret(path.read_bytes().decode("utf-8", "replace"))] == []
    assert not has_secret(caplog.text)
    assert json.loads((recorded / "config.json").read_text())["rlvitals"]["mask"] == ["license_code"]
    assert MASK in json.loads((recorded / "run.json").read_text())["error"]


def test_nothing_that_is_made_of_a_run_holds_a_secret(recorded, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words in (
        ["report", str(recorded), "--output", "page.html"], ["report", str(recorded), "--output", "page.md"],
        ["report", str(recorded), "--json"], ["export", str(recorded), "--to", "csv", "--output", "x.csv"],
        ["export", str(recorded), "--to", "json", "--output", "x.json"], ["show", str(recorded)], ["show",
        str(recorded), "--json"],
        ["check", str(recorded), "--json"], ["runs", str(tmp_path), "--json"], ["compare", str(recorded),
        str(recorded), "--json"],
    ):  # fmt: skip
        main(words)
    shown = capsys.readouterr()
    assert not has_secret(shown.out + shown.err)
    for name in ("page.html", "page.md", "x.csv", "x.json"):
        assert not has_secret((tmp_path / name).read_text())


def test_a_report_masks_what_another_recorder_left_in_clear(recorded, tmp_path, capsys):
    """The settings of an older run are masked by the current rules and by the run's `mask`."""
    config = {**SECRETS, "license_code": f"{PLAIN}license", "rlvitals": {"mask": ["license_code"]}}
    (recorded / "config.json").write_text(json.dumps(config))
    main(["report", str(recorded), "--output", str(tmp_path / "old.html")])
    main(["report", str(recorded), "--json"])
    assert not has_secret((tmp_path / "old.html").read_text() + capsys.readouterr().out)


def test_the_settings_are_documented():
    for name in ("mask", "unmask"):
        assert f"`{name}`" in (REPO / "docs" / "start.md").read_text()
