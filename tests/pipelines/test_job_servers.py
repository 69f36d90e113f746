"""What is said of workers whose connections a job server ends; tests/clusters has the servers."""

import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from streamveil.pipelines.runners.job_servers import _workers_ending_quietly


@pytest.mark.parametrize(("code", "said"), [("CANCELLED", 0), ("UNAVAILABLE", 1)])
def test_only_connections_that_a_server_cancels_end_quietly(code, said, monkeypatch):
    class Ending(grpc.GenericRpcHandler):
        def service(self, details):
            return grpc.stream_stream_rpc_method_handler(
                lambda requests, context: context.abort(grpc.StatusCode[code], "Stream removed")
            )

    failures = []
    monkeypatch.setattr(threading, "excepthook", failures.append)
    with ThreadPoolExecutor() as pool:
        server = grpc.server(pool, handlers=[Ending()])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        with (
            grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
            _workers_ending_quietly(),
        ):
            responses = channel.stream_stream("/beam/State")(iter([]))
            threading.Thread(target=list, args=(responses,), name="read_state").start()
        server.stop(0).wait()
    assert [failed.exc_value.code().name for failed in failures] == [code] * said
