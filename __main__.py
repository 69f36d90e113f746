"""`python -m streamveil`: the command line, without its entry point."""

from streamveil.pipelines.main import program

if __name__ == "__main__":
    raise SystemExit(program())
