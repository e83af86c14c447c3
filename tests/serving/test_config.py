"""`observer.yaml`: what is accepted, and what every refusal says."""

import socket
from pathlib import Path

import pytest
from pydantic import SecretStr

from observer_core.errors import InputError
from observer_core.validation import validated
from observer_serving.config import (
    BuiltinSettings,
    LocalSettings,
    Settings,
    SystemOneSettings,
    parse_size,
    read_settings,
)


def read(tmp_path: Path, text: str) -> Settings:
    file = tmp_path / "observer.yaml"
    file.write_text(text)
    return read_settings(file)


def test_everything_is_optional(tmp_path: Path):
    for settings in (read_settings(None), read(tmp_path, ""), read(tmp_path, "# nothing\n")):
        assert settings.listen.otlp_http == "127.0.0.1:4318"
        assert isinstance(settings.scorer, BuiltinSettings)
        assert (settings.assembly.quiet_period, settings.assembly.timeout) == (2.0, 60.0)
        assert settings.assembly.max_bytes == 64 << 20
        assert settings.exporters == ()
        assert settings.policy.review_budget is not None


def test_a_full_file(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("OBSERVER_KEY", "k3y")
    settings = read(
        tmp_path,
        """
        listen: {api: "0.0.0.0:8080", otlp_http: "[::1]:4318", otlp_grpc: null}
        api_key: ${OBSERVER_KEY}
        scorer: {kind: local, run: runs/x, version: "7", deadline: 5s}
        buffer: {kind: local, fsync: false, max_bytes: 2GiB}
        assembly: {quiet_period: 500ms, timeout: 1m, max_spans: 10, max_bytes: 1MB}
        policy: {keep_threshold: 0.7, rules: [{name: e, when: {span.status: error}, keep: 0.5}]}
        exporters:
          - {name: a, kind: otlp_http, endpoint: "http://127.0.0.1:6006/v1/traces", headers: {x: "${OBSERVER_KEY}"}}
          - {name: b, endpoint: "https://example.org", annotate: false}
        """,
    )
    assert settings.api_key is not None
    assert settings.api_key.get_secret_value() == "k3y"
    assert isinstance(settings.scorer, LocalSettings)
    assert (settings.scorer.run, settings.scorer.deadline) == (Path("runs/x"), 5.0)
    limits = settings.assembly.limits()
    assert (limits.quiet_period, limits.timeout, limits.max_bytes) == (0.5, 60.0, 10**6)
    assert settings.exporters[0].headers["x"].get_secret_value() == "k3y"
    assert "k3y" not in repr(settings)


@pytest.mark.parametrize(
    ("text", "path", "says"),
    [
        ("assembly: {quiet_perod: 2s}", "assembly.quiet_perod", "no such setting"),
        ("assembly: {quiet_period: 2}", "assembly.quiet_period", "500ms"),
        ("assembly: {quiet_period: 2m, timeout: 1m}", "assembly", "timeout"),
        ("assembly: {max_bytes: 3x}", "assembly.max_bytes", "64MiB"),
        ("assembly: {max_spans: 0}", "assembly.max_spans", "greater"),
        ("listen: {api: localhost}", "listen.api", "pattern"),
        ("listen: {api: '0.0.0.0:1'}", "listen.api", "set api_key"),
        ("listen: {otlp_grpc: '[::]:1'}", "listen.otlp_grpc", "set api_key"),
        ("listen: {otlp_http: 'example.org:1'}", "listen.otlp_http", "set api_key"),
        ("scorer: {kind: magic}", "scorer", "builtin"),
        ("scorer: {kind: local}", "scorer.local.run", "required"),
        ("scorer: {zzz: 1}", "scorer", "kind: is missing; write builtin, local or systemone"),
        ("projects: {shop: {scorer: {run: x}}}", "projects.shop.scorer", "kind: is missing"),
        ("drain: 99999999999999d", "drain", "at most 36500d"),
        (f"drain: {'9' * 400}d", "drain", "at most 36500d"),
        (f"buffer: {{max_bytes: {'9' * 400}GiB}}", "buffer.max_bytes", "below"),
        ("drain: &a {x: *a}", "observer.yaml", "holds itself"),
        ("a: " + "[" * 5000, "observer.yaml", "nested too deeply"),
        ("policy: {review_budget: {share: 2}}", "policy.review_budget.share", "less than or equal to 1"),
        ("policy: {hash_key: '${NOT_SET_ANYWHERE}'}", "policy.hash_key", "NOT_SET_ANYWHERE"),
        (
            "policy: {rules: [{name: a, when: {evaluators: {x: {min: 1}}}, keep: 1}]}",
            "policy.rules",
            "evaluators.rewards",
        ),
        ("scorer: {kind: cascade, cascade: {first: {kind: builtin}, second: {kind: builtin}}}", "scorer", "stronger"),
        ("projects: {shop: {scorer: {kind: builtin, shadow: {n: {kind: cascade}}}}}", "projects.shop.scorer", "kind"),
        ("exporters: [{name: a, endpoint: 'ftp://x'}]", "exporters[0]", "http"),
        ("exporters: [{name: a, endpoint: 'http://x'}, {name: a, endpoint: 'http://y'}]", "exporters", "rename"),
        ("notify: {trace_url: 'http://x/{project}/{trace_id}'}", "notify", "trace_url: {trace_id} is all"),
        ("notify: {trace_url: 'http://x/{'}", "notify", "trace_url: {trace_id} is all"),
        ("listen: {api: '127.0.0.1:65536'}", "listen.api", "at most 65535"),
        ("exporters: [{name: a, endpoint: 'http://[::1/v1'}]", "exporters[0]", "no URL"),
        ("exporters: [{name: a, kind: otlp_grpc, endpoint: 'h:99999'}]", "exporters[0]", "no URL"),
        ("exporters: [{name: a, endpoint: 'http://x', project: Prüf}]", "exporters[0]", "project: is sent"),
        ("exporters: [{name: a, endpoint: 'http://x', headers: {k: ü}}]", "exporters[0]", "headers.k: only printable"),
        ('exporters: [{name: a, endpoint: "http://x", headers: {k: "v\\n"}}]', "exporters[0]", "no line break"),
        ("exporters: [{name: a, endpoint: 'http://x', headers: {'k y': v}}]", "exporters[0]", "no name of a header"),
        ("exporters: [{name: a, endpoint: 'https://x', ca: /nowhere}]", "exporters[0]", "ca: cannot use /nowhere"),
        ("exporters: [{name: a, endpoint: 'https://x', ca: /etc/hostname}]", "exporters[0]", "ca: cannot use"),
        ("scorer: {kind: systemone, endpoint: 'http://[::1', model: m}", "scorer.systemone.endpoint", "no URL"),
        ("scorer: {kind: systemone, endpoint: 'http://', model: m}", "scorer.systemone.endpoint", "no host"),
        ("projects: {'': {policy: {keep_threshold: 1}}}", "projects", "at least 1 character"),
        ("notify: {rules: [{name: a, metric: kept, threshold: .nan}]}", "notify.rules[0].threshold", "finite"),
        ("a: [", "observer.yaml", "line 1"),
        ("- a", "observer.yaml", "mapping"),
    ],
)
def test_a_refusal_names_file_and_key_in_one_line(tmp_path: Path, text: str, path: str, says: str):
    with pytest.raises(InputError) as refused:
        read(tmp_path, text)
    message = str(refused.value)
    assert message.startswith(str(tmp_path / "observer.yaml"))
    assert path in message
    assert says in message
    assert "\n" not in message


@pytest.mark.parametrize(("text", "size"), [("64MiB", 64 << 20), ("10MB", 10**7), ("1.5KiB", 1536), ("7", 7), (7, 7)])
def test_sizes(text: str | int, size: int):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "x", "-1", "0", "1TiBB", True, 1.5, None])
def test_what_is_no_size(text: object):
    with pytest.raises(ValueError, match=r"."):
        parse_size(text)


def test_the_fingerprint_follows_scorer_and_policy_only(tmp_path: Path):
    first = read(tmp_path, "")
    assert read(tmp_path, "drain: 5s").fingerprint() == first.fingerprint()
    assert read(tmp_path, "policy: {random_share: 0.01}").fingerprint() != first.fingerprint()
    assert read(tmp_path, "scorer: {kind: local, run: x}").fingerprint() != first.fingerprint()


ELSEWHERE = "203.0.113.9"


def address_of_this_machine() -> str:
    """One that others reach it by."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((ELSEWHERE, 9))
            return probe.getsockname()[0]
    except OSError:
        pytest.skip("this machine has no address but loopback")


@pytest.mark.parametrize(
    ("listen", "endpoint", "is_own"),
    [
        ({}, "http://localhost:4318/v1/traces", True),
        ({}, "http://127.0.0.1:4318", True),
        ({}, "http://0.0.0.0:4318/v1/traces", True),
        ({}, "http://127.0.0.1:4319/v1/traces", False),
        ({}, "http://collector:4318/v1/traces", False),
        ({"otlp_http": "0.0.0.0:4318"}, "http://[::1]:4318/v1/traces", True),
        ({"otlp_http": "0.0.0.0:4318"}, "http://collector:4318/v1/traces", False),
        ({"otlp_http": "10.0.0.7:4318"}, "http://10.0.0.7:4318/v1/traces", True),
        ({"otlp_http": "10.0.0.7:4318"}, "http://127.0.0.1:4318/v1/traces", False),
        ({"otlp_http": None}, "http://127.0.0.1:4318/v1/traces", False),
        ({"otlp_http": "127.0.0.1:80"}, "http://localhost/v1/traces", True),
        ({"otlp_http": "0.0.0.0:4318"}, "http://this-machine.example:4318/v1/traces", True),
        ({"otlp_http": "[::]:4318"}, "http://this-machine.example:4318/v1/traces", True),
        ({"otlp_http": "this-machine.example:4318"}, "http://same-machine.example:4318/v1/traces", True),
        ({}, "http://this-machine.example:4318/v1/traces", False),
        ({}, "http://loops-back.example:4318/v1/traces", True),
        ({"otlp_http": "0.0.0.0:4318"}, "http://elsewhere.example:4318/v1/traces", False),
    ],
)
def test_nothing_is_exported_to_the_service_itself(
    listen: dict, endpoint: str, is_own: bool, monkeypatch: pytest.MonkeyPatch
):
    names = {"loops-back.example": "127.0.1.1", "elsewhere.example": ELSEWHERE}
    if "machine.example" in endpoint:
        names |= dict.fromkeys(("this-machine.example", "same-machine.example"), address_of_this_machine())
    look_up = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *rest, **how: look_up(names.get(host, host), *rest, **how))
    given = {"api_key": "k", "listen": listen, "exporters": [{"name": "loop", "endpoint": endpoint}]}
    if not is_own:
        validated(Settings, given)
        return
    with pytest.raises(InputError, match=r"exporters: loop leads to .* itself"):
        validated(Settings, given)


def test_nor_over_grpc():
    for endpoint in ("localhost:4317", "http://127.0.0.1:4317"):
        with pytest.raises(InputError, match="exporters: loop"):
            validated(Settings, {"exporters": [{"name": "loop", "kind": "otlp_grpc", "endpoint": endpoint}]})


def test_the_environment_gives_text_as_it_stands():
    environment = {
        "API_KEY": "12345",
        "KEYS__READ": "0x1f",
        "KEYS__INGEST": "[a, 1e3x]",
        "POLICY__HASH_KEY": "yes # no",
        "LISTEN__API": "null",
        "SCORER__KIND": "systemone",
        "SCORER__ENDPOINT": "http://x",
        "SCORER__MODEL": "1.10",
        "NOTIFY__WEBHOOKS__A": "http://x #y",
        "BUFFER__DIR": "2024",
        "BUFFER__FSYNC": "false",
        "PROJECTS__SHOP__POLICY__HASH_KEY": "007",
    }
    settings = read_settings(None, {f"OBSERVER__{name}": value for name, value in environment.items()})

    def secret(key: SecretStr | None) -> str | None:
        return None if key is None else key.get_secret_value()

    assert secret(settings.api_key) == "12345"
    assert [[secret(key) for key in keys] for keys in (settings.keys.read, settings.keys.ingest)] == [
        ["0x1f"], ["a", "1e3x"],
    ]  # fmt: skip
    assert secret(settings.policy.hash_key) == "yes # no"
    assert isinstance(settings.scorer, SystemOneSettings)
    assert (settings.scorer.model, secret(settings.notify.webhooks["a"])) == ("1.10", "http://x #y")
    assert (settings.listen.api, settings.buffer.dir, settings.buffer.fsync) == (None, Path("2024"), False)
    project = settings.projects["shop"].policy
    assert project is not None
    assert secret(project.hash_key) == "007"
