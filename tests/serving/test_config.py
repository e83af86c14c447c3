"""`observer.yaml`: what is accepted, and what every refusal says."""

from pathlib import Path

import pytest

from observer_core.errors import InputError
from observer_serving.config import BuiltinSettings, LocalSettings, Settings, parse_size, read_settings


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
