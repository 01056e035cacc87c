"""Two replicas on Ray Serve, with OpenAI's and Anthropic's APIs in front.

pip install '.[ray,http]'     (in a checkout)
serve run --app-dir examples ray_app:app

curl http://127.0.0.1:8000/v1/completions -d '{"prompt": "Once upon a time"}'
"""

import pybatcher.ray

app = pybatcher.ray.deployment(
    None,  # or "path/to/model", which has to be there on every machine
    num_replicas=2,
    num_cpus=1,  # of each, and as many threads
    n_ctx=16384,
    n_parallel=16,
)
