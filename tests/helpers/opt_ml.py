"""Builds what SageMaker puts below ``/opt/ml`` before the script starts."""

import json

__all__ = ["OptMl", "group"]


def group(name, *hosts, instance_type="ml.p4d.24xlarge"):
    """An entry of ``instance_groups``."""
    return {"instance_group_name": name, "instance_type": instance_type, "hosts": list(hosts)}


class OptMl:
    def __init__(self, base):
        self.base = base
        self.config = base / "input" / "config"
        self.config.mkdir(parents=True, exist_ok=True)
        self.variables = {"SAGEMAKER_BASE_DIR": str(base)}

    def write(self, name, content):
        """Write a config file: text and bytes as they are, anything else as JSON."""
        if not isinstance(content, (str, bytes)):
            content = json.dumps(content)
        if isinstance(content, str):
            content = content.encode()
        (self.config / name).write_bytes(content)
        return self

    def host(self, current, *hosts, groups=(), current_group=None, **more):
        """Write ``resourceconfig.json``: by default one group that holds every host, as the service does."""
        hosts = hosts or (current,)
        groups = groups or (group("homogeneousCluster", *hosts),)
        if current_group is None:
            current_group = next(entry["instance_group_name"] for entry in groups if current in entry["hosts"])
        content = {
            "current_host": current,
            "current_instance_type": "ml.p4d.24xlarge",
            "current_group_name": current_group,
            "hosts": sorted(hosts),
            "instance_groups": list(groups),
            "network_interface_name": "eth0",
        }
        return self.write("resourceconfig.json", {**content, **more})

    def local_mode(self, current, *hosts):
        """Write ``resourceconfig.json`` as the SDK's local mode does: no groups."""
        content = {
            "current_host": current,
            "current_instance_type": "local",
            "hosts": list(hosts or (current,)),
            "network_interface_name": "eth0",
        }
        return self.write("resourceconfig.json", content)

    def hyperparameters(self, **values):
        """Write ``hyperparameters.json`` as SDK v2 does: each value encoded as JSON."""
        return self.write("hyperparameters.json", {name: json.dumps(value) for name, value in values.items()})

    def environ(self, **more):
        """The variables of this host: where the base directory is, and what the test adds."""
        return {**self.variables, **{name: str(value) for name, value in more.items()}}
