"""What every test shares."""

import apache_beam.runners.portability.fn_api_runner.worker_handlers as worker_handlers

# The local runner's state cache measures the deep size of every state write: 0.6 ms each.
worker_handlers.STATE_CACHE_SIZE_MB = 0
