"""How long running jobs run: by what `cellplan jct predict --json` said of them, or by a model of `cellplan jct train`.

A model is asked as a simulation asks it: of each job at its submission, in that order, with the user, name and
partition that Slurm tells and its devices (all of its nodes' where nobody says which). What jobs that have ended
took is unknown to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isinf
from pathlib import Path

from planner.many_jobs.jobs.records import AS_LOGGED, Job, Workload
from planner.one_job.free_devices.coming_free import Predict
from planner.one_job.free_devices.endings import Prediction, read_predictions
from planner.one_job.free_devices.running_records import RunningJob
from profiles.cluster import Cluster
from profiles.errors import InputError
from profiles.files import read_text


def predictor_of(path: Path) -> Predict:
    """Return what predicts by the file at `path`: predictions as JSON, or a model. Raise InputError for neither."""
    if read_text(path).lstrip().startswith("{"):
        told = read_predictions(path)
        return lambda _jobs, _cluster: told
    return lambda jobs, cluster: predict_by_model(path, jobs, cluster)


def predict_by_model(path: Path, jobs: Sequence[RunningJob], cluster: Cluster) -> Mapping[str, Prediction]:
    """Return how long the jobs run by the model at `path`, those that say when they were submitted or began. Raise
    InputError for a file that is none, or for jobs of which none says so."""
    from planner.many_jobs.jct.model_file import load_model
    from planner.many_jobs.jct.online import OnlinePredictor, OnlineSetting

    predictor = OnlinePredictor(OnlineSetting(model=load_model(path), retrain_s=None))
    known = [(job.submit_s or job.start_s, job) for job in jobs]
    ordered = sorted((submit_s, job.job, job) for submit_s, job in known if submit_s is not None)
    if jobs and not ordered:
        raise InputError(
            where=str(path), found="jobs without a start", expected="squeue --json, where --jct is a model"
        )
    devices = _devices_of_hosts(cluster)
    said: dict[str, Prediction] = {}
    for submit_s, name, running in ordered:
        count = max(1, sum(map(len, running.gpus)) or sum(devices.get(host, 0) for host in running.hosts))
        asked = Job(
            id=name,
            submit_s=submit_s,
            pool="",
            devices=count,
            workload=Workload(model=running.name or AS_LOGGED, global_batch=count),
            iterations=1.0,
            duration_s=1.0,
            user=running.user,
            virtual_cluster=running.partition,
        )
        point_s = predictor.submitted(asked, submit_s)
        low_s, high_s = predictor.interval_s(asked)
        said[name] = Prediction(point_s=point_s, low_s=low_s, high_s=None if isinf(high_s) else high_s)
    return said


def _devices_of_hosts(cluster: Cluster) -> dict[str, int]:
    devices: dict[str, int] = {}
    for site in cluster.sites:
        groups = [group for group in site.nodes for _ in range(group.count)]
        devices |= {host: group.devices for host, group in zip(site.network.hosts, groups, strict=True)}
    return devices
