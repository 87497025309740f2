"""Serves each archive as SageMaker's PyTorch inference container does, without its web server, and prints the answers.

The words are the input as JSON and the archives.
"""

import io
import json
import os
import sys
import types
import warnings

import numpy
from sagemaker_pytorch_serving_container.handler_service import HandlerService


class Context:
    """What the model server hands to the handler of a request."""

    def __init__(self, model_dir, content_type, accept):
        self.system_properties = {"model_dir": model_dir, "gpu_id": None}
        headers = {"Content-Type": content_type, "Accept": accept}
        self.request_processor = [types.SimpleNamespace(get_request_properties=lambda: headers)]
        self.status = 200

    def set_response_content_type(self, *_):
        pass

    def set_response_status(self, code, phrase):
        self.status = code


def ask(service, context, body):
    (answer,) = service.handle([{"body": body}], context)
    if context.status != 200:
        sys.exit(answer)
    return answer


def serve(model_dir, samples):
    code = os.path.join(model_dir, "code")
    # The container starts with this folder in PYTHONPATH.
    sys.path.insert(0, code)
    service = HandlerService()
    service.initialize(Context(model_dir, "", ""))
    by_json = ask(service, Context(model_dir, "application/json", "application/json"), json.dumps(samples).encode())
    body = io.BytesIO()
    numpy.save(body, numpy.array(samples, dtype="float32"))
    by_npy = ask(service, Context(model_dir, "application/x-npy", "application/x-npy"), body.getvalue())
    for name in [name for name, module in sys.modules.items() if str(getattr(module, "__file__", "")).startswith(code)]:
        del sys.modules[name]
    sys.path.remove(code)
    return {"json": json.loads(by_json), "npy": numpy.load(io.BytesIO(by_npy)).tolist()}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps([serve(path, json.loads(sys.argv[1])) for path in sys.argv[2:]]))
