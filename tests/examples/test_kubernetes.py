"""The manifests, against what they start: its options, paths, port and metrics.

That the API servers take them was checked once, by the schemas of Kubernetes and of both CRDs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from pybatcher.cli import make_app
from pybatcher.http.application import ROUTES
from pybatcher.http.middleware.guard import _OPEN
from pybatcher.sidecar.front.tcp import read_address


@pytest.fixture(scope="module")
def manifests(examples: Path) -> dict[str, Any]:
    """All of them by kind."""
    files = sorted((examples / "kubernetes").glob("*.yaml"))
    return {one["kind"]: one for file in files for one in yaml.safe_load_all(file.read_text())}


@pytest.fixture(scope="module")
def pod(manifests: dict[str, Any]) -> Any:
    return manifests["Deployment"]["spec"]["template"]["spec"]


@pytest.fixture(scope="module")
def options(pod: Any) -> dict[str, str]:
    """What `pybatcher serve` is given."""
    (container,) = pod["containers"]
    assert container["command"] == ["pybatcher", "serve"]
    return dict((word + "=").split("=")[:2] for word in container["args"])


def test_the_options_are_those_of_serve(options: dict[str, str]) -> None:
    command: Any = typer.main.get_command(make_app(["serve"]))
    command = command.commands["serve"]
    known = {name for param in command.params for name in param.opts}
    assert options.keys() <= known


def test_probes_ask_a_path_that_is_there_and_asks_no_key(pod: Any) -> None:
    (container,) = pod["containers"]
    served = {path for path, method, _ in ROUTES if method == "GET"}
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        asked = container[name]["httpGet"]
        assert asked["path"] in served
        assert asked["path"] in _OPEN
        assert asked["port"] == container["ports"][0]["name"]


def test_all_speak_of_one_port(
    manifests: dict[str, Any], pod: Any, options: dict[str, str]
) -> None:
    (port,) = pod["containers"][0]["ports"]
    assert read_address(options["--http"]) == ("0.0.0.0", port["containerPort"])
    (front,) = manifests["Service"]["spec"]["ports"]
    assert front["targetPort"] == port["name"]
    (pooled,) = manifests["InferencePool"]["spec"]["targetPorts"]
    assert pooled["number"] == port["containerPort"]
    scraped = manifests["Deployment"]["spec"]["template"]["metadata"]["annotations"]
    assert scraped["prometheus.io/port"] == str(port["containerPort"])
    assert scraped["prometheus.io/path"] in {path for path, _, _ in ROUTES}


def test_all_select_the_same_pods(manifests: dict[str, Any]) -> None:
    labels = manifests["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert manifests["Service"]["spec"]["selector"] == labels
    for kind in ("Deployment", "PodDisruptionBudget", "InferencePool"):
        assert manifests[kind]["spec"]["selector"] == {"matchLabels": labels}
    (rule,) = manifests["HTTPRoute"]["spec"]["rules"]
    pool = manifests["InferencePool"]
    assert rule["backendRefs"][0]["name"] == pool["metadata"]["name"]
    assert pool["apiVersion"].startswith(rule["backendRefs"][0]["group"] + "/")
    (match,) = rule["matches"]
    assert all(
        path.startswith(match["path"]["value"])
        for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
    )


def test_a_pod_is_given_the_time_that_it_takes_to_end(pod: Any, options: dict[str, str]) -> None:
    sleep = float(pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > sleep + float(options["--drain-timeout"])


def test_the_engine_counts_the_cores_that_the_pod_has(pod: Any, options: dict[str, str]) -> None:
    """It reads the limit itself, and a limit of whole cores pauses no thread."""
    resources = pod["containers"][0]["resources"]
    assert resources["limits"] == resources["requests"]
    assert int(resources["limits"]["cpu"]) > 0
    assert "--n-threads" not in options


def test_what_is_written_to_is_a_volume(pod: Any, options: dict[str, str]) -> None:
    """The root file system is read-only."""
    (container,) = pod["containers"]
    mounts = {one["mountPath"]: one for one in container["volumeMounts"]}
    assert {one["name"] for one in pod["volumes"]} == {one["name"] for one in mounts.values()}
    (cache,) = (one["value"] for one in container["env"] if one["name"] == "XDG_CACHE_HOME")
    assert not mounts[cache].get("readOnly")
    for option in ("--model", "--api-key-file"):
        assert any(options[option].startswith(path + "/") for path in mounts)
