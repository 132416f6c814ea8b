"""Secrets in names, URLs, arguments and messages; what is none stays."""

import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.config.app_config import AppConfig
from common.command import RedactingFormatter, is_secret, redact, redact_arguments
from common.keys import keys_of
from data_prep.config import DataConfig

SECRETS = ["TORCH_TOKEN", "CUDA_PASSWORD", "CLICKWORK_SECRET", "NCCL_DEBUG_TOKEN", "AWS_SECRET_ACCESS_KEY", "apiKey"]
SECRETS += ["WANDB_API_KEY", "accessKey", "db.passwd", "GPU_PWD", "x-auth", "CLICKWORK_CREDENTIALS", "private_key"]
SECRETS += ["SSH_PASSPHRASE", "X-Amz-Signature", "sig"]
PLAIN = ["OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM", "keep", "key", "monkeys", "CUDA_HOME", "author", "CUDA_DESIGN"]


@pytest.mark.parametrize("name", SECRETS)
def test_names_of_secrets(name: str) -> None:
    assert is_secret(name)
    assert redact({name: "abc", "n": {name: ["abc"], "s": 1}}) == {name: "***", "n": {name: ["abc"], "s": 1}}
    assert "hunter2" not in redact(f"error: {name}=hunter2; and more")
    assert "hunter2" not in redact(f"error: environment.variables={{OTHER: 1, {name}: hunter2}}")
    assert "hunter2" not in redact(f'{{"{name}": "hunter2", "b": 1}}')
    key = f"+environment.variables.{name}"
    assert redact_arguments([f"{key}=hunter2, and ] more"]) == [f"{key}=***"]


@pytest.mark.parametrize("name", PLAIN)
def test_other_names(name: str) -> None:
    assert not is_secret(name)
    assert redact({name: "abc"}) == {name: "abc"}


def test_no_key_of_the_configuration_is_taken_for_a_secret() -> None:
    assert [key for schema in (AppConfig, DataConfig) for key, *_ in keys_of(schema) if is_secret(key)] == []


@pytest.mark.parametrize("scheme", ["http", "https", "postgresql", "s3"])
@pytest.mark.parametrize("login", ["user:pw", "user:p@w", "user:p:w", "tok3n", "user:p/w", "us%40er:p%2Fw", "user:p'w"])
def test_logins_in_urls(scheme: str, login: str) -> None:
    for text in (f"{scheme}://{login}@host:80/a/b?c=d", f"trackers.mlflow={scheme}://{login}@host: no such host"):
        assert login not in redact(text)
        assert "@host" in redact(text)
    assert login not in redact(f"run={Path(f'http://{login}@host/a')}: not there")


NO_SECRETS = ["http://host:8080/path@v1", "a@b", "file:///a/b", "git@github.com", "batch=64, lr: 0.1"]
NO_SECRETS += ["column user_token: 'x'", "https://host/a b@c", "configuration: Key 'split' not in 'DataConfig'"]
NO_SECRETS += ["give it as key=value"]


@pytest.mark.parametrize("text", NO_SECRETS)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact(text) == text


def test_a_log_line() -> None:
    record = logging.LogRecord("x", logging.INFO, "", 0, "\x1b[33mat %s\x1b[0m", ("http://u:pw@h/",), None)
    assert RedactingFormatter("%(message)s", is_terminal=False).format(record) == "at http://***@h/"
    assert RedactingFormatter("%(message)s", is_terminal=True).format(record) == "\x1b[33mat http://***@h/\x1b[0m"


LEAVES = st.none() | st.booleans() | st.integers() | st.text()


@pytest.mark.medium
@given(st.recursive(LEAVES, lambda each: st.lists(each) | st.dictionaries(st.text(), each)))
def test_the_shape_of_content_stays_and_twice_is_once(content: object) -> None:
    once = redact(content)
    assert redact(once) == once
    assert type(once) is type(content)
