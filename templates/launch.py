"""What Dataflow's launcher runs: see docs/how-to/flex-templates.md."""

import sys

from streamveil.pipelines.flex import launch

if __name__ == "__main__":
    raise SystemExit(launch(sys.argv[1:]))
