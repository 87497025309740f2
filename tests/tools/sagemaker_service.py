"""A stand-in for the service: moto has the API, and what it only says, that a job has run, is done by the rehearsal.

moto's jobs are completed as soon as they are created, have the same metrics, and write nothing. Here a job is in
progress until SageMaker's real toolkit has run it: its lines go to CloudWatch while it runs, its files to S3, its
metrics are found in its log by the regular expressions that were sent, and a tuning job starts those of a grid. A job
that is stopped is stopped by the rehearsal at the same line, since that takes no requests.
"""

import json
import queue
import re
import subprocess
import sys
import threading
import time
from itertools import count

from moto.core.responses import ActionResult, EmptyResult
from moto.sagemaker.models import SageMakerModelBackend, sagemaker_backends
from moto.sagemaker.responses import SageMakerResponse

from lightning_sm.launch import JobRequest, draw

__all__ = ["Service"]

_GROUP = "/aws/sagemaker/TrainingJobs"
_LINE = re.compile(r"\[(?P<host>algo-\d+)\] ?(?P<text>.*)")
_SECONDS = 800


class Service:
    """Runs what moto's server, in this process, receives, one job after the other.

    Args:
        session: A boto3 session for that server.
        folder: A folder for request files.
        stop_at: The text at which jobs on spot instances are stopped.
        monkeypatch: Adds to moto what it has not.
    """

    def __init__(self, session, folder, stop_at, monkeypatch):
        self.session, self.folder, self.stop_at = session, folder, stop_at
        self.stopped, self.deleted = [], []
        self._queue = queue.Queue()
        self._tuned = {}
        self._backend = sagemaker_backends["123456789012"]["us-east-1"]
        session.client("logs").create_log_group(logGroupName=_GROUP)
        create, tune = (
            SageMakerModelBackend.create_training_job,
            SageMakerModelBackend.create_hyper_parameter_tuning_job,
        )

        def create_training_job(backend, **given):
            definitions = list(given["algorithm_specification"].get("MetricDefinitions", ()))
            job = create(backend, **given)
            job.training_job_status = job.secondary_status = "InProgress"
            job.final_metric_data_list = []
            self._queue.put((job, definitions))
            return job

        def create_tuning_job(backend, **given):
            arn = tune(backend, **given)
            name = given["hyper_parameter_tuning_job_name"]
            backend.hyper_parameter_tuning_jobs[name].hyper_parameter_tuning_job_status = "InProgress"
            self._start_grid(name, given)
            return arn

        def stop(response):
            self.stopped.append(response._get_param("TrainingJobName"))
            return EmptyResult()

        def delete(response):
            self.deleted.append(response._get_param("TrainingJobName"))
            return EmptyResult()

        def list_tuned(response):
            names = self._tuned[response._get_param("HyperParameterTuningJobName")]
            return ActionResult({"TrainingJobSummaries": [{"TrainingJobName": name} for name in names]})

        monkeypatch.setattr(SageMakerModelBackend, "create_training_job", create_training_job)
        monkeypatch.setattr(SageMakerModelBackend, "create_hyper_parameter_tuning_job", create_tuning_job)
        for name, method in {
            "stop_training_job": stop,
            "delete_training_job": delete,
            "list_training_jobs_for_hyper_parameter_tuning_job": list_tuned,
        }.items():
            monkeypatch.setattr(SageMakerResponse, name, method, raising=False)
        threading.Thread(target=self._work, daemon=True).start()

    def close(self):
        """End the thread after the job that it runs."""
        self._queue.put(None)

    def _start_grid(self, name, given):
        config, definition = given["hyper_parameter_tuning_job_config"], given["training_job_definition"]
        body = {"HyperParameterTuningJobConfig": config, "TrainingJobDefinition": definition}
        request = JobRequest(name, json.dumps(body), "")
        (searched,) = config["ParameterRanges"]["CategoricalParameterRanges"]
        bodies = {}
        for seed in count():
            drawn = draw(request, seed).as_body()
            bodies.setdefault(drawn["HyperParameters"][searched["Name"]], drawn)
            if len(bodies) == len(searched["Values"]):
                break
        self._tuned[name] = [drawn["TrainingJobName"] for drawn in bodies.values()]
        for drawn in bodies.values():
            self.session.client("sagemaker").create_training_job(**drawn)

    def _work(self):
        while True:
            found = self._queue.get()
            if found is None:
                return
            job, definitions = found
            try:
                self._run(job, definitions)
            except Exception as error:
                job.failure_reason, job.training_job_status = f"the service failed: {error!r}", "Failed"
            self._end_tuning()

    def _run(self, job, definitions):
        name, start = job.training_job_name, time.monotonic()
        body = self.session.client("sagemaker").describe_training_job(TrainingJobName=name)
        request = self.folder / f"{name}.json"
        request.write_text(json.dumps(body, default=str))
        command = [sys.executable, "-m", "lightning_sm", "rehearse", "--request", str(request), "--upload", "--json"]
        command += ["--timeout", f"{_SECONDS}s", "--env", "OMP_NUM_THREADS=1"]
        command += ["--stop-at", self.stop_at] if job.enable_managed_spot_training else ()
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            shown = []
            errors = threading.Thread(target=self._write_log, args=(name, process.stderr, shown))
            errors.start()
            summary = process.stdout.read()
            errors.join()
        if not summary:
            raise RuntimeError("\n".join(shown[-30:]))
        outcome = json.loads(summary)
        job.failure_reason = outcome["failure_reason"]
        job.billable_time_in_seconds = round(time.monotonic() - start)
        job.final_metric_data_list = [
            {"MetricName": each["Name"], "Value": float(values[-1]), "Timestamp": job.creation_time}
            for each in definitions
            for values in [re.findall(each["Regex"], "\n".join(shown))]
            if values
        ]
        status = outcome["status"]
        if status == "Stopped" and not self._was_stopped(name):
            status, job.failure_reason = "Failed", "nobody has stopped it"
        job.secondary_status = job.training_job_status = status

    def _was_stopped(self, name):
        deadline = time.monotonic() + 60
        while name not in self.stopped and time.monotonic() < deadline:
            time.sleep(0.5)
        return name in self.stopped

    def _write_log(self, name, lines, shown):
        logs, streams = self.session.client("logs"), set()
        for line in lines:
            shown.append(line.rstrip("\n"))
            match = _LINE.match(shown[-1])
            if match is None or not match["text"]:
                continue
            stream = f"{name}/{match['host']}-1700000000"
            if stream not in streams:
                logs.create_log_stream(logGroupName=_GROUP, logStreamName=stream)
                streams.add(stream)
            event = {"timestamp": int(time.time() * 1000), "message": match["text"]}
            logs.put_log_events(logGroupName=_GROUP, logStreamName=stream, logEvents=[event])

    def _end_tuning(self):
        for name, names in self._tuned.items():
            jobs = [self._backend.training_jobs[each] for each in names if each in self._backend.training_jobs]
            if len(jobs) < len(names) or any(each.training_job_status == "InProgress" for each in jobs):
                continue
            tuning = self._backend.hyper_parameter_tuning_jobs[name]
            tuning.training_job_status_counters = {"Completed": len(jobs)}
            best = min(jobs, key=lambda each: float(each.final_metric_data_list[0]["Value"]))
            tuning.best_training_job = {"TrainingJobName": best.training_job_name}
            tuning.hyper_parameter_tuning_job_status = "Completed"
