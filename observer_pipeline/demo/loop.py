"""The whole loop, once: agent → labels → model → registry → service → live traces → Phoenix → verdicts → next model."""

import logging
import os
import socket
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any

import dagster as dg

from observer_core.errors import InputError, ObserverError
from observer_core.home import Home
from observer_core.traces.trace import Trace
from observer_pipeline.comparison import latest_verdict
from observer_pipeline.definitions import build_definitions
from observer_pipeline.demo.board import Board, Step
from observer_pipeline.demo.live import ReadBack, ServiceApi, play_reviewer, read_back, wait_for
from observer_pipeline.demo.runs import Runs, step_seconds
from observer_pipeline.registry import CHALLENGER, MODEL, Registry
from observer_pipeline.resources.build import build_mlflow, build_warehouse
from observer_pipeline.resources.phoenix import PhoenixResource
from observer_pipeline.resources.settings import Settings
from observer_pipeline.sensors import ingest_spool, new_annotations, rollout_champion
from observer_pipeline.spool import pending, read_sealed
from observer_pipeline.stack import LOGS, Ports, phoenix, prepare_dagster, service, service_config, stack_environment
from observer_pipeline.supervise import Supervisor, port_is_free

DEFAULT_QUESTIONS = 400
MIN_QUESTIONS = 200
"""With fewer, the calibration split now and then lacks one of the classes."""
LIVE_POLICY = {"review_budget": {"share": 0.3, "window": "10m"}, "random_share": 0.1}
"""More than a product would keep, so that sixty live traces leave something to review."""
RETRAIN_EPOCHS = 0.5
"""The second model goes on from the first, so it needs less."""
LIVE_SHARE, MIN_LIVE = 0.25, 60
STEPS, STEPS_OF_PHOENIX = 14, 3


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """How large the demo is. `questions` runs of the agent train the first model; a quarter as many, at least sixty,
    are live traffic; `preset` is what Laya starts from."""

    questions: int = DEFAULT_QUESTIONS
    seed: int = 0
    preset: str = "laya-mini"
    with_phoenix: bool = True

    @property
    def live(self) -> int:
        return max(MIN_LIVE, round(self.questions * LIVE_SHARE))


def run_demo(options: DemoOptions, home: Home, board: Board) -> None:
    """Drive the loop; every step enters itself on the board, and the promises are checked at the end.

    Raises:
        InputError: too few questions, or OBSERVER_HOME cannot be used.
        ObserverError: a step failed; the steps before it are on the board.
    """
    if options.questions < MIN_QUESTIONS:
        raise InputError(f"the demo needs at least {MIN_QUESTIONS} questions to train on, not {options.questions}")
    home.ensure(home.root)
    ports = free_ports()
    os.environ.update(stack_environment(home, ports) | {"OBSERVER_SERVICES": ports.url("api")})
    settings = Settings.from_env()
    servers = [service(home, ports, service_config(home, ports, with_phoenix=options.with_phoenix))]
    if options.with_phoenix:
        servers.insert(0, phoenix(home, ports))
    prepare_dagster(home)
    quiet_libraries()
    with Supervisor(servers, home.root / LOGS) as supervisor:
        _Loop(options, settings, supervisor, board).run()


def free_ports() -> Ports:
    """The usual ports where they are free, others elsewhere: the demo's servers end with it, so any port will do."""
    chosen = Ports()
    for field in fields(Ports):
        if not port_is_free(getattr(chosen, field.name)):
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                chosen = replace(chosen, **{field.name: probe.getsockname()[1]})
    return chosen


def quiet_libraries() -> None:
    """Keep what libraries tell of themselves out of the demo's own lines; errors still come through."""
    os.environ |= {
        "MLFLOW_LOGGING_LEVEL": "WARNING",
        "TRANSFORMERS_VERBOSITY": "error",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TQDM_DISABLE": "1",
    }
    warnings.simplefilter("ignore")
    for name, level in (("alembic", logging.WARNING), ("onnxscript", logging.ERROR)):
        logging.getLogger(name).setLevel(level)


class _Loop:
    """The state the steps share."""

    def __init__(self, options: DemoOptions, settings: Settings, supervisor: Supervisor, board: Board) -> None:
        self.options = options
        self.settings = settings
        self.home = settings.home
        self.supervisor = supervisor
        self.board = board
        self.warehouse = build_warehouse(settings.home)
        self.mlflow = build_mlflow(settings)
        self.registry = Registry(self.mlflow, self.warehouse)
        self.phoenix = PhoenixResource(base_url=settings.phoenix_url, project=settings.phoenix_project)
        self.service = ServiceApi(settings.services[0])
        instance = dg.DagsterInstance.from_config(str(self.home.dagster))
        self.runs = Runs(build_definitions(settings), instance, board)
        self.live: list[Trace] = []
        self.since = ""
        self.decided: dict[str, list[dict[str, Any]]] = {}
        self.versions: list[str] = []
        self.verdicts = 0

    def run(self) -> None:
        self.first_model()
        self.promote("first model of the demo; too few test questions for the gate")
        self.servers()
        self.roll_out()
        self.traffic()
        self.ingest()
        if self.options.with_phoenix:
            back = self.kept_in_phoenix()
            self.review(back)
        self.retrain()
        on = "on the demo's verdicts" if self.options.with_phoenix else "without new verdicts"
        self.promote(f"retrained {on}; too few test questions for the gate")
        self.roll_out()
        self.promises()
        if self.options.with_phoenix:
            self.promises_of_phoenix()

    @contextmanager
    def step(self, name: str) -> Iterator[Step]:
        """A step on the board; a server that ended meanwhile is named instead of what its absence would cause."""
        self.supervisor.check_alive()
        with self.board.step(name) as step:
            yield step

    def first_model(self) -> None:
        config = {
            "ops": {
                "questions": {"config": {"questions": self.options.questions, "seed": self.options.seed}},
                "agent_traces": {"config": {"workers": os.cpu_count() or 1}},
                "laya_run": {"config": {"preset": self.options.preset}},
            }
        }
        with self.step("Dagster job first_model") as step:
            result = self.runs.job("first_model", config=config)
            step.made = _run_made(result)
            step.where = f"Dagster run {result.run_id[:8]}; {self.home.warehouse}"
        took = step_seconds(result, self.runs.instance)
        counts = self.warehouse.query(
            "SELECT count(*) AS n, sum(CAST(label != 'correct' AS INT)) AS wrong, "
            "sum(CAST(failure_type IS NOT NULL AS INT)) AS seeded FROM labeled_traces"
        ).to_pylist()[0]
        runs = f"{counts['n']} runs of the test agent, {int(counts['seeded'])} with a seeded fault"
        self.board.detail("agent", runs, took["agent_traces"])
        splits = self.warehouse.query(
            "SELECT split, count(*) AS n FROM dataset_splits GROUP BY split ORDER BY n DESC"
        ).to_pylist()
        labels = f"{int(counts['wrong'])} wrong; " + ", ".join(f"{row['split']} {row['n']}" for row in splits)
        self.board.detail("labels and splits", labels, took["labeled_traces"] + took["dataset_splits"])
        self._enter_models(took)
        self._enter_gate()

    def _enter_models(self, took: Mapping[str, float]) -> None:
        self.board.detail("baseline", "process features in a logistic regression", took["baseline_run"])
        self.board.detail("Laya", f"LoRA from {self.options.preset}", took["laya_run"])
        if "stacked_run" in took:
            self.board.detail("stacked", "Laya's logit and those features in one layer", took["stacked_run"])
        self.board.detail("challenger", self._trained(), took["registered_models"])

    def _trained(self) -> str:
        version = self.registry.at_alias(CHALLENGER)
        if version is None:
            raise ObserverError("no version has the alias challenger after registered_models; see the run in Dagster")
        self.versions.append(str(version.version))
        metrics = self.mlflow.client().get_run(str(version.run_id)).data.metrics
        auroc = [metrics.get(f"all/auroc{suffix}") for suffix in ("", ".lo", ".hi")]
        shown = " to ".join(f"{value:.2f}" for value in auroc[1:] if value is not None)
        value = "–" if auroc[0] is None else f"{auroc[0]:.2f}"
        return f"version {version.version} ({version.tags.get('family')}), test AUROC {value} ({shown})"

    def _enter_gate(self) -> None:
        """The gate's verdict, as it is."""
        with self.step("the promotion gate") as step:
            verdict = latest_verdict(self.warehouse)
            step.made = f"{'promote' if verdict['promote'] else 'do not promote'}: {verdict['reasons'][0]}"
            step.where = "asset model_comparison, check promotion_gate"

    def promote(self, reason: str) -> None:
        with self.step("promoted by hand") as step:
            promotion = self.registry.promote(self.versions[-1], reason=f"observer demo: {reason}", by="person")
            step.made = f"version {promotion.version} is champion; reason in the log: “{promotion.reason}”"
            step.where = f"MLflow {MODEL}, table promotions"

    def servers(self) -> None:
        with self.step("servers") as step:
            self.supervisor.wait_healthy()
            self.service.set_policy(LIVE_POLICY)
            if self.options.with_phoenix:
                self.phoenix.ensure_annotation_config()
            names = [
                f"{program.name} (pid {self.supervisor.pid(program.name)})" for program in self.supervisor.programs
            ]
            step.made = f"{' and '.join(names)}, healthy"
            step.where = f"{self.home.root / LOGS}"

    def roll_out(self) -> None:
        with self.step("rolled out (sensor rollout_champion, job rollout)") as step:
            for request in self.runs.tick(rollout_champion):
                result = self.runs.requested(rollout_champion, request)
            serving = self.service.get("/v1/model")
            step.made = f"the service serves {serving['model']} version {serving['model_version']}"
            step.where = f"Dagster run {result.run_id[:8]}; table rollouts"

    def traffic(self) -> None:
        from observer_pipeline.agent.faults import FaultPlan
        from observer_pipeline.agent.generate import GenerateOptions, generate

        with self.step("live traces by OTLP") as step:
            self.since = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            otlp = next(program for program in self.supervisor.programs if program.name == "service").ports["otlp"]
            result = generate(
                GenerateOptions(
                    self.options.live,
                    self.options.seed,
                    first=self.options.questions,
                    faults=FaultPlan.parse("seed4"),
                    workers=os.cpu_count() or 1,
                    endpoint=f"http://127.0.0.1:{otlp}",
                    project=self.settings.phoenix_project,
                ),
                progress=self.board.doing,
            )
            self.live = result.traces
            ids = [str(trace.trace_id) for trace in self.live]

            def all_decided() -> bool:
                self.decided = self.service.decisions(ids, since=self.since)
                return all(self.decided.values())

            self.board.doing("waiting for decisions")
            wait_for(f"decisions on {len(ids)} live traces", all_decided, 300)
            kept = sum(d[0]["decision"] == "keep" for d in self.decided.values())
            step.made = f"{len(ids)} traces, {result.spans_delivered} spans: {kept} kept, {len(ids) - kept} dropped"
            step.where = "the service's page (observer up)"

    def ingest(self) -> None:
        with self.step("decisions in the warehouse (sensor ingest_spool, job ingest)") as step:
            self.board.doing("waiting for the spool to be sealed")
            wait_for("the service to seal its spool", self._sealed, 60)
            for request in self.runs.tick(ingest_spool):
                result = self.runs.requested(ingest_spool, request)
                step.where = f"Dagster run {result.run_id[:8]}; tables live_decisions, review_queue"
            queue = len(self._queue())
            step.made = f"{len(self._ingested())} decisions; {queue} kept traces drawn for review"

    def _sealed(self) -> bool:
        """Whether the decisions and the kept traces of the live traffic are all in sealed files."""
        kept = {trace_id for trace_id, found in self.decided.items() if found[0]["decision"] == "keep"}
        missing = {"live_decisions": set(self.decided), "live_traces": kept}
        for file in pending(self.settings.spools, self.warehouse):
            if file.table in missing:
                missing[file.table] -= set(read_sealed(file)["trace_id"].to_pylist())
        return not any(missing.values())

    def _ingested(self) -> set[str]:
        return set(self.warehouse.read("live_decisions")["trace_id"].to_pylist()) & self.decided.keys()

    def _queue(self) -> set[str]:
        if not self.warehouse.parts("review_queue"):
            return set()
        return set(self.warehouse.read("review_queue")["trace_id"].to_pylist()) & self.decided.keys()

    def kept_in_phoenix(self) -> ReadBack:
        with self.step("kept traces read back from Phoenix") as step:
            decisions = {trace_id: found[0] for trace_id, found in self.decided.items()}
            wait_for("the kept traces to arrive in Phoenix", lambda: read_back(self.phoenix, decisions).complete, 120)
            back = read_back(self.phoenix, decisions)
            step.made = f"{len(back.stored)} traces with their score on the root span"
            step.where = f"Phoenix project {self.settings.phoenix_project} (observer up)"
        return back

    def review(self, back: ReadBack) -> None:
        """Play the reviewer, then bring the verdicts in as the sensor would."""
        with self.step("verdicts (the demo plays the reviewer from the gold labels)") as step:
            gold = {str(trace.trace_id): str(trace.label) for trace in self.live}
            spans = {trace_id: back.stored[trace_id]["context"]["span_id"] for trace_id in sorted(self._queue())}
            self.verdicts = play_reviewer(self.phoenix, spans, gold)
            step.made = f"{self.verdicts} annotations ‘correctness’ posted to Phoenix as a person would"
            step.where = "Phoenix, annotations of the root spans"
        with self.step("verdicts pulled (sensor new_annotations, job pull_annotations)") as step:
            for request in self.runs.tick(new_annotations):
                result = self.runs.requested(new_annotations, request)
                step.where = f"Dagster run {result.run_id[:8]}; tables phoenix_annotations, labeled_traces"
            step.made = f"{len(self._labeled_by_people())} traces labeled by verdict"

    def _labeled_by_people(self) -> set[str]:
        rows = self.warehouse.query("SELECT trace_id FROM labeled_traces WHERE label_source = 'annotation'").to_pylist()
        return {row["trace_id"] for row in rows} & self.decided.keys()

    def retrain(self) -> None:
        config = {"ops": {"laya_run": {"config": {"start": "champion", "epochs": RETRAIN_EPOCHS}}}}
        leave_out = () if self.options.with_phoenix else ("phoenix_annotations",)
        with self.step("retrained (Dagster job nightly_retraining)") as step:
            result = self.runs.job("nightly_retraining", config=config, leave_out=leave_out)
            step.made = _run_made(result)
            step.where = f"Dagster run {result.run_id[:8]}; {self.home.runs}"
        self._enter_models(step_seconds(result, self.runs.instance))
        self._enter_gate()

    def promises(self) -> None:
        """What must hold after the loop, whatever the models learned."""
        decided = list(self.decided.values())
        kept = sum(found[0]["decision"] == "keep" for found in decided)
        dropped = sum(found[0]["decision"] == "drop" for found in decided)
        sent = self.options.live
        self.board.check("live traces in = kept + dropped", sent == kept + dropped, f"{sent} = {kept} + {dropped}")
        twice = sum(len(found) != 1 for found in decided)
        self.board.check("every live trace has exactly one decision", twice == 0, f"{twice} have not")
        unscored = sum(found[0]["p_wrong"] is None for found in decided if found)
        self.board.check("every live trace was scored", unscored == 0, f"{unscored} were not")
        ingested = len(self._ingested())
        self.board.check("every decision is in the warehouse", ingested == sent, f"{ingested} of {sent}")
        serving = self.service.get("/v1/model")["model_version"]
        answered = self.service.score(self.live[0])["model_version"]
        wanted = self.versions[-1]
        self.board.check(
            "the service answers with the new version", serving == answered == wanted, f"{answered}, champion {wanted}"
        )
        champion = self.registry.current()
        champion_version = champion.version if champion else "none"
        self.board.check(
            "MLflow's champion is the second version", champion_version == wanted and len(set(self.versions)) == 2,
            f"versions {', '.join(self.versions)}, champion {champion_version}",
        )  # fmt: skip
        differ = self._scored_differently()
        self.board.check(
            "the service scores as the run directory does", differ <= 0.02, f"largest difference {differ:.1e}"
        )

    def _scored_differently(self) -> float:
        """The largest difference between the service's scores and those of the promoted run directory, on 20 traces."""
        from observer_core.decision.load import load_scorer

        scorer = load_scorer(self.registry.fetch(self.versions[-1], self.home))
        some = self.live[:20]
        ours = [score.p_wrong_raw for score in scorer.score(some)]
        return max(abs(self.service.score(trace)["p_wrong_raw"] - p) for trace, p in zip(some, ours, strict=True))

    def promises_of_phoenix(self) -> None:
        decisions = {trace_id: found[0] for trace_id, found in self.decided.items()}
        back = read_back(self.phoenix, decisions)
        kept = sum(d["decision"] == "keep" for d in decisions.values())
        self.board.check(
            "every kept trace is in Phoenix with the same score, no dropped one is",
            not back.missing and not back.different and not back.unwanted,
            f"{len(back.stored)} of {kept}; {len(back.different)} differ, {len(back.unwanted)} dropped ones stored",
        )
        labeled = len(self._labeled_by_people())
        self.board.check("every verdict became a label", labeled == self.verdicts > 0, f"{labeled} of {self.verdicts}")


def _run_made(result: dg.ExecuteInProcessResult) -> str:
    """What a run made, as `11 assets, 7 checks passed, 1 did not`."""
    assets = sum(event.is_step_materialization for event in result.all_events)
    checks = [check.passed for check in result.get_asset_check_evaluations()]
    failed = f", {checks.count(False)} reported" if False in checks else ""
    return f"{assets} assets, {checks.count(True)} checks passed{failed}"
