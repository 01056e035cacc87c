"""`deployment` and `batcher`: the public functions for replicas on Ray Serve."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any

from typing_extensions import Unpack

from ..errors import ConfigError
from ..errors.checks import OPTION, short
from ..errors.distribution import install_extra
from ..params.batcher_options import BatcherOptions
from ..params.config import check_path, split_options
from .handle_replicas import HandleReplicas
from .ranking import IMBALANCE
from .replicas import AHEAD
from .replicated_batcher import ReplicatedBatcher

__all__ = ["batcher", "deployment"]

_REPORT_PERIOD = 1.0  # seconds between the reports of a replica to its routers
_SPARE = 64  # places above that limit, for questions that need no room in a batch
_MOST_REPLICAS = 100_000


class ReplicaOptions(BatcherOptions, total=False):
    """The options of `Batcher` that a deployment takes."""

    system_prompt: str | None


def deployment(
    model: str | os.PathLike[str] | None = None,
    *,
    num_replicas: int = 1,
    autoscaling: Mapping[str, Any] | None = None,
    name: str = "pybatcher",
    num_cpus: float = 1.0,
    num_gpus: float = 0.0,
    imbalance: float = IMBALANCE,
    drain_timeout: float = 300.0,
    http: bool = True,
    num_ingresses: int = 1,
    served_model_name: str | None = None,
    api_keys: Collection[str] | None = None,
    **options: Unpack[ReplicaOptions],
) -> Any:
    """Return an application of Ray Serve: batchers, with the HTTP application before them.

        serve.run(pybatcher.ray.deployment("path/to/model", num_replicas=4))

    model: as for `Batcher`; a path must exist on every machine.
    autoscaling: None: there are `num_replicas`. Else fields of `ray.serve.config.AutoscalingConfig`
        (min_replicas, max_replicas, ...), and `target_queued_tokens`, per replica, 4096 by default.
    name: the name of the deployments; "-replica" is appended for the replicas.
    num_cpus, num_gpus: resources of each replica. The engine's `n_threads` is num_cpus, rounded
        down but at least 1, unless it is given; with num_cpus=0 the engine chooses.
    imbalance: requests that a replica may be ahead of the least busy one and still be chosen for
        the beginning of a prompt that it holds.
    drain_timeout: seconds that a replica has to finish its requests when it is replaced. Unfinished
        requests continue on another replica.
    http: False: the application has the replicas alone; `batcher` makes a batcher of its handle.
    num_ingresses: number of processes that serve HTTP.
    served_model_name: the name by which requests call the model; None: its own.
    api_keys: as for `pybatcher.http.application`.
    options: options of `Batcher`.

    Raises ConfigError, and ImportError without Ray.
    """
    serve = _ray_serve()
    from ray.serve.config import RequestRouterConfig

    from .served import Ingress, ServedReplica

    path = None if model is None else check_path("model", model, "a path, or None")
    OPTION.number("num_cpus", num_cpus, 0.0, 1e6)
    if "n_threads" not in options and num_cpus > 0:
        # other replicas on the machine have their own threads
        options["n_threads"] = max(1, int(num_cpus))
    engine, *_ = split_options({k: v for k, v in options.items() if k != "system_prompt"})
    router = RequestRouterConfig(
        request_router_class="pybatcher.ray.request_router.PrefixRouter",
        request_router_kwargs={
            "imbalance": OPTION.number("imbalance", imbalance, 0.0, 1e9),
        },
        request_routing_stats_period_s=_REPORT_PERIOD,
    )
    of_all = {
        "graceful_shutdown_timeout_s": OPTION.number("drain_timeout", drain_timeout, 0.0, 1e9),
    }
    replicas = serve.deployment(
        ServedReplica,
        name=f"{name}-replica" if http else name,
        ray_actor_options={"num_cpus": num_cpus, "num_gpus": num_gpus},
        max_ongoing_requests=AHEAD * engine.most_parallel + _SPARE,
        request_router_config=router,
        **_scale(num_replicas, autoscaling),
        **of_all,
    ).bind(None if path is None else os.fspath(path), options)
    if not http:
        return replicas
    ingress = serve.deployment(
        serve.ingress()(Ingress),
        name=name,
        num_replicas=OPTION.whole("num_ingresses", num_ingresses, 1, _MOST_REPLICAS),
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=_MOST_REPLICAS,
        **of_all,
    )
    own = {} if api_keys is None else {"api_keys": list(api_keys)}
    return ingress.bind(replicas, served_model_name, own)


def batcher(handle: Any) -> ReplicatedBatcher:
    """Return the replicas behind a handle as one batcher, for `async with`.

        handle = serve.run(pybatcher.ray.deployment("path/to/model", http=False))
        async with pybatcher.ray.batcher(handle) as batcher:
            await batcher.generate("Once upon a time")

    handle: a handle of an application that `deployment(..., http=False)` made; another deployment
        may get it as an argument.
    """
    return ReplicatedBatcher(HandleReplicas(handle))


def _scale(num_replicas: int, autoscaling: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the options of a deployment that set the number of replicas."""
    if autoscaling is None:
        return {"num_replicas": OPTION.whole("num_replicas", num_replicas, 1, _MOST_REPLICAS)}
    from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

    if not isinstance(autoscaling, Mapping):
        raise ConfigError(f"autoscaling is {short(autoscaling)}; it must be a mapping, or None")
    fields = dict(autoscaling)
    target = fields.pop("target_queued_tokens", 4096)
    OPTION.number("target_queued_tokens", target, 0.0, 1e12, above=True)
    policy = AutoscalingPolicy(
        policy_function="pybatcher.ray.autoscaling.TokensPolicy",
        policy_kwargs={"target_queued_tokens": target},
    )
    return {"autoscaling_config": AutoscalingConfig(policy=policy, **fields)}


def _ray_serve() -> Any:
    try:
        from ray import serve
    except ImportError as error:
        raise ImportError(
            f"pybatcher.ray needs Ray Serve ({error}); {install_extra('ray')}"
        ) from error
    return serve
